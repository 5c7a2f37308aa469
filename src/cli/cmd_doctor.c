/* `reshard doctor`: whether a job can run here: what it needs against what there is. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/doctor_hosts.h"
#include "cli/launcher.h"
#include "cli/room.h"
#include "cli/subject.h"
#include "reshard/arena.h"
#include "train/train.h"

typedef struct doctor_args {
    const char *model, *layout, *dtype, *arena_dir, *job, *hosts, *rsh_agent, *seen;
    double share; /* of the layout's ranks that would be on this host */
    bool json;
} doctor_args;

static const cli_option doctor_options[] = {
    {CLI_TEXT, "model", "M", "preset name, config.json, or a folder that holds one",
        .target = offsetof(doctor_args, model)},
    {CLI_TEXT, "layout", "L", "layout of the job; with --model: the memory that it needs",
        .target = offsetof(doctor_args, layout)},
    {CLI_CHOICE, "dtype", "D", "type of the parameters", "fp32",
        .target = offsetof(doctor_args, dtype), .choices = "bf16|fp32"},
    {CLI_TEXT, "arena-dir", "DIR", "where the training state is to lie", "/dev/shm",
        .target = offsetof(doctor_args, arena_dir)},
    {CLI_TEXT, "job", "DIR", "where the job directory is to be", ".",
        .target = offsetof(doctor_args, job)},
    {CLI_TEXT, "hosts", "FILE", "and on the hosts of this file, as `train --hosts` takes it",
        .target = offsetof(doctor_args, hosts)},
    {CLI_TEXT, "rsh-agent", "CMD", "what runs a command on a host: CMD HOST COMMAND; default: ssh",
        .target = offsetof(doctor_args, rsh_agent)},
    {CLI_REAL, "share", "X", "part of the ranks that would be here", "1",
        .target = offsetof(doctor_args, share), .hidden = true},
    {CLI_TEXT, "seen", "FILE", "a file that must be seen here", .hidden = true,
        .target = offsetof(doctor_args, seen)},
    {CLI_FLAG, "json", NULL, "print JSON", .target = offsetof(doctor_args, json)},
    {.kind = CLI_END},
};

/* The findings, one row each. */
typedef struct report {
    json_t *rows;
    bool sound;
} report;

static void add(report *r, const char *what, bool good, const char *have, const char *advice)
{
    r->sound = r->sound && good;
    json_array_append_new(r->rows, json_pack("{s:s,s:b,s:s,s:s}", "what", what, "good", good,
                                       "have", have, "advice", good ? "" : advice));
}

/* The training state of a job, as it begins: enough for it, and for a new world that shares nothing
 * with the old one. */
static rs_status check_memory(report *r, const doctor_args *args)
{
    rs_keeper *keeper = NULL;
    int64_t have = 0, need = 0, tight = 0;
    char text[320], a[RS_HUMAN], b[RS_HUMAN], c[RS_HUMAN];
    rs_status status = rs_keeper_open("doctor", args->arena_dir, &keeper);
    if (status == RS_OK)
        status = rs_keeper_free_bytes(keeper, &have);
    rs_keeper_close(keeper);
    if (status != RS_OK) {
        add(r, "memory for the state", false, rs_error_message(), "name another with --arena-dir");
        return RS_OK;
    }
    if (args->model == NULL || args->layout == NULL) {
        snprintf(text, sizeof text, "%s: %s free", args->arena_dir, rs_human_bytes(have, a));
        add(r, "memory for the state", have > 0, text, "make it larger");
        return RS_OK;
    }
    rs_train_options o;
    rs_train_options_init(&o);
    o.dtype = rs_dtype_parse(args->dtype);
    snprintf(o.model, sizeof o.model, "%s", args->model);
    snprintf(o.layout, sizeof o.layout, "%s", args->layout);
    status = room_estimate(&o, &need, &tight);
    rs_train_options_fini(&o);
    RS_TRY(status);
    need = (int64_t)((double)need * args->share);
    snprintf(text, sizeof text, "%s: %s free, the job needs %s, a change of worlds up to %s",
        args->arena_dir, rs_human_bytes(have, a), rs_human_bytes(need, b),
        rs_human_bytes(2 * need, c));
    add(r, "memory for the state", need <= have, text,
        "make it larger, name another folder with --arena-dir, or take a smaller model");
    return RS_OK;
}

static void check_launcher(report *r)
{
    char text[700];
    launcher how;
    rs_train_options o;
    rs_train_options_init(&o);
    snprintf(o.id, sizeof o.id, "doctor-%ld", (long)getpid());
    const launcher_world place = {.number = 1, .ranks = 1, .address = "unix:doctor"};
    rs_status status = launcher_prepare(&how, "auto", &o, &place, "lines", 80);
    if (status == RS_OK)
        snprintf(text, sizeof text, "%s (built with %s)", how.arguments[0], RS_MPI);
    else
        snprintf(text, sizeof text, "%s", rs_error_message());
    if (status == RS_OK && how.folder[0] != '\0')
        rmdir(how.folder); /* which preparing makes */
    add(r, "launcher", status == RS_OK, text, "install the MPI that the command was built with");
    rs_train_options_fini(&o);
}

