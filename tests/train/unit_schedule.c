/* Schedules of all ranks of many pipelines, carried out by ranks that block as MPI would let them:
 * a receive waits for its message, a buffer for the receipt of what was sent from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "train/schedule.h"

#define MOST_STAGES 64
#define MOST_MICROS 24

/* A pass of a stage and micro-batch, each way. */
typedef struct passes {
    bool begun[2][MOST_STAGES][MOST_MICROS]; /* what it needs was received */
    bool done[2][MOST_STAGES][MOST_MICROS];  /* what it makes was sent */
} passes;

typedef struct sender {
    size_t turn;
    int64_t sent;
    int stage[2 * MOST_STAGES * MOST_MICROS]; /* which receives each message */
    int64_t micro[2 * MOST_STAGES * MOST_MICROS];
    bool backward[2 * MOST_STAGES * MOST_MICROS];
} sender;

typedef struct pipeline {
    int pp, chunks, stages;
    rs_schedule *schedules;
    sender *senders;
    passes *passes;
} pipeline;

/* The stage that makes what a pass reads, or reads what it makes; -1: none. */
static int other_stage(const pipeline *p, int stage, bool backward, bool source)
{
    int other = backward == source ? stage + 1 : stage - 1;
    return other >= 0 && other < p->stages ? other : -1;
}

/* Does the rank's next turn, if it would not wait. */
static bool advance(pipeline *p, int rank)
{
    const rs_schedule *s = &p->schedules[rank];
    sender *me = &p->senders[rank];
    if (me->turn == s->count)
        return false;
    const rs_turn *t = &s->turns[me->turn];
    int stage = t->chunk * p->pp + rank;
    int source = other_stage(p, stage, t->backward, true);
    int reader = other_stage(p, stage, t->backward, false);
    if (source >= 0 && !p->passes->done[t->backward][source][t->micro])
        return false;
    p->passes->begun[t->backward][stage][t->micro] = true;
    if (reader >= 0 && me->sent >= s->buffers) {
        int64_t old = me->sent - s->buffers;
        if (!p->passes->begun[me->backward[old]][me->stage[old]][me->micro[old]])
            return false;
    }
    if (t->backward)
        assert_true(p->passes->done[0][stage][t->micro]);
    if (reader >= 0) {
        me->stage[me->sent] = reader;
        me->micro[me->sent] = t->micro;
        me->backward[me->sent++] = t->backward;
    }
    assert_false(p->passes->done[t->backward][stage][t->micro]);
    p->passes->done[t->backward][stage][t->micro] = true;
    me->turn++;
    return true;
}

/* Open micro-batches of a chunk never meet in a slot, and one slot less would not do. */
static void check_slots(const rs_schedule *s)
{
    for (int c = 0; c < s->chunks; c++) {
        int64_t opened = 0, closed = 0, most = 1;
        for (size_t i = 0; i < s->count; i++) {
            if (s->turns[i].chunk != c)
                continue;
            assert_int_equal(s->turns[i].micro, s->turns[i].backward ? closed : opened);
            if (s->turns[i].backward)
                closed++;
            else
                opened++;
            most = opened - closed > most ? opened - closed : most;
        }
        assert_int_equal(most, s->slots[c]);
    }
}

/* The sum of the ticks of all passes where each rank does its next pass at the first tick at which
 * what that reads was made before, and, if `bounded`, the buffer that it fills was read before;
 * rank `scarce` has one buffer less. Where all wait for ever: INT64_MAX. */
static int64_t sum_of_ticks(pipeline *p, bool bounded, int scarce)
{
    static int64_t at[2][MOST_STAGES][MOST_MICROS]; /* from 1 on; 0: not done */
    int64_t sum = 0;
    memset(at, 0, sizeof at);
    memset(p->senders, 0, (size_t)p->pp * sizeof *p->senders);
    bool left = true, moved = true;
    for (int64_t tick = 1; left; tick++) {
        if (!moved)
            return INT64_MAX;
        left = moved = false;
        for (int r = 0; r < p->pp; r++) {
            const rs_schedule *s = &p->schedules[r];
            sender *me = &p->senders[r];
            if (me->turn == s->count)
                continue;
            left = true;
            const rs_turn *t = &s->turns[me->turn];
            int stage = t->chunk * p->pp + r, source = other_stage(p, stage, t->backward, true);
            int reader = other_stage(p, stage, t->backward, false);
            int64_t made = source < 0 ? -1 : at[t->backward][source][t->micro];
            int64_t old = me->sent - s->buffers + (r == scarce);
            if (made == 0 || made == tick)
                continue;
            if (bounded && reader >= 0 && old >= 0) {
                int64_t read = at[me->backward[old]][me->stage[old]][me->micro[old]];
                if (read == 0 || read == tick)
                    continue;
            }
            if (reader >= 0) {
                me->stage[me->sent] = reader;
                me->micro[me->sent] = t->micro;
                me->backward[me->sent++] = t->backward;
            }
            at[t->backward][stage][t->micro] = tick;
            sum += tick;
            me->turn++;
            moved = true;
        }
        moved = moved || !left;
    }
    return sum;
}

