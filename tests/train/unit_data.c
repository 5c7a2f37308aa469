/* Samples against the definition, and how a step's sequences are dealt to replicas. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/data.h"

static char path[64];

static void write_file(int64_t bytes)
{
    snprintf(path, sizeof path, "/tmp/reshard-unit-data-%ld", (long)getpid());
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int64_t i = 0; i < bytes; i++)
        fputc((int)((i * 7 + i / 251) % 250), file);
    fclose(file);
}

static uint8_t byte_at(int64_t i)
{
    return (uint8_t)((i * 7 + i / 251) % 250);
}

static void samples_follow_the_definition(void **state)
{
    (void)state;
    static const int64_t sizes[] = {9, 10, 100, 1009};
    enum { SEQ = 8, COUNT = 3 };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        rs_data *data;
        uint8_t tokens[COUNT * SEQ], targets[COUNT * SEQ];
        write_file(sizes[s]);
        assert_int_equal(rs_data_open(path, SEQ, 256, &data), RS_OK);
        for (int64_t first = 0; first < 400; first += 37) {
            assert_int_equal(rs_data_read(data, first, COUNT, tokens, targets), RS_OK);
            for (int64_t i = 0; i < COUNT; i++)
                for (int64_t t = 0; t < SEQ; t++) {
                    int64_t at = (first + i) * SEQ % (sizes[s] - SEQ) + t;
                    assert_int_equal(tokens[i * SEQ + t], byte_at(at));
                    assert_int_equal(targets[i * SEQ + t], byte_at(at + 1));
                }
        }
        rs_data_close(data);
    }
    unlink(path);
}

static void huge_sample_numbers_do_not_overflow(void **state)
{
    (void)state;
    enum { SEQ = 8 };
    rs_data *data;
    uint8_t tokens[SEQ], targets[SEQ];
    write_file(1009);
    int64_t number = INT64_MAX / 2;
    assert_int_equal(rs_data_open(path, SEQ, 256, &data), RS_OK);
    assert_int_equal(rs_data_read(data, number, 1, tokens, targets), RS_OK);
    int64_t at = (int64_t)((__int128)number * SEQ % (1009 - SEQ));
    assert_int_equal(tokens[0], byte_at(at));
    rs_data_close(data);
    unlink(path);
}

static void bad_files_are_refused_with_reasons(void **state)
{
    (void)state;
    rs_data *data;
    uint8_t tokens[8], targets[8];
    write_file(8);
    assert_int_equal(rs_data_open(path, 8, 256, &data), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "has 8 bytes"));
    assert_non_null(strstr(rs_error_message(), "needs 9"));
    assert_int_equal(rs_data_open("/nowhere/at/all", 8, 256, &data), RS_ERR_NOT_FOUND);
    write_file(64);
    assert_int_equal(rs_data_open(path, 8, 14, &data), RS_OK);
    assert_int_equal(rs_data_read(data, 0, 1, tokens, targets), RS_ERR_MISMATCH);
    assert_non_null(strstr(rs_error_message(), "byte 2 has value 14"));
    rs_data_close(data);
    assert_int_equal(rs_data_open(path, 8, 256, &data), RS_OK);
    assert_int_equal(truncate(path, 20), 0);
    assert_int_equal(rs_data_read(data, 3, 1, tokens, targets), RS_ERR_IO);
    assert_non_null(strstr(rs_error_message(), "it had 64 bytes"));
    rs_data_close(data);
    unlink(path);
}

static void every_sequence_is_dealt_once(void **state)
{
    (void)state;
    for (int64_t batch = 1; batch <= 17; batch++)
        for (int64_t micro = 1; micro <= batch; micro++)
            for (int replicas = 1; replicas <= 9; replicas++) {
                int64_t next = 0, least = INT64_MAX, most = 0, sequence = 0;
                for (int dp = 0; dp < replicas; dp++) {
                    int64_t first, count, begin, end;
                    rs_batch_deal(batch, micro, replicas, dp, &first, &count);
                    assert_int_equal(first, next);
                    next += count;
                    least = count < least ? count : least;
                    most = count > most ? count : most;
                    for (int64_t i = first; i < first + count; i++) {
                        rs_batch_range(batch, micro, i, &begin, &end);
                        assert_int_equal(begin, sequence);
                        assert_true(end > begin && end - begin <= micro);
                        sequence = end;
                    }
                }
                assert_int_equal(sequence, batch);
                assert_true(most - least <= 1);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_follow_the_definition),
        cmocka_unit_test(huge_sample_numbers_do_not_overflow),
        cmocka_unit_test(bad_files_are_refused_with_reasons),
        cmocka_unit_test(every_sequence_is_dealt_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
