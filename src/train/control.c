/*
 * Requests, answers and the claim on a job directory, by files alone.
 *
 * 1. A request is complete when it is visible: it is written beside and renamed into JOB/requests/.
 *    Its name begins with the time, so that sorting names is sorting by age.
 * 2. Only rank 0 of the job removes requests (it does so when it takes one); only clients remove
 * answers. An answer is NAME.answer, replaced by rename, so that a client sees every state whole.
 * 3. The claim is an open-file-description lock: it ends with the process that holds it, however
 * that ends, and a second descriptor in the same process does not release it by being closed
 * (unlike POSIX locks). Liveness is asked with F_OFD_GETLK, which takes nothing.
 * 4. A client that finds the directory unclaimed stops waiting.
 *
 * Cost: one directory read per 50 ms on the job's side; a client looks every 20 ms.
 */
#include "train/control.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

#define PATH_BYTES (PATH_MAX + 512)
#define POLL_SECONDS 0.05
#define CLIENT_SECONDS 0.02
#define ANSWER_SECONDS 60 /* how long a client waits for the first answer: one long step */

struct rs_control_lock {
    int fd;
};

struct rs_control {
    char *job;
    double polled;
    bool attached;
};

static rs_status join(char *path, const char *job, const char *name)
{
    int n = snprintf(path, PATH_BYTES, "%s/%s", job, name);
    if (n < 0 || n >= PATH_BYTES)
        return rs_error_set(RS_ERR_ARGUMENT, "path of %s in the job directory is too long", name);
    return RS_OK;
}

static rs_status make_folder(const char *path)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return rs_error_errno(errno, "cannot make folder %s", path);
    struct stat about;
    if (stat(path, &about) != 0)
        return rs_error_errno(errno, "%s", path);
    if (!S_ISDIR(about.st_mode))
        return rs_error_set(RS_ERR_EXISTS, "%s: there is a file of this name, not a folder", path);
    return RS_OK;
}

/* mkdir -p. */
static rs_status make_folders(const char *path)
{
    char part[PATH_BYTES];
    RS_TRY(join(part, path, ""));
    for (char *p = part + 1; *p != '\0'; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        RS_TRY(make_folder(part));
        *p = '/';
    }
    return RS_OK;
}

static rs_status write_whole(int fd, const char *path, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return rs_error_errno(errno, "cannot write %s", path);
        text += n;
        bytes -= (size_t)n;
    }
    return RS_OK;
}

rs_status rs_control_replace(const char *job, const char *name, const char *text)
{
    char path[PATH_BYTES], aside[PATH_BYTES + 32];
    RS_TRY(join(path, job, name));
    snprintf(aside, sizeof aside, "%s.%ld~", path, (long)getpid());
    int fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return rs_error_errno(errno, "cannot create %s", path);
    rs_status status = write_whole(fd, path, text, strlen(text));
    if (close(fd) != 0 && status == RS_OK)
        status = rs_error_errno(errno, "cannot write %s", path);
    if (status == RS_OK && rename(aside, path) != 0)
        status = rs_error_errno(errno, "cannot rename %s to %s", aside, path);
    if (status != RS_OK)
        unlink(aside);
    return status;
}

/* ---- the claim ---- */

static void read_owner(int fd, char *owner)
{
    ssize_t n = pread(fd, owner, 255, 0);
    owner[n > 0 ? n : 0] = '\0';
    owner[strcspn(owner, "\n")] = '\0';
    if (owner[0] == '\0')
        snprintf(owner, 256, "a process that has not said which");
}

rs_status rs_control_claim(const char *job, bool resume, rs_control_lock **out)
{
    char path[PATH_BYTES], text[256], host[128] = "";
    RS_TRY(make_folders(job));
    RS_TRY(join(path, job, "job.lock"));
    rs_control_lock *lock = rs_calloc(1, sizeof *lock);
    if (lock == NULL)
        return rs_error_memory(sizeof *lock);
    rs_status status = RS_OK;
    lock->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock->fd < 0) {
        status = rs_error_errno(errno, "cannot open %s", path);
        goto fail;
    }
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(lock->fd, F_OFD_SETLK, &whole) != 0) {
        if (errno == EAGAIN || errno == EACCES) {
            read_owner(lock->fd, text);
            status = rs_error_set(RS_ERR_EXISTS, "job directory %s is in use by %s", job, text);
        } else {
            status = rs_error_errno(errno, "cannot lock %s", path);
        }
        goto fail;
    }
    char metrics[PATH_BYTES];
    RS_TRY_GOTO(join(metrics, job, "metrics.jsonl"), fail);
    if (!resume && access(metrics, F_OK) == 0) {
        status = rs_error_set(RS_ERR_EXISTS,
            "job directory %s holds an earlier run (metrics.jsonl): go on with --resume, name "
            "another, or remove it",
            job);
        goto fail;
    }
    gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "process %ld on host %s\n", (long)getpid(), host);
    if (ftruncate(lock->fd, 0) != 0 || pwrite(lock->fd, text, (size_t)n, 0) != n) {
        status = rs_error_errno(errno, "cannot write %s", path);
        goto fail;
    }
    *out = lock;
    return RS_OK;

