/* A job directory's claim, and requests from the client's side to the job's and back; the job is a
 * thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "train/control.h"

static char above[64];
static char folder[96];

static char *inside(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int make_folder(void **state)
{
    (void)state;
    char base[] = "/tmp/reshard-unit-XXXXXX";
    if (mkdtemp(base) == NULL)
        return 1;
    snprintf(above, sizeof above, "%s/deep", base); /* made by the claim, as is what is in it */
    snprintf(folder, sizeof folder, "%s/job", above);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(inside("job.lock"));
    unlink(inside("status.json"));
    unlink(inside("metrics.jsonl"));
    rmdir(inside("requests"));
    bool removed = rmdir(folder) == 0 && rmdir(above) == 0;
    *strrchr(above, '/') = '\0';
    return removed && rmdir(above) == 0 ? 0 : 1;
}

static void nap(void)
{
    struct timespec t = {0, 5000000};
    nanosleep(&t, NULL);
}

static void one_claim_at_a_time(void **state)
{
    (void)state;
    rs_control_lock *first, *second;
    char owner[256], pid[32];
    assert_false(rs_control_is_claimed(folder, NULL));
    assert_int_equal(rs_control_claim(folder, false, &first), RS_OK);
    assert_true(rs_control_is_claimed(folder, owner));
    snprintf(pid, sizeof pid, "process %ld on host", (long)getpid());
    assert_non_null(strstr(owner, pid));
    assert_int_equal(rs_control_claim(folder, false, &second), RS_ERR_EXISTS);
    assert_non_null(strstr(rs_error_message(), pid));
    assert_true(rs_control_is_claimed(folder, NULL)); /* asking and failing release nothing */
    rs_control_release(first);
    assert_false(rs_control_is_claimed(folder, NULL));
    assert_int_equal(rs_control_claim(folder, false, &first), RS_OK);
    rs_control_release(first);
}

static void an_earlier_run_is_not_overwritten(void **state)
{
    (void)state;
    rs_control_lock *lock;
    assert_int_not_equal(rs_control_replace("nowhere", "metrics.jsonl", "{}\n"), RS_OK);
    assert_non_null(strstr(rs_error_message(), "cannot create nowhere/metrics.jsonl: "));
    assert_int_equal(rs_control_replace(folder, "metrics.jsonl", "{}\n"), RS_OK);
    assert_int_equal(rs_control_claim(folder, false, &lock), RS_ERR_EXISTS);
    assert_non_null(strstr(rs_error_message(), "earlier run"));
    assert_false(rs_control_is_claimed(folder, NULL));
    unlink(inside("metrics.jsonl"));
}

static void nobody_there(void **state)
{
    (void)state;
    assert_int_equal(
        rs_control_switch("/nowhere", "tp=2", true, NULL, NULL, NULL), RS_ERR_NOT_FOUND);
    assert_int_equal(rs_control_switch(folder, "tp=2", true, NULL, NULL, NULL), RS_ERR_STALLED);
    assert_int_equal(rs_control_stop(folder, true), RS_ERR_STALLED);
}

/* ---- a job that answers ---- */

typedef struct job {
    pthread_t thread;
    rs_control_lock *lock;
    atomic_bool quit;
    atomic_bool stopped;
    atomic_int seen;
} job;

/* tp=2 is switched to, tp=3 refused, tp=4 busy, tp=5 rolled back, tp=6 accepted and left alone. */
static void answer_switch(rs_control *control, const rs_control_request *r)
{
    const char *name = r->name;
    if (strcmp(r->layout, "tp=3") == 0) {
        assert_int_equal(rs_control_answer(control, name, "refused", "three?", NULL), RS_OK);
        return;
    }
    if (strcmp(r->layout, "tp=4") == 0) {
        assert_int_equal(rs_control_answer(control, name, "busy", "one runs", NULL), RS_OK);
        return;
    }
    assert_int_equal(rs_control_answer(control, name, "accepted", "yes", NULL), RS_OK);
    for (int i = 0; i < 20; i++)
        nap();
    if (strcmp(r->layout, "tp=6") == 0)
        return;
    assert_int_equal(rs_control_answer(control, name, "moving", "now", NULL), RS_OK);
    for (int i = 0; i < 20; i++)
        nap();
    if (strcmp(r->layout, "tp=5") == 0)
        assert_int_equal(rs_control_answer(control, name, "failed", "no room", NULL), RS_OK);
    else
        assert_int_equal(
            rs_control_answer(control, name, "done", "", "{\"step\":7,\"bytes_moved\":12}"), RS_OK);
}

static void *job_run(void *argument)
{
    job *j = argument;
    rs_control *control;
    rs_control_request request;
    assert_int_equal(rs_control_open(folder, &control), RS_OK);
    assert_int_equal(rs_control_replace(folder, "status.json", "{\"step\":3}"), RS_OK);
    while (!atomic_load(&j->quit) && !atomic_load(&j->stopped)) {
        nap();
        if (!rs_control_poll(control, &request))
            continue;
        atomic_fetch_add(&j->seen, 1);
        if (request.kind == RS_CONTROL_STOP) {
            assert_int_equal(rs_control_answer(control, request.name, "done", "", NULL), RS_OK);
            atomic_store(&j->stopped, true);
        } else {
            answer_switch(control, &request);
        }
    }
    rs_control_close(control);
    rs_control_release(j->lock);
    return NULL;
}

