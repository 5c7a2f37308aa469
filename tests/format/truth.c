#include "truth.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ckpt/publish.h"
#include "support/random.h"

#define PATH_ROOM 1024

static char *next_buffer(void)
{
    static char buffers[8][PATH_ROOM];
    static int at;
    at = (at + 1) % 8;
    return buffers[at];
}

const char *in_folder(const char *folder, const char *name)
{
    char *out = next_buffer();
    assert_true((size_t)snprintf(out, PATH_ROOM, "%s/%s", folder, name) < PATH_ROOM);
    return out;
}

const char *fixture_family(const char *family)
{
    const char *folder = in_folder(RS_SHARED_DIR "/fixtures", family);
    struct stat info;
    if (stat(folder, &info) != 0) {
        printf("skipped: %s is not there\n", folder);
        exit(77);
    }
    return folder;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void for_fixtures(const char *family, fixture_function function)
{
    const char *folder = fixture_family(family);
    char root[PATH_ROOM];
    snprintf(root, sizeof root, "%s", folder);
    char *names[1024];
    size_t count = 0;
    DIR *list = opendir(root);
    assert_non_null(list);
    for (struct dirent *entry; (entry = readdir(list)) != NULL;)
        if (entry->d_name[0] != '.' && count < 1024)
            names[count++] = strdup(entry->d_name);
    closedir(list);
    assert_true(count > 0);
    qsort(names, count, sizeof *names, by_text);
    for (size_t i = 0; i < count; i++) {
        char one[PATH_ROOM + 300];
        snprintf(one, sizeof one, "%s/%s", root, names[i]);
        json_error_t error;
        json_t *truth = json_load_file(in_folder(one, "truth.json"), JSON_ALLOW_NUL, &error);
        if (truth == NULL)
            fail_msg("%s/truth.json: %s", one, error.text);
        function(one, names[i], truth);
        json_decref(truth);
        free(names[i]);
    }
}

const char *truth_text(const json_t *truth, const char *key)
{
    const char *text = json_string_value(json_object_get(truth, key));
    return text != NULL ? text : "";
}

rs_checkpoint *opened(const char *path)
{
    rs_checkpoint *checkpoint;
    OK(rs_checkpoint_open(path, NULL, &checkpoint));
    return checkpoint;
}

bool has_warning(const rs_checkpoint *checkpoint, const char *text)
{
    for (size_t i = 0; i < rs_checkpoint_warning_count(checkpoint); i++)
        if (strstr(rs_checkpoint_warning_at(checkpoint, i), text) != NULL)
            return true;
    return false;
}

void expect_message(const char *why)
{
    if (strstr(rs_error_message(), why) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", rs_error_message(), why);
}

rs_status read_everything(const char *path, const rs_checkpoint_options *options)
{
    rs_checkpoint *checkpoint = NULL;
    char hex[RS_CHECKPOINT_HASH];
    char *extras = NULL;
    rs_status status = rs_checkpoint_open(path, options, &checkpoint);
    if (status == RS_OK)
        status = rs_checkpoint_check(checkpoint);
    for (size_t i = 0; status == RS_OK && i < rs_checkpoint_count(checkpoint); i++)
        status = rs_checkpoint_hash(checkpoint, i, hex);
    if (status == RS_OK)
        status = rs_checkpoint_extras(checkpoint, &extras);
    free(extras);
    rs_checkpoint_close(checkpoint);
    return status;
}

void assert_entry(
    const rs_checkpoint *checkpoint, const char *name, const char *role, const json_t *tensor)
{
    char hex[RS_CHECKPOINT_HASH];
    int64_t index = rs_checkpoint_find(checkpoint, name, role);
    if (index < 0)
        fail_msg("no %s of \"%s\"", role, name);
    const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, (size_t)index);
    const json_t *shape = json_object_get(tensor, "shape");
    assert_string_equal(rs_dtype_name(entry->dtype), truth_text(tensor, "dtype"));
    assert_int_equal(entry->ndim, json_array_size(shape));
    for (int d = 0; d < entry->ndim; d++)
        assert_int_equal(entry->shape[d], json_integer_value(json_array_get(shape, (size_t)d)));
    if (rs_checkpoint_hash(checkpoint, (size_t)index, hex) != RS_OK)
        fail_msg("%s of \"%s\": %s", role, name, rs_error_message());
    if (strcmp(hex, truth_text(tensor, "sha256")) != 0)
        fail_msg("%s of \"%s\": sha256 %s, the truth is %s", role, name, hex,
            truth_text(tensor, "sha256"));
}

void assert_refused(const char *path, const rs_checkpoint_options *options)
{
    rs_status status = read_everything(path, options);
    if (status == RS_OK)
        fail_msg("%s: was not refused", path);
    printf("    %s: %s\n", rs_status_name(status), rs_error_message());
    assert_true(status != RS_ERR_IO && status != RS_ERR_NO_MEMORY);
    assert_true(strlen(rs_error_message()) > 0);
}

void forbid_execution(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_execve, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_execveat, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {.len = sizeof rules / sizeof *rules, .filter = rules};
    assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

void assert_peak_below(int64_t mib)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    FILE *status = fopen("/proc/self/status", "r");
    assert_non_null(status);
    char line[256];
    long peak = -1;
    while (fgets(line, sizeof line, status) != NULL)
        if (sscanf(line, "VmHWM: %ld kB", &peak) == 1)
            break;
    fclose(status);
    printf("peak memory %ld KiB\n", peak);
    assert_true(peak > 0 && peak < mib * 1024);
#else
    (void)mib;
#endif
}

static char scratch[64];

static void remove_scratch(void)
{
    rs_status status = rs_remove_folder(scratch);
    (void)status; /* a folder that stays is all there is to it */
}

const char *scratch_folder(void)
{
    if (scratch[0] == 0) {
        snprintf(scratch, sizeof scratch, "/tmp/reshard-format-XXXXXX");
        assert_non_null(mkdtemp(scratch));
        atexit(remove_scratch);
    }
    return scratch;
}

const char *scratch_file(const char *name, const void *data, size_t bytes)
{
    const char *path = in_folder(scratch_folder(), name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    return path;
}

unsigned char *slurp(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail_msg("%s: cannot open", path);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    unsigned char *data = malloc(*bytes + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    fclose(file);
    return data;
}

void damaged_twins(const char *path, int cuts, int flips, uint64_t seed, attempt_function attempt)
{
    size_t bytes;
    unsigned char *data = slurp(path, &bytes);
    char original[PATH_ROOM];
    int refused = 0;
    snprintf(original, sizeof original, "%s", path);
    for (int i = 0; i < cuts; i++) {
        size_t length = bytes * (size_t)i / (size_t)cuts;
        const char *twin = scratch_file("twin", data, length);
        if (attempt(twin) == RS_OK)
            fail_msg("%s cut to %zu of %zu bytes was read", original, length, bytes);
    }
    for (int i = 0; i < flips && bytes > 0; i++) {
        uint64_t random = random_next(&seed);
        /* One to four bytes, half of the time near one end, where directories lie. */
        unsigned char saved[4];
        size_t at[4];
        int count = 1 + (int)(random & 3);
        for (int k = 0; k < count; k++) {
            random = random_next(&seed);
            size_t near = bytes < 600 ? bytes : 600;
            at[k] = random & 1   ? random % bytes
                    : random & 2 ? (random >> 8) % near
                                 : bytes - 1 - (random >> 8) % near;
            saved[k] = data[at[k]];
            data[at[k]] = (unsigned char)(random >> 32);
        }
        const char *twin = scratch_file("twin", data, bytes);
        refused += attempt(twin) != RS_OK;
        for (int k = count; k-- > 0;)
            data[at[k]] = saved[k];
    }
    printf(
        "    %d cuts refused, %d of %d twins with flipped bytes refused\n", cuts, refused, flips);
    free(data);
}