static void check_shared_files(report *r)
{
    bool good = access("/dev/shm", W_OK | X_OK) == 0;
    add(r, "shared files", good, good ? "/dev/shm can be written" : strerror(errno),
        "MPI's shared memory and the ranks' board lie in /dev/shm");
}

static void check_disk(report *r, const char *job)
{
    struct statvfs about;
    char text[320], a[RS_HUMAN];
    bool there = statvfs(job, &about) == 0;
    if (there)
        snprintf(text, sizeof text, "%.200s: %s free", job,
            rs_human_bytes((int64_t)about.f_bavail * (int64_t)about.f_frsize, a));
    else
        snprintf(text, sizeof text, "%.200s: %s", job, strerror(errno));
    add(r, "disk for the job", there && access(job, W_OK) == 0, text,
        "name a folder that can be written with --job");
}

/* Whether what another host wrote into the job's folder is there. */
static void check_shared(report *r, const char *seen)
{
    if (seen == NULL)
        return;
    bool good = access(seen, R_OK) == 0;
    add(r, "shared folder", good, good ? "the job's folder is the same here" : strerror(errno),
        "all hosts must share the job's folder: name one with --job that they do");
}

static void check_cores(report *r, const char *layout_text)
{
    rs_layout layout;
    char text[120];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int ranks = layout_text != NULL && rs_layout_parse(layout_text, &layout) == RS_OK
                    ? rs_layout_world(&layout)
                    : 1;
    snprintf(text, sizeof text, "%ld core%s for %d rank%s%s", cores, cores == 1 ? "" : "s", ranks,
        ranks == 1 ? "" : "s", ranks > cores ? ": they will take turns" : "");
    add(r, "cores", true, text, "");
}

/* What the other hosts say; sets this one's share. */
static rs_status ask_hosts(doctor_args *args, json_t **rows)
{
    const doctor_question q = {.hosts = args->hosts,
        .rsh_agent = args->rsh_agent,
        .model = args->model,
        .layout = args->layout,
        .dtype = args->dtype,
        .arena_dir = args->arena_dir,
        .job = args->job};
    if (args->hosts == NULL)
        return RS_OK;
    *rows = json_array();
    return *rows != NULL ? doctor_ask_hosts(&q, *rows, &args->share) : rs_error_memory(1);
}

static void add_others(report *r, json_t *others)
{
    size_t i;
    const json_t *row;
    json_array_foreach(others, i, row) r->sound =
        r->sound && json_is_true(json_object_get(row, "good"));
    json_array_extend(r->rows, others);
    json_decref(others);
}

static void print_report(const report *r)
{
    size_t i;
    const json_t *row;
    json_array_foreach(r->rows, i, row)
    {
        bool good = json_is_true(json_object_get(row, "good"));
        printf("%-4s %-22s %s\n", good ? "ok" : "NO",
            json_string_value(json_object_get(row, "what")),
            json_string_value(json_object_get(row, "have")));
        if (!good)
            printf("     %-22s %s\n", "", json_string_value(json_object_get(row, "advice")));
    }
}

static int run_doctor(const cli_command *command, int argc, char **argv)
{
    doctor_args args;
    rs_layout layout;
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code < 0 && args.layout != NULL)
        code = subject_layout(command, "--layout", args.layout, &layout);
    if (code >= 0)
        return code;
    report r = {.rows = json_array(), .sound = true};
    json_t *others = NULL;
    rs_status status = r.rows != NULL ? ask_hosts(&args, &others) : rs_error_memory(1);
    if (status == RS_OK)
        status = check_memory(&r, &args);
    if (status != RS_OK) {
        json_decref(others);
        json_decref(r.rows);
        return cli_fail(command, status, NULL);
    }
    check_shared_files(&r);
    check_launcher(&r);
    check_disk(&r, args.job);
    check_cores(&r, args.layout);
    check_shared(&r, args.seen);
    add_others(&r, others);
    if (args.json)
        code = cli_print_json(command, json_pack("{s:b,s:O}", "sound", r.sound, "checks", r.rows));
    else
        print_report(&r);
    json_decref(r.rows);
    if (code > 0)
        return code;
    return r.sound ? 0 : CLI_FAILURE;
}

const cli_command cmd_doctor = {
    .name = "doctor",
    .summary = "say whether a job can run here, and what is missing",
    .text =
        "Checks memory for the training state (file system, cgroup), MPI's shared files, the\n"
        "launcher, disk and cores; with --model and --layout against what the job needs. Exits\n"
        "with 1 where something is missing. With --hosts every host of the file checks the same, "
        "for\n"
        "the ranks that it would get, and whether it sees the job's folder.",
    .example = "  reshard doctor --model llama3-8b --layout tp=8 --dtype bf16",
    .options = doctor_options,
    .run = run_doctor,
};
