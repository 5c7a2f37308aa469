/* A rank of a training job, for tests: reads JOB/job.json, trains, says on standard output what it
 * is told. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include "train/control.h"
#include "train/train.h"

static void on_start(void *context, const rs_train_start *start)
{
    (void)context;
    printf("start %s: %s, %d ranks, %d nodes\n", start->layout, start->meaning, start->ranks,
        start->nodes);
}

static void on_step(void *context, const rs_train_step *step)
{
    (void)context;
    printf("step %lld loss %.9g\n", (long long)step->step, step->loss);
    fflush(stdout);
}

static void on_forecast(void *context, const rs_train_forecast *forecast)
{
    (void)context;
    printf("forecast %s -> %s: peak %lld safe, %lld tight\n", forecast->from, forecast->to,
        (long long)forecast->peak_safe, (long long)forecast->peak_tight);
}

static void on_switched(void *context, const rs_train_switched *event)
{
    (void)context;
    printf("switch %s -> %s: %s, certificate %s\n", event->forecast.from, event->forecast.to,
        event->status == RS_OK ? "done" : event->message, event->certificate);
    fflush(stdout);
}

static void on_notice(void *context, const char *text)
{
    (void)context;
    printf("notice: %s\n", text);
}

static void on_end(void *context, rs_train_outcome outcome, int64_t step)
{
    (void)context;
    printf("end %d at step %lld\n", (int)outcome, (long long)step);
    fflush(stdout);
}

static void on_failed(void *context, int rank, rs_status status, const char *message)
{
    (void)context;
    fprintf(stderr, "failed on rank %d (%s): %s\n", rank, rs_status_name(status), message);
    fflush(stderr);
}

static int client(int argc, char **argv)
{
    char *reply = NULL;
    rs_status status = RS_ERR_ARGUMENT;
    if (strcmp(argv[1], "switch") == 0 && argc == 4)
        status = rs_control_switch(argv[2], argv[3], true, NULL, NULL, &reply);
    else if (strcmp(argv[1], "stop") == 0)
        status = rs_control_stop(argv[2], true);
    else if (strcmp(argv[1], "status") == 0)
        status = rs_control_status(argv[2], &reply);
    if (reply != NULL)
        printf("%s\n", reply);
    free(reply);
    if (status != RS_OK)
        fprintf(stderr, "%s: %s\n", rs_status_name(status), rs_error_message());
    return status == RS_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    static const rs_train_listener listener = {.start = on_start,
        .step = on_step,
        .forecast = on_forecast,
        .switched = on_switched,
        .notice = on_notice,
        .end = on_end,
        .failed = on_failed};
    rs_train_options options;
    if (argc > 2)
        return client(argc, argv);
    MPI_Init(&argc, &argv);
    rs_train_options_init(&options);
    rs_status status = RS_ERR_ARGUMENT;
    if (argc == 2)
        status = rs_train_options_load(&options, argv[1]);
    if (status == RS_OK)
        status = rs_train_options_check(&options);
    if (status != RS_OK)
        fprintf(stderr, "refused: %s\n", rs_error_message());
    else
        status = rs_train_run(&options, &listener, MPI_COMM_WORLD, NULL);
    rs_train_options_fini(&options);
#ifdef __SANITIZE_ADDRESS__
    __lsan_do_leak_check(); /* MPI unloads its parts at the end, and then nobody knows what is
                               theirs */
#endif
    MPI_Finalize();
    return status == RS_OK ? 0 : 1;
}
