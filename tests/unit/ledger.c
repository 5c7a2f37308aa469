/*
 * Ledgers: what a rank wrote is found again, a note or a slot under way is told from a whole one, a
 * damaged or foreign file is refused, and the file goes with its arena.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "reshard/ledger.h"
#include "support/keeper.h"

static const rs_ledger_shape shape = {.work_bytes = 10000, .slots = 3, .slot_bytes = 5000};

static void keeps_content(void **state)
{
    (void)state;
    rs_ledger *l;
    assert_int_equal(rs_ledger_create(keeper, 2, 1, &shape, false, &l), RS_OK);
    rs_ledger *again;
    assert_int_equal(rs_ledger_create(keeper, 2, 1, &shape, false, &again), RS_ERR_EXISTS);
    for (int w = 0; w < RS_LEDGER_WORDS; w++)
        assert_int_equal(rs_ledger_get(l, (rs_ledger_word)w), 0);
    rs_ledger_settle(l, 7);
    rs_ledger_set(l, RS_LEDGER_READY, 8);
    assert_int_equal((uintptr_t)rs_ledger_work(l) % 4096, 0);
    memset(rs_ledger_work(l), 0x5a, 10000);
    for (int s = 0; s < 3; s++)
        memset(rs_ledger_journal(l, s), s + 1, 5000);
    rs_ledger_begin_slot(l, 0, 0, 4);
    rs_ledger_begin_slot(l, 1, 4, 9);
    rs_ledger_begin_slot(l, 2, 9, 9);
    rs_ledger_open_piece(l, 1, 4);
    rs_ledger_close_piece(l, 1, 4);
    rs_ledger_open_piece(l, 1, 5);
    assert_int_equal(rs_ledger_set_pieces(l, 77), RS_OK);
    rs_ledger_close(l);

    assert_int_equal(rs_ledger_open(keeper, 2, 1, false, &l), RS_OK);
    assert_int_equal(rs_ledger_get(l, RS_LEDGER_READY), 8);
    assert_int_equal(rs_ledger_get(l, RS_LEDGER_STEP), 7);
    assert_int_equal(((unsigned char *)rs_ledger_work(l))[9999], 0x5a);
    assert_int_equal(((unsigned char *)rs_ledger_journal(l, 2))[4999], 3);
    assert_int_equal(rs_ledger_shape_of(l)->slots, 3);
    assert_int_equal(rs_ledger_shape_of(l)->pieces, 77);
    rs_ledger_progress p;
    assert_int_equal(rs_ledger_look(l, 0, &p), RS_OK);
    assert_true(p.next == 0 && p.end == 4 && !p.open);
    assert_int_equal(rs_ledger_look(l, 1, &p), RS_OK);
    assert_true(p.next == 5 && p.end == 9 && p.open);
    assert_int_equal(rs_ledger_look(l, 2, &p), RS_OK);
    assert_true(p.next == 9 && p.end == 9 && !p.open);
    rs_ledger_close(l);
    assert_int_equal(rs_ledger_open(keeper, 2, 1, true, &l), RS_OK);
    assert_int_equal(rs_ledger_set_pieces(l, 78), RS_ERR_MISMATCH);
    rs_ledger_begin_slot(l, 1, 4, 5);
    rs_ledger_open_piece(l, 1, 9);
    assert_int_equal(rs_ledger_look(l, 1, &p), RS_ERR_MALFORMED);
    assert_int_equal(rs_ledger_punch(l), RS_OK);
    assert_int_equal(((unsigned char *)rs_ledger_work(l))[9999], 0);
    assert_int_equal(rs_ledger_reserve(l), RS_OK);
    rs_ledger_close(l);
    assert_int_equal(rs_arena_delete(keeper, 2, 1, NULL), RS_OK);
    assert_int_equal(rs_ledger_open(keeper, 2, 1, false, &l), RS_ERR_NOT_FOUND);
}

static void notes(void **state)
{
    (void)state;
    rs_ledger *l;
    double a[3] = {1, 2, 3}, found[3];
    assert_int_equal(rs_ledger_create(keeper, 0, 0, &shape, true, &l), RS_OK);
    assert_false(rs_ledger_read_note(l, 0, found, sizeof found));
    rs_ledger_write_note(l, 5, a, sizeof a);
    a[0] = 9;
    rs_ledger_write_note(l, 6, a, sizeof a);
    assert_true(rs_ledger_read_note(l, 5, found, sizeof found));
    assert_true(found[0] == 1 && found[2] == 3);
    assert_true(rs_ledger_read_note(l, 6, found, sizeof found) && found[0] == 9);
    assert_false(rs_ledger_read_note(l, 7, found, sizeof found));
    assert_false(rs_ledger_read_note(l, 6, found, 8));
    rs_ledger_close(l);
    /* One that is half written is none, and the other stays. */
    char path[128];
    snprintf(path, sizeof path, "%s/reshard-job-g0-r0.ledger", folder);
    int fd = open(path, O_RDWR);
    unsigned char byte;
    /* Words and the cut's hash, then the note of even steps: its data. */
    off_t at = 4096 + RS_LEDGER_WORDS * 8 + 8 + 16 + 3;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
    assert_int_equal(rs_ledger_open(keeper, 0, 0, false, &l), RS_OK);
    assert_false(rs_ledger_read_note(l, 6, found, sizeof found));
    assert_true(rs_ledger_read_note(l, 5, found, sizeof found));
    rs_ledger_close(l);
    assert_int_equal(rs_arena_delete(keeper, 0, 0, NULL), RS_OK);
}