static void job_begin(job *j)
{
    atomic_init(&j->quit, false);
    atomic_init(&j->stopped, false);
    atomic_init(&j->seen, 0);
    assert_int_equal(rs_control_claim(folder, false, &j->lock), RS_OK);
    unlink(inside("status.json"));
    assert_int_equal(pthread_create(&j->thread, NULL, job_run, j), 0);
    while (access(inside("status.json"), F_OK) != 0)
        nap();
}

static void job_end(job *j)
{
    atomic_store(&j->quit, true);
    pthread_join(j->thread, NULL);
}

static void note_state(void *context, const char *state, const char *message)
{
    (void)message;
    char *seen = context;
    snprintf(seen + strlen(seen), 64 - strlen(seen), "%s ", state);
}

static void requests_are_answered(void **state)
{
    (void)state;
    job j;
    char seen[64] = "", *reply;
    job_begin(&j);
    assert_int_equal(rs_control_switch(folder, "tp=2", true, note_state, seen, &reply), RS_OK);
    assert_string_equal(seen, "accepted moving done ");
    json_t *root = json_loads(reply, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(root, "bytes_moved")), 12);
    assert_string_equal(json_string_value(json_object_get(root, "state")), "done");
    json_decref(root);
    free(reply);
    assert_int_equal(rs_control_switch(folder, "tp=3", true, NULL, NULL, NULL), RS_ERR_ARGUMENT);
    assert_string_equal(rs_error_message(), "three?");
    assert_int_equal(rs_control_switch(folder, "tp=4", false, NULL, NULL, NULL), RS_ERR_EXISTS);
    assert_int_equal(rs_control_switch(folder, "tp=5", true, NULL, NULL, &reply), RS_ERR_CANCELLED);
    assert_non_null(strstr(reply, "no room"));
    free(reply);
    assert_int_equal(atomic_load(&j.seen), 4);
    job_end(&j);
    assert_int_equal(rmdir(inside("requests")), 0); /* nobody left anything */
}

static void a_job_that_ends_is_not_waited_for(void **state)
{
    (void)state;
    job j;
    job_begin(&j);
    atomic_store(&j.quit, true); /* its last act, after the request below was taken or not */
    rs_status status = rs_control_switch(folder, "tp=6", true, NULL, NULL, NULL);
    assert_true(
        status == RS_ERR_CANCELLED || status == RS_ERR_ARGUMENT || status == RS_ERR_STALLED);
    job_end(&j);
}

static void status_says_whether_it_runs(void **state)
{
    (void)state;
    job j;
    char *text;
    job_begin(&j);
    assert_int_equal(rs_control_status(folder, &text), RS_OK);
    assert_non_null(strstr(text, "\"running\": true"));
    assert_non_null(strstr(text, "\"step\": 3"));
    free(text);
    assert_int_equal(rs_control_stop(folder, true), RS_OK);
    assert_int_equal(rs_control_status(folder, &text), RS_OK);
    assert_non_null(strstr(text, "\"running\": false"));
    free(text);
    job_end(&j);
    unlink(inside("status.json"));
    assert_int_equal(rs_control_status(folder, &text), RS_ERR_NOT_FOUND);
}

static void nonsense_is_refused_and_leftovers_are_removed(void **state)
{
    (void)state;
    rs_control *control;
    rs_control_request request;
    assert_int_equal(rs_control_open(folder, &control), RS_OK);
    assert_int_equal(rs_control_replace(folder, "requests/0-a-1.request", "not json"), RS_OK);
    assert_int_equal(rs_control_replace(folder, "requests/1-a-1.request",
                         "{\"request\":\"switch\",\"layout\":\"dp=2\"}"),
        RS_OK);
    assert_true(rs_control_poll(control, &request));
    assert_string_equal(request.layout, "dp=2");
    assert_int_equal(access(inside("requests/0-a-1.request.answer"), F_OK), 0);
    assert_int_equal(access(inside("requests/0-a-1.request"), F_OK), -1);
    rs_control_close(control);
    assert_int_equal(rs_control_open(folder, &control), RS_OK);
    rs_control_close(control);
    assert_int_equal(rmdir(inside("requests")), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_claim_at_a_time),
        cmocka_unit_test(an_earlier_run_is_not_overwritten),
        cmocka_unit_test(nobody_there),
        cmocka_unit_test(requests_are_answered),
        cmocka_unit_test(a_job_that_ends_is_not_waited_for),
        cmocka_unit_test(status_says_whether_it_runs),
        cmocka_unit_test(nonsense_is_refused_and_leftovers_are_removed),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
