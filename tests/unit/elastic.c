/*
 * The record, the fence and the survey: a record is read as it was written and never half; a fence
 * ends the process that writes to an arena, and no other; a survey finds the one step to which all
 * ranks can be taken, and refuses a state that is not whole.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "move/arena_table.h"
#include "reshard/elastic.h"
#include "support/keeper.h"

static rs_segment some[] = {{0, 100}, {3, 4096}};
static const rs_segment_list segments = {some, 2, 2};
static const rs_ledger_shape shape = {.work_bytes = 100, .slots = 1, .slot_bytes = 100};

static void records(void **state)
{
    (void)state;
    rs_record r, found;
    assert_int_equal(rs_record_read(folder, &found), RS_ERR_NOT_FOUND);
    rs_record_init(&r);
    assert_int_equal(strlen(r.boot), 36);
    r.epoch = 3;
    snprintf(r.job, sizeof r.job, "some-job");
    r.generation = 12;
    snprintf(r.layout, sizeof r.layout, "tp=2,dp=2");
    r.numbering_count = 4;
    r.numbering = calloc(4, sizeof *r.numbering);
    for (int i = 0; i < 4; i++)
        r.numbering[i] = 3 - i;
    r.run = strdup("{\"training\":{\"lr\":0.25}}");
    assert_int_equal(rs_record_write(folder, &r), RS_OK);
    assert_int_equal(rs_record_read(folder, &found), RS_OK);
    assert_int_equal(found.epoch, 3);
    assert_string_equal(found.job, "some-job");
    assert_string_equal(found.boot, r.boot);
    assert_string_equal(found.folder, "");
    assert_int_equal(found.generation, 12);
    assert_int_equal(found.building, -1);
    assert_string_equal(found.layout, "tp=2,dp=2");
    assert_int_equal(found.numbering_count, 4);
    assert_int_equal(found.numbering[0], 3);
    assert_non_null(strstr(found.run, "0.25"));
    assert_int_equal(rs_record_check_boot(&found), RS_OK);
    found.boot[0] ^= 1;
    assert_int_equal(rs_record_check_boot(&found), RS_ERR_MISMATCH);
    rs_record_fini(&found);

    /* A record that does not say all is none. */
    char path[128];
    snprintf(path, sizeof path, "%s/state.json", folder);
    FILE *file = fopen(path, "w");
    fputs("{\"version\":1,\"epoch\":1}", file);
    fclose(file);
    assert_int_equal(rs_record_read(folder, &found), RS_ERR_MALFORMED);
    file = fopen(path, "w");
    fputs("{\"version\":1,\"epo", file);
    fclose(file);
    assert_int_equal(rs_record_read(folder, &found), RS_ERR_MALFORMED);
    assert_int_equal(rs_record_write(folder, &r), RS_OK);
    assert_int_equal(rs_record_read(folder, &found), RS_OK);
    rs_record_fini(&found);

    /* Where it cannot be written, the record is named, not what is written aside. */
    assert_int_not_equal(rs_record_write("nowhere", &r), RS_OK);
    assert_non_null(strstr(rs_error_message(), "cannot create nowhere/state.json: "));
    rs_record_fini(&r);
    assert_int_equal(rs_record_remove(folder), RS_OK);
    assert_int_equal(rs_record_remove(folder), RS_OK);
    assert_int_equal(rs_record_read(folder, &found), RS_ERR_NOT_FOUND);
}

typedef rs_status (*opener)(rs_keeper *keeper, int generation, int rank, rs_arena **out);

static rs_status open_as_owner(rs_keeper *of, int generation, int rank, rs_arena **out)
{
    return rs_arena_open(of, generation, rank, true, out);
}