/* Every byte of the header, changed: refused. */
static void damage(void **state)
{
    (void)state;
    rs_ledger *l;
    char path[128];
    assert_int_equal(rs_ledger_create(keeper, 0, 3, &shape, false, &l), RS_OK);
    rs_ledger_close(l);
    snprintf(path, sizeof path, "%s/reshard-job-g0-r3.ledger", folder);
    int fd = open(path, O_RDWR);
    for (off_t at = 0; at < 144; at++) {
        unsigned char byte, spoilt;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        spoilt = byte ^ 0x10;
        assert_int_equal(pwrite(fd, &spoilt, 1, at), 1);
        rs_status status = rs_ledger_open(keeper, 0, 3, false, &l);
        if (status == RS_OK)
            fail_msg("byte %lld of the header, changed, is not noticed", (long long)at);
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    assert_int_equal(rs_ledger_open(keeper, 0, 3, false, &l), RS_OK);
    rs_ledger_close(l);
    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_int_equal(rs_ledger_open(keeper, 0, 3, false, &l), RS_ERR_MALFORMED);
    close(fd);
    assert_int_equal(rs_arena_delete(keeper, 0, 3, NULL), RS_OK);
    rs_ledger_shape wrong = shape;
    wrong.slots = 65;
    assert_int_equal(rs_ledger_create(keeper, 0, 3, &wrong, false, &l), RS_ERR_ARGUMENT);
    wrong = shape;
    wrong.work_bytes = INT64_MAX - 10;
    assert_int_equal(rs_ledger_create(keeper, 0, 3, &wrong, false, &l), RS_ERR_OVERFLOW);
    wrong.work_bytes = (int64_t)1 << 60;
    assert_int_equal(rs_ledger_create(keeper, 0, 3, &wrong, false, &l), RS_ERR_BUDGET);
    /* What needs no room yet can be had; addresses it needs, of which the thread sanitizer leaves
     * few. */
    wrong.work_bytes = (int64_t)1 << 38;
    assert_int_equal(rs_ledger_create(keeper, 0, 3, &wrong, true, &l), RS_OK);
    rs_ledger_close(l);
    assert_int_equal(rs_arena_delete(keeper, 0, 3, NULL), RS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_content),
        cmocka_unit_test(notes),
        cmocka_unit_test(damage),
    };
    return cmocka_run_group_tests(tests, open_keeper, close_keeper);
}