fail:
    rs_control_release(lock);
    return status;
}

void rs_control_release(rs_control_lock *lock)
{
    if (lock == NULL)
        return;
    if (lock->fd >= 0)
        close(lock->fd);
    free(lock);
}

bool rs_control_is_claimed(const char *job, char *owner)
{
    char path[PATH_BYTES];
    if (join(path, job, "job.lock") != RS_OK)
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    struct flock whole = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    bool claimed = fcntl(fd, F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
    if (claimed && owner != NULL)
        read_owner(fd, owner);
    close(fd);
    return claimed;
}

/* ---- the client ---- */

static rs_status check_running(const char *job)
{
    struct stat about;
    if (stat(job, &about) != 0)
        return rs_error_errno(errno, "job directory %s", job);
    if (!rs_control_is_claimed(job, NULL))
        return rs_error_set(RS_ERR_STALLED, "no job runs in %s", job);
    return RS_OK;
}

/* Puts a request into the directory; `name` gets its name (room for RS_CONTROL_NAME). */
static rs_status submit(
    const char *job, const char *kind, const char *layout, bool new_world, char *name)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    host[strcspn(host, "/")] = '\0';
    snprintf(name, RS_CONTROL_NAME, "%010lld%09ld-%s-%ld.request", (long long)t.tv_sec, t.tv_nsec,
        host, (long)getpid());
    char below[RS_CONTROL_NAME + 16], folder[PATH_BYTES];
    snprintf(below, sizeof below, "requests/%s", name);
    RS_TRY(join(folder, job, "requests"));
    RS_TRY(make_folder(folder));
    json_t *root =
        json_pack("{s:s,s:s?,s:b}", "request", kind, "layout", layout, "new_world", new_world);
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (text == NULL)
        return rs_error_set(RS_ERR_ARGUMENT, "cannot write the request (layout not UTF-8?)");
    rs_status status = rs_control_replace(job, below, text);
    free(text);
    return status;
}

/* The answer as it is now; NULL if there is none yet. */
static json_t *read_answer(const char *path)
{
    json_error_t error;
    return json_load_file(path, 0, &error);
}

typedef struct verdict {
    const char *state;
    bool last;
    rs_status status;
} verdict;

static const verdict verdicts[] = {
    {"done", true, RS_OK},
    {"refused", true, RS_ERR_ARGUMENT},
    {"busy", true, RS_ERR_EXISTS},
    {"failed", true, RS_ERR_CANCELLED},
};

static const verdict *verdict_of(const char *state)
{
    for (size_t i = 0; i < sizeof verdicts / sizeof *verdicts; i++)
        if (strcmp(state, verdicts[i].state) == 0)
            return &verdicts[i];
    return NULL;
}

/*
 * Follows the answers to `name` until a last one (any one if not `wait`), or until the job is gone.
 * `*answer` gets the last seen, NULL if none.
 */
static rs_status follow(const char *job, const char *name, bool wait, rs_control_progress progress,
    void *context, json_t **answer)
{
    char request[PATH_BYTES], path[PATH_BYTES + 16], below[RS_CONTROL_NAME + 16], seen[64] = "";
    snprintf(below, sizeof below, "requests/%s", name);
    RS_TRY(join(request, job, below));
    snprintf(path, sizeof path, "%s.answer", request);
    double begun = rs_clock_seconds();
    rs_status status = RS_OK;
    *answer = NULL;
    for (;;) {
        bool gone =
            !rs_control_is_claimed(job, NULL); /* asked first: the last answer comes before */
        json_t *latest = read_answer(path);
        if (latest != NULL) {
            json_decref(*answer);
            *answer = latest;
            const char *state = json_string_value(json_object_get(latest, "state"));
            const char *message = json_string_value(json_object_get(latest, "message"));
            state = state != NULL ? state : "";
            message = message != NULL ? message : "";
            if (progress != NULL && strncmp(state, seen, sizeof seen - 1) != 0)
                progress(context, state, message);
            snprintf(seen, sizeof seen, "%s", state);
            const verdict *v = verdict_of(state);
            if (v != NULL && v->status != RS_OK)
                status = rs_error_set(v->status, "%s", message);
            if (v != NULL || !wait)
                break;
        }
        if (gone) {
            status = rs_error_set(RS_ERR_CANCELLED, "the job in %s ended before it was done", job);
            break;
        }
        if (*answer == NULL && rs_clock_seconds() - begun > ANSWER_SECONDS) {
            status = rs_error_set(RS_ERR_PEER,
                "the job in %s has not answered for %d s; the request is withdrawn", job,
                ANSWER_SECONDS);
            break;
        }
        rs_nap(CLIENT_SECONDS);
    }
    if (wait || status != RS_OK) {
        unlink(request);
        unlink(path);
    }
    return status;
}