/* A child that maps an arena for writing, and hangs. */
static pid_t start_process(opener open_arena, int generation, int rank)
{
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        rs_arena *arena;
        if (open_arena(keeper, generation, rank, &arena) != RS_OK || write(ready[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return pid;
}

static pid_t start_writer(int generation, int rank)
{
    return start_process(open_as_owner, generation, rank);
}

static void make_arena(int generation, int rank)
{
    rs_arena *arena;
    assert_int_equal(
        rs_arena_create(keeper, generation, rank, &segments, NULL, NULL, 0, &arena), RS_OK);
    assert_int_equal(rs_arena_commit(arena, 0), RS_OK);
    rs_arena_close(arena);
}

/* Who fills an arena beside its owner: one at a time, nobody once it is committed, and the fence
 * ends it. */
static void fences_guests(void **state)
{
    (void)state;
    rs_arena *arena, *guest;
    long killed = -1;
    int status;
    assert_int_equal(rs_arena_create(keeper, 6, 0, &segments, NULL, NULL, 0, &arena), RS_OK);
    rs_arena_close(arena);
    pid_t pid = start_process(rs_arena_open_guest, 6, 0);
    assert_int_equal(rs_arena_open(keeper, 6, 0, true, &arena), RS_OK);
    assert_int_equal(rs_arena_open_guest(keeper, 6, 0, &guest), RS_ERR_EXISTS);
    assert_int_equal(rs_arena_fence(keeper, 6, 0, 0.1, &killed), RS_ERR_ARGUMENT);
    rs_arena_close(arena);
    assert_int_equal(rs_arena_fence(keeper, 6, 0, 10, &killed), RS_OK);
    assert_int_equal(killed, pid);
    assert_int_equal(waitpid(pid, &status, 0), pid);

    assert_int_equal(rs_arena_open(keeper, 6, 0, true, &arena), RS_OK);
    assert_int_equal(rs_arena_open_guest(keeper, 6, 0, &guest), RS_OK);
    unsigned char *there = rs_memory_segment(rs_arena_memory(arena), segments.items[0].segment);
    *(unsigned char *)rs_memory_segment(rs_arena_memory(guest), segments.items[0].segment) = 77;
    assert_int_equal(*there, 77);
    assert_int_equal(rs_arena_commit(guest, 1), RS_ERR_ARGUMENT);
    assert_int_equal(rs_arena_commit(arena, 1), RS_ERR_EXISTS);
    rs_arena_close(guest);
    assert_int_equal(rs_arena_commit(arena, 1), RS_OK);
    assert_int_equal(rs_arena_open_guest(keeper, 6, 0, &guest), RS_ERR_ARGUMENT);
    rs_arena_close(arena);
    assert_int_equal(rs_arena_delete(keeper, 6, 0, NULL), RS_OK);
}

static void fences(void **state)
{
    (void)state;
    long killed = -1;
    int status;
    make_arena(0, 0);
    assert_int_equal(rs_arena_fence(keeper, 0, 0, 1, &killed), RS_OK);
    assert_int_equal(killed, 0);
    assert_int_equal(rs_arena_fence(keeper, 0, 9, 1, &killed), RS_OK);

    /* One that writes, even stopped, is killed; others cannot write beside it, but read. */
    pid_t pid = start_writer(0, 0);
    rs_arena *arena;
    assert_int_equal(rs_arena_open(keeper, 0, 0, true, &arena), RS_ERR_EXISTS);
    assert_int_equal(rs_arena_open(keeper, 0, 0, false, &arena), RS_OK);
    rs_arena_close(arena);
    kill(pid, SIGSTOP);
    assert_int_equal(rs_arena_fence(keeper, 0, 0, 10, &killed), RS_OK);
    assert_int_equal(killed, pid);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(rs_arena_open(keeper, 0, 0, true, &arena), RS_OK);
    assert_int_equal(rs_arena_fence(keeper, 0, 0, 0.1, &killed), RS_ERR_ARGUMENT);
    rs_arena_close(arena);

    /* A process whose start is not the one noted is another: it lives, and the fence gives up. */
    pid = start_writer(0, 0);
    char path[128];
    snprintf(path, sizeof path, "%s/reshard-job-g0-r0.table", folder);
    int fd = open(path, O_RDWR);
    uint64_t start;
    off_t at = (off_t)(offsetof(rs_table_header, writers) + offsetof(rs_table_owner, start));
    assert_int_equal(pread(fd, &start, sizeof start, at), sizeof start);
    start++;
    assert_int_equal(pwrite(fd, &start, sizeof start, at), sizeof start);
    assert_int_equal(rs_arena_fence(keeper, 0, 0, 0.1, &killed), RS_ERR_STALLED);
    assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
    start--;
    assert_int_equal(pwrite(fd, &start, sizeof start, at), sizeof start);
    close(fd);
    make_arena(3, 1);
    rs_fenced fenced;
    assert_int_equal(rs_elastic_fence(keeper, 10, &fenced), RS_OK);
    assert_int_equal(fenced.arenas, 2);
    assert_int_equal(fenced.killed, 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);

    rs_arena_place *places;
    size_t count;
    assert_int_equal(rs_elastic_delete(keeper, -1, 3), RS_OK);
    assert_int_equal(rs_arena_list(keeper, &places, &count), RS_OK);
    assert_int_equal(count, 1);
    assert_true(places[0].generation == 3 && places[0].rank == 1);
    free(places);
    assert_int_equal(rs_elastic_delete(keeper, 3, -1), RS_OK);
    assert_int_equal(rs_arena_list(keeper, &places, &count), RS_OK);
    assert_int_equal(count, 0);
    free(places);
}

static void put(int rank, int64_t ready, int64_t updating, int64_t step, int64_t derived)
{
    rs_ledger *ledger;
    assert_int_equal(rs_ledger_open(keeper, 1, rank, true, &ledger), RS_OK);
    rs_ledger_set(ledger, RS_LEDGER_READY, ready);
    rs_ledger_set(ledger, RS_LEDGER_UPDATING, updating);
    rs_ledger_set(ledger, RS_LEDGER_STEP, step);
    rs_ledger_set(ledger, RS_LEDGER_DERIVED, derived);
    rs_ledger_close(ledger);
}

static void expect_step(int64_t step, int behind)
{
    rs_survey s;
    assert_int_equal(rs_elastic_survey(keeper, 1, 3, &s), RS_OK);
    assert_int_equal(s.step, step);
    assert_int_equal(s.behind, behind);
    rs_survey_fini(&s);
}

/* Ranks whose arenas are gone: what the others show decides about the step. */
static void expect_without(int rank, int64_t step, int behind)
{
    rs_survey s;
    assert_int_equal(rs_arena_delete(keeper, 1, rank, NULL), RS_OK);
    assert_int_equal(rs_elastic_survey(keeper, 1, 3, &s), RS_OK);
    assert_int_equal(s.lost, 1);
    assert_true(s.standings[rank].lost);
    char name[16];
    snprintf(name, sizeof name, "rank %d", rank);
    assert_non_null(strstr(s.reason, name));
    assert_int_equal(s.step, step);
    assert_int_equal(s.behind, behind);
    rs_survey_fini(&s);
}

static void make_world(void)
{
    rs_ledger *ledger;
    for (int r = 0; r < 3; r++) {
        make_arena(1, r);
        assert_int_equal(rs_ledger_create(keeper, 1, r, &shape, false, &ledger), RS_OK);
        rs_ledger_settle(ledger, 4);
        rs_ledger_close(ledger);
    }
}

static void surveys_what_is_left(void **state)
{
    (void)state;
    rs_survey s;
    make_world();
    expect_without(2, 4, 0); /* all stand */
    put(0, 5, 4, 4, 4);      /* one is ready, and nobody can have begun */
    expect_without(2, 4, 0);
    put(1, 5, 4, 4, 4); /* both are, and none has begun: was the third ready? */
    expect_without(2, 4, 0);
    put(1, 5, 5, 4, 4); /* it was: one has begun */
    expect_without(2, 5, 2);
    put(1, 6, 5, 5, 5); /* it was: one has done so, and is ready for the next */
    expect_without(2, 5, 1);
    put(0, 6, 5, 5, 5);
    expect_without(2, 5, 0);
    put(0, 8, 7, 7, 7); /* those that are there still have to fit each other */
    assert_int_equal(rs_elastic_survey(keeper, 1, 3, &s), RS_ERR_MALFORMED);
    assert_int_equal(rs_elastic_delete(keeper, -1, -1), RS_OK);

    /* One that was never committed is lost too; and where nothing is left, there is no state. */
    make_world();
    assert_int_equal(rs_arena_delete(keeper, 1, 0, NULL), RS_OK);
    rs_arena *arena;
    assert_int_equal(rs_arena_create(keeper, 1, 0, &segments, NULL, NULL, 0, &arena), RS_OK);
    rs_arena_close(arena);
    assert_int_equal(rs_elastic_survey(keeper, 1, 3, &s), RS_OK);
    assert_int_equal(s.lost, 1);
    assert_non_null(strstr(s.reason, "never committed"));
    rs_survey_fini(&s);
    assert_int_equal(rs_elastic_delete(keeper, -1, -1), RS_OK);
    assert_int_equal(rs_elastic_survey(keeper, 1, 3, &s), RS_ERR_NOT_FOUND);
}

/* Two hosts, of which each sees its own ranks: together they are judged as one. */
static void looks_are_put_together(void **state)
{
    (void)state;
    rs_survey here, there;
    make_world();
    for (int r = 0; r < 3; r++)
        put(r, 5, r == 2 ? 5 : 4, 4, 4);
    assert_int_equal(rs_elastic_look(keeper, 1, 3, &there), RS_OK);
    assert_int_equal(rs_arena_delete(keeper, 1, 2, NULL), RS_OK);
    assert_int_equal(rs_elastic_look(keeper, 1, 3, &here), RS_OK);
    assert_int_equal(here.lost, 1);
    assert_int_equal(rs_survey_judge(&here), RS_OK);
    assert_int_equal(here.step, 4); /* alone, they do not know that the third was ready */
    here.standings[2] = there.standings[2];
    here.lost = 0;
    assert_int_equal(rs_survey_judge(&here), RS_OK);
    assert_int_equal(here.step, 5);
    assert_int_equal(here.behind, 3);
    rs_survey_fini(&there);
    rs_survey_fini(&here);
    assert_int_equal(rs_elastic_delete(keeper, -1, -1), RS_OK);
    assert_int_equal(rs_elastic_look(keeper, 1, 3, &here), RS_OK); /* a host without ranks */
    assert_int_equal(here.lost, 3);
    assert_int_equal(rs_survey_judge(&here), RS_ERR_NOT_FOUND);
    rs_survey_fini(&here);
}

static void surveys(void **state)
{
    (void)state;
    rs_survey s;
    assert_int_equal(rs_elastic_survey(keeper, 1, 3, &s), RS_ERR_NOT_FOUND);
    make_world();
    expect_step(4, 0);
    put(1, 5, 4, 4, 4); /* some are ready, one is not: nothing has begun */
    put(2, 5, 4, 4, 4);
    expect_step(4, 0);
    put(0, 5, 4, 4, 4); /* all are, and none has begun */
    expect_step(5, 3);
    put(0, 5, 5, 4, 4); /* one updates, one has done so */
    put(1, 5, 5, 5, 4);
    expect_step(5, 2);
    put(0, 5, 5, 5, 5); /* one is ready for the next, one not done with this one's copies */
    put(1, 6, 5, 5, 5);
    put(2, 5, 5, 5, 4);
    expect_step(5, 0);
    put(2, 4, 4, 4, 4); /* one that cannot be: it was never ready for what the others did */
    assert_int_equal(rs_elastic_survey(keeper, 1, 3, &s), RS_ERR_MALFORMED);
    put(2, 8, 7, 7, 7);
    assert_int_equal(rs_elastic_survey(keeper, 1, 3, &s), RS_ERR_MALFORMED);
    assert_int_equal(rs_elastic_delete(keeper, -1, -1), RS_OK);
    /* An arena that was never committed is no state. */
    rs_arena *arena;
    assert_int_equal(rs_arena_create(keeper, 1, 0, &segments, NULL, NULL, 0, &arena), RS_OK);
    rs_arena_close(arena);
    assert_int_equal(rs_elastic_survey(keeper, 1, 1, &s), RS_ERR_NOT_FOUND);
    assert_int_equal(rs_elastic_delete(keeper, 1, -1), RS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records),
        cmocka_unit_test(fences),
        cmocka_unit_test(fences_guests),
        cmocka_unit_test(surveys),
        cmocka_unit_test(surveys_what_is_left),
        cmocka_unit_test(looks_are_put_together),
    };
    return cmocka_run_group_tests(tests, open_keeper, close_keeper);
}