/* With the buffers that a schedule asks for nobody waits for one; with one less somebody does. */
static void check_buffers(pipeline *p)
{
    int64_t free_sum = sum_of_ticks(p, false, -1);
    assert_true(free_sum < INT64_MAX);
    assert_int_equal(sum_of_ticks(p, true, -1), free_sum);
    for (int r = 0; r < p->pp; r++)
        if (p->schedules[r].buffers > 1)
            assert_true(sum_of_ticks(p, true, r) > free_sum);
}

static void check_pipeline(int pp, int chunks, int64_t micros, int *waits)
{
    pipeline p = {pp, chunks, pp * chunks, NULL, NULL, NULL};
    p.schedules = calloc((size_t)pp, sizeof *p.schedules);
    p.senders = calloc((size_t)pp, sizeof *p.senders);
    p.passes = calloc(1, sizeof *p.passes);
    for (int r = 0; r < pp; r++) {
        assert_int_equal(rs_schedule_init(pp, r, chunks, micros, &p.schedules[r]), RS_OK);
        assert_int_equal(p.schedules[r].count, 2 * chunks * micros);
        check_slots(&p.schedules[r]);
    }
    check_buffers(&p);
    memset(p.senders, 0, (size_t)pp * sizeof *p.senders);
    int64_t left = 2 * (int64_t)p.stages * micros;
    while (left > 0) {
        int64_t before = left;
        /* The slowest first: each rank goes on only when those behind it cannot. */
        for (int r = pp - 1; r >= 0; r--)
            if (advance(&p, r)) {
                left--;
                break;
            }
        if (left == before)
            fail_msg("pp=%d, %d chunks, %d micro-batches: all wait, %d passes are left", pp, chunks,
                (int)micros, (int)left);
        ++*waits;
    }
    for (int r = 0; r < pp; r++)
        rs_schedule_fini(&p.schedules[r]);
    free(p.schedules);
    free(p.senders);
    free(p.passes);
}

static void test_all_end(void **state)
{
    (void)state;
    int turns = 0;
    for (int pp = 1; pp <= 7; pp++)
        for (int chunks = 1; chunks <= 4; chunks++)
            for (int64_t micros = 1; micros <= 17; micros++)
                check_pipeline(pp, chunks, micros, &turns);
    check_pipeline(16, 4, 24, &turns);
    assert_int_equal(turns, 2 * 28 * 10 * 153 + 2 * 16 * 4 * 24);
}

/* With one chunk: pp - rank forward passes ahead at most, then one backward, one forward in turn.
 */
static void test_plain(void **state)
{
    (void)state;
    rs_schedule s;
    for (int rank = 0; rank < 4; rank++) {
        assert_int_equal(rs_schedule_init(4, rank, 1, 6, &s), RS_OK);
        assert_int_equal(s.slots[0], 4 - rank);
        for (int64_t i = 0; i < 12; i++) {
            int64_t ahead = 4 - rank, k = i - ahead;
            bool backward = i >= ahead && (k % 2 == 0 || k >= 2 * (6 - ahead));
            assert_int_equal(s.turns[i].backward, backward);
        }
        rs_schedule_fini(&s);
    }
}

/* Megatron's interleaved order where its condition holds: 2 ranks, 2 chunks, 4 micro-batches. */
static void test_interleaved(void **state)
{
    (void)state;
    static const char *const wanted[2] = {
        "F00 F01 F10 F11 F02 B10 F03 B11 F12 B00 F13 B01 B12 B13 B02 B03 ",
        "F00 F01 F10 B10 F11 B11 F02 B00 F03 B01 F12 B12 F13 B13 B02 B03 "};
    for (int rank = 0; rank < 2; rank++) {
        rs_schedule s;
        char text[256] = "", *end = text;
        assert_int_equal(rs_schedule_init(2, rank, 2, 4, &s), RS_OK);
        for (size_t i = 0; i < s.count; i++) {
            *end++ = s.turns[i].backward ? 'B' : 'F';
            *end++ = (char)('0' + s.turns[i].chunk);
            *end++ = (char)('0' + s.turns[i].micro);
            *end++ = ' ';
        }
        assert_string_equal(text, wanted[rank]);
        rs_schedule_fini(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_end),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_interleaved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