/* Puts a request and follows the answers to it. */
static rs_status ask(const char *job, const char *kind, const char *layout, bool new_world,
    bool wait, rs_control_progress progress, void *context, char **reply)
{
    char name[RS_CONTROL_NAME];
    json_t *answer = NULL;
    if (reply != NULL)
        *reply = NULL;
    RS_TRY(check_running(job));
    RS_TRY(submit(job, kind, layout, new_world, name));
    rs_status status = follow(job, name, wait, progress, context, &answer);
    if (reply != NULL && answer != NULL)
        *reply = json_dumps(answer, JSON_COMPACT | JSON_REAL_PRECISION(15));
    json_decref(answer);
    return status;
}

/* A request whose text is the user's. */
static rs_status ask_with(const char *job, const char *kind, const char *text, bool new_world,
    bool wait, rs_control_progress progress, void *context, char **reply)
{
    if (strlen(text) >= RS_CONTROL_LAYOUT) {
        if (reply != NULL)
            *reply = NULL;
        return rs_error_set(RS_ERR_ARGUMENT, "the text of the request is too long");
    }
    return ask(job, kind, text, new_world, wait, progress, context, reply);
}

rs_status rs_control_switch(const char *job, const char *layout, bool wait,
    rs_control_progress progress, void *context, char **reply)
{
    return ask_with(job, "switch", layout, false, wait, progress, context, reply);
}

rs_status rs_control_renew(const char *job, const char *layout, bool wait,
    rs_control_progress progress, void *context, char **reply)
{
    return ask_with(job, "switch", layout, true, wait, progress, context, reply);
}

rs_status rs_control_save(
    const char *job, bool wait, rs_control_progress progress, void *context, char **reply)
{
    return ask(job, "save", NULL, false, wait, progress, context, reply);
}

rs_status rs_control_drain(const char *job, const char *host, bool wait,
    rs_control_progress progress, void *context, char **reply)
{
    return ask_with(job, "drain", host, false, wait, progress, context, reply);
}

rs_status rs_control_scale(const char *job, const char *ranks, bool wait,
    rs_control_progress progress, void *context, char **reply)
{
    return ask_with(job, "scale", ranks, false, wait, progress, context, reply);
}

rs_status rs_control_cancel(const char *job, char **reply)
{
    return ask(job, "cancel", NULL, false, true, NULL, NULL, reply);
}

rs_status rs_control_stop(const char *job, bool wait)
{
    char name[RS_CONTROL_NAME];
    json_t *answer = NULL;
    RS_TRY(check_running(job));
    RS_TRY(submit(job, "stop", NULL, false, name));
    rs_status status = follow(job, name, true, NULL, NULL, &answer);
    json_decref(answer);
    while (status == RS_OK && wait && rs_control_is_claimed(job, NULL))
        rs_nap(CLIENT_SECONDS);
    return status;
}

rs_status rs_control_status(const char *job, char **json)
{
    char path[PATH_BYTES];
    struct stat about;
    if (stat(job, &about) != 0)
        return rs_error_errno(errno, "job directory %s", job);
    RS_TRY(join(path, job, "status.json"));
    bool claimed = rs_control_is_claimed(job, NULL);
    if (access(path, R_OK) != 0)
        return rs_error_errno(errno, "%s", path);
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    if (!json_is_object(root)) {
        json_decref(root);
        return rs_error_set(RS_ERR_MALFORMED, "%s: line %d: %s", path, error.line, error.text);
    }
    int bad = json_object_set_new(root, "running", json_boolean(claimed));
    char *text = bad == 0 ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(root);
    if (text == NULL)
        return rs_error_memory(1);
    *json = text;
    return RS_OK;
}

/* ---- the job's side ---- */

static bool has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

rs_status rs_control_attach(const char *job, rs_control **out)
{
    rs_control *control = rs_calloc(1, sizeof *control);
    if (control == NULL)
        return rs_error_memory(sizeof *control);
    control->attached = true;
    control->job = rs_strdup(job);
    if (control->job == NULL) {
        free(control);
        return rs_error_memory(strlen(job) + 1);
    }
    *out = control;
    return RS_OK;
}

