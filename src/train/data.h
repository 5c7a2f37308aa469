/*
 * Training data: any file as bytes, read by sample number.
 *
 * Which samples make up a step depends on the global batch alone: sample i is the seq + 1 bytes at
 * (i * seq) mod (size - seq), step k (from 1) uses samples (k-1)B .. kB-1. How the step's
 * micro-batches are dealt to data-parallel ranks is here too. All functions are local.
 */
#ifndef RS_TRAIN_DATA_H
#define RS_TRAIN_DATA_H

#include <stdint.h>

#include "reshard/status.h"

typedef struct rs_data rs_data;

/* RS_ERR_ARGUMENT names file, size and need where the file is too short for one sample. */
rs_status rs_data_open(const char *path, int64_t seq, int64_t vocab, rs_data **out) RS_MUST_CHECK;
void rs_data_close(rs_data *data);

/*
 * Reads samples first .. first + count - 1: `tokens` and `targets` get [count, seq] bytes each, the
 * targets one byte further. RS_ERR_MISMATCH names the first byte that is no token of the
 * vocabulary.
 */
rs_status rs_data_read(
    rs_data *data, int64_t first, int64_t count, uint8_t *tokens, uint8_t *targets) RS_MUST_CHECK;

/* The micro-batches of a step are numbered 0 .. ceil(batch / micro) - 1; replica `dp` of `replicas`
 * gets
 * `*count` of them from `*first` on: counts differ by at most one, larger first. */
void rs_batch_deal(
    int64_t batch, int64_t micro, int replicas, int dp, int64_t *first, int64_t *count);

/* Sequences begin .. end-1 of the step are micro-batch `number`. */
void rs_batch_range(int64_t batch, int64_t micro, int64_t number, int64_t *begin, int64_t *end);

#endif
