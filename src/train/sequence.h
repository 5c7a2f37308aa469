/*
 * Who has which tokens of a sequence under context parallelism, and how what belongs to tokens is
 * brought from one order into another. All functions are local and cannot fail.
 *
 * A sequence is cut into 2 n parts whose sizes differ by one at most; rank r of n has parts r and
 * 2 n - 1 - r. A token's attention costs in proportion to its position, so every rank has about as
 * much to do. Ranks may have no token.
 */
#ifndef RS_TRAIN_SEQUENCE_H
#define RS_TRAIN_SEQUENCE_H

#include <stdint.h>

/* {T, 1, 0}: a rank that has all. */
typedef struct rs_sequence {
    int64_t tokens; /* of the whole sequence */
    int ranks;
    int rank;
} rs_sequence;

/* Positions begin .. end-1. */
typedef struct rs_positions {
    int64_t begin;
    int64_t end;
} rs_positions;

/* The positions of a rank, ascending; where both parts meet, the second range is empty. */
void rs_sequence_positions(const rs_sequence *sequence, int rank, rs_positions out[2]);

/* How many they are: its tokens of each sequence. */
int64_t rs_sequence_own(const rs_sequence *sequence, int rank);

/* `own` [batch, own tokens], which may be `whole` [batch, tokens], gets this rank's tokens. */
void rs_sequence_pick(
    const rs_sequence *sequence, int64_t batch, const uint8_t *whole, uint8_t *own);

/* Between `whole` [batch, tokens, width] and the tokens of a rank, [batch, own tokens, width]. */
void rs_sequence_pack(const rs_sequence *sequence, int rank, int64_t batch, int64_t width,
    const float *whole, float *own);
void rs_sequence_unpack(const rs_sequence *sequence, int rank, int64_t batch, int64_t width,
    const float *own, float *whole);

#endif