rs_status rs_control_open(const char *job, rs_control **out)
{
    char folder[PATH_BYTES], path[2 * PATH_BYTES];
    RS_TRY(join(folder, job, "requests"));
    RS_TRY(make_folder(folder));
    DIR *listing = opendir(folder);
    if (listing == NULL)
        return rs_error_errno(errno, "cannot read folder %s", folder);
    for (struct dirent *e = readdir(listing); e != NULL; e = readdir(listing)) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        unlink(path);
    }
    closedir(listing);
    RS_TRY(rs_control_attach(job, out));
    (*out)->attached = false;
    return RS_OK;
}

/* The name of the oldest request; false if there is none. */
static bool oldest(const char *job, char *name)
{
    char folder[PATH_BYTES];
    if (join(folder, job, "requests") != RS_OK)
        return false;
    DIR *listing = opendir(folder);
    if (listing == NULL)
        return false;
    bool found = false;
    for (struct dirent *e = readdir(listing); e != NULL; e = readdir(listing)) {
        size_t length = strlen(e->d_name);
        if (!has_suffix(e->d_name, ".request") || length >= RS_CONTROL_NAME)
            continue;
        if (found && strcmp(e->d_name, name) >= 0)
            continue;
        memcpy(name, e->d_name, length + 1);
        found = true;
    }
    closedir(listing);
    return found;
}

static const char *const kinds[] = {"switch", "stop", "save", "scale", "cancel", "drain"};

const char *rs_control_kind_name(rs_control_kind kind)
{
    return kinds[kind];
}

rs_status rs_control_kind_parse(const char *name, rs_control_kind *out)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(name, kinds[i]) == 0) {
            *out = (rs_control_kind)i;
            return RS_OK;
        }
    }
    return rs_error_set(RS_ERR_ARGUMENT, "request '%s': there is none of this kind", name);
}

/* Reads and removes the request `name`; false if it cannot be understood. */
static bool take(const char *job, const char *name, rs_control_request *out)
{
    char path[PATH_BYTES], below[RS_CONTROL_NAME + 16];
    snprintf(below, sizeof below, "requests/%s", name);
    if (join(path, job, below) != RS_OK)
        return false;
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    unlink(path);
    const char *kind = json_string_value(json_object_get(root, "request"));
    const char *layout = json_string_value(json_object_get(root, "layout"));
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", name);
    bool known = kind != NULL && rs_control_kind_parse(kind, &out->kind) == RS_OK;
    if (known && out->kind != RS_CONTROL_STOP && out->kind != RS_CONTROL_SAVE &&
        out->kind != RS_CONTROL_CANCEL) {
        known = layout != NULL && strlen(layout) < RS_CONTROL_LAYOUT;
        snprintf(out->layout, sizeof out->layout, "%s", known ? layout : "");
        out->new_world = json_is_true(json_object_get(root, "new_world"));
    }
    json_decref(root);
    return known;
}

bool rs_control_poll(rs_control *control, rs_control_request *out)
{
    double now = rs_clock_seconds();
    char name[RS_CONTROL_NAME];
    if (now - control->polled < POLL_SECONDS)
        return false;
    while (oldest(control->job, name)) {
        if (take(control->job, name, out))
            return true;
        if (rs_control_answer(control, name, "refused", "the request cannot be understood", NULL) !=
            RS_OK)
            break; /* nobody can be told; the request is gone all the same */
    }
    control->polled = now;
    return false;
}

rs_status rs_control_answer(rs_control *control, const char *name, const char *state,
    const char *message, const char *event)
{
    json_t *root = json_pack("{s:s,s:s}", "state", state, "message", message);
    if (root != NULL && event != NULL) {
        json_t *members = json_loads(event, 0, NULL);
        if (members == NULL || json_object_update_missing(root, members) != 0) {
            json_decref(members);
            json_decref(root);
            return rs_error_set(RS_ERR_ARGUMENT, "the answer's members are no JSON object");
        }
        json_decref(members);
    }
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(root);
    if (text == NULL)
        return rs_error_memory(1);
    char below[RS_CONTROL_NAME + 32];
    snprintf(below, sizeof below, "requests/%s.answer", name);
    rs_status status = rs_control_replace(control->job, below, text);
    free(text);
    return status;
}

void rs_control_close(rs_control *control)
{
    if (control == NULL)
        return;
    rs_control_request request;
    control->polled = 0;
    while (!control->attached && rs_control_poll(control, &request)) {
        const char *state = request.kind == RS_CONTROL_STOP ? "done" : "refused";
        if (rs_control_answer(control, request.name, state, "the job has ended", NULL) != RS_OK)
            break;
        control->polled = 0;
    }
    free(control->job);
    free(control);
}
