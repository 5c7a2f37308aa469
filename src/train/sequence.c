/* Balanced parts of a causal sequence, and copies between orders of its tokens. */
#include "train/sequence.h"

#include <string.h>

static int64_t border(const rs_sequence *s, int part)
{
    return (int64_t)((__int128)s->tokens * part / (2 * s->ranks));
}

void rs_sequence_positions(const rs_sequence *s, int rank, rs_positions out[2])
{
    int mirror = 2 * s->ranks - 1 - rank;
    out[0] = (rs_positions){border(s, rank), border(s, rank + 1)};
    out[1] = (rs_positions){border(s, mirror), border(s, mirror + 1)};
    if (out[0].end == out[1].begin)
        out[0].end = out[1].begin = out[1].end;
}

int64_t rs_sequence_own(const rs_sequence *s, int rank)
{
    rs_positions at[2];
    rs_sequence_positions(s, rank, at);
    return at[0].end - at[0].begin + at[1].end - at[1].begin;
}

/* Tokens of a rank that follow each other: numbers in the whole batch and among its own. */
typedef struct run {
    int64_t whole;
    int64_t own;
    int64_t count;
} run;

static run run_of(const rs_sequence *s, const rs_positions at[2], int64_t sequence, int part)
{
    int64_t first = at[0].end - at[0].begin;
    int64_t own = first + at[1].end - at[1].begin;
    return (run){sequence * s->tokens + at[part].begin, sequence * own + (part > 0 ? first : 0),
        at[part].end - at[part].begin};
}

void rs_sequence_pick(const rs_sequence *s, int64_t batch, const uint8_t *whole, uint8_t *own)
{
    rs_positions at[2];
    rs_sequence_positions(s, s->rank, at);
    for (int64_t i = 0; i < 2 * batch; i++) {
        run r = run_of(s, at, i / 2, (int)(i % 2));
        memmove(own + r.own, whole + r.whole, (size_t)r.count);
    }
}

void rs_sequence_pack(
    const rs_sequence *s, int rank, int64_t batch, int64_t width, const float *whole, float *own)
{
    rs_positions at[2];
    rs_sequence_positions(s, rank, at);
    for (int64_t i = 0; i < 2 * batch; i++) {
        run r = run_of(s, at, i / 2, (int)(i % 2));
        memcpy(
            own + r.own * width, whole + r.whole * width, (size_t)(r.count * width) * sizeof *own);
    }
}

void rs_sequence_unpack(
    const rs_sequence *s, int rank, int64_t batch, int64_t width, const float *own, float *whole)
{
    rs_positions at[2];
    rs_sequence_positions(s, rank, at);
    for (int64_t i = 0; i < 2 * batch; i++) {
        run r = run_of(s, at, i / 2, (int)(i % 2));
        memcpy(
            whole + r.whole * width, own + r.own * width, (size_t)(r.count * width) * sizeof *own);
    }
}
