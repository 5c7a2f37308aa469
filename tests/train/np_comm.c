/* Sums over ranks: the same bits everywhere, those of adding in the order of ranks. Run on 1 2 3 5
 * 8 ranks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "np/check.h"
#include "train/comm.h"
#include "train/comm_sum.h"

#define EXPECT(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition))                                                                          \
            complain(__LINE__, __VA_ARGS__);                                                       \
    } while (0)

/* Values whose sum depends on the order of adding. */
static float value_of(int r, int64_t i)
{
    uint32_t z = (uint32_t)i * 2654435761u ^ (uint32_t)(r + 1) * 0x9e3779b9u;
    z ^= z >> 15;
    z *= 2246822519u;
    z ^= z >> 13;
    return ldexpf((float)(int32_t)z, (int)(z % 17) - 40);
}

static float sum_of(int64_t i)
{
    float sum = value_of(0, i);
    for (int r = 1; r < ranks; r++)
        sum += value_of(r, i);
    return sum;
}

static void fill(float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = value_of(rank, i);
}

static void check_sum(rs_ordered *o, float *values, int64_t count)
{
    fill(values, count);
    rs_ordered_sum(o, values, count);
    for (int64_t i = 0; i < count; i++)
        if (values[i] != sum_of(i)) {
            EXPECT(false, "sum %lld of %lld is %g, wanted %g", (long long)i, (long long)count,
                (double)values[i], (double)sum_of(i));
            return;
        }
}

static void check_maximum(rs_ordered *o, float *values, int64_t count)
{
    fill(values, count);
    rs_ordered_maximum(o, values, count);
    for (int64_t i = 0; i < count; i++) {
        float most = value_of(0, i);
        for (int r = 1; r < ranks; r++)
            most = fmaxf(most, value_of(r, i));
        if (values[i] != most) {
            EXPECT(false, "maximum %lld of %lld", (long long)i, (long long)count);
            return;
        }
    }
}

/* Uneven pieces, some empty; scattered, then gathered through two spans with a hole between them.
 */
static void check_pieces(rs_ordered *o, float *values, int64_t count)
{
    int64_t *bounds = calloc((size_t)ranks + 1, sizeof *bounds);
    for (int r = 0; r < ranks; r++)
        bounds[r + 1] = r % 3 == 1 ? bounds[r] : (count * (r + 1)) / ranks;
    bounds[ranks] = count;
    fill(values, count);
    rs_ordered_scatter(o, values, bounds);
    for (int64_t i = 0; i < count; i++) {
        bool mine = i >= bounds[rank] && i < bounds[rank + 1];
        float wanted = mine ? sum_of(i) : value_of(rank, i);
        if (values[i] != wanted) {
            EXPECT(false, "scattered %lld of %lld", (long long)i, (long long)count);
            break;
        }
    }
    int64_t cut = count / 3, hole = 5;
    memmove(values + cut + hole, values + cut, (size_t)(count - cut) * sizeof *values);
    rs_span spans[] = {{0, cut, values}, {cut, count, values + cut + hole}};
    rs_ordered_gather(o, spans, 2, bounds, sizeof *values);
    for (int64_t i = 0; i < count; i++)
        if (values[i < cut ? i : i + hole] != sum_of(i)) {
            EXPECT(false, "gathered %lld of %lld", (long long)i, (long long)count);
            break;
        }
    free(bounds);
}

static void check_agreement(void)
{
    EXPECT(rs_comm_agree(MPI_COMM_WORLD, RS_OK) == RS_OK, "all well is not agreed");
    int first = ranks / 2, second = ranks - 1;
    rs_status mine = RS_OK;
    if (rank == first || rank == second)
        mine = rs_error_set(rank == first ? RS_ERR_BUDGET : RS_ERR_IO, "trouble %d", rank);
    rs_status status = rs_comm_agree(MPI_COMM_WORLD, mine);
    char wanted[64];
    snprintf(wanted, sizeof wanted, "rank %d: trouble %d", first, first);
    EXPECT(status == RS_ERR_BUDGET, "status %d", (int)status);
    EXPECT(strcmp(rs_error_message(), wanted) == 0, "\"%s\"", rs_error_message());
}

int main(void)
{
    static const int64_t counts[] = {0, 1, 7, 2048, 2049, 100003, 1500007};
    rs_ordered ordered;
    check_begin();
    float *values = calloc(1500007 + 16, sizeof *values);
    rs_status status = rs_ordered_init(&ordered, MPI_COMM_WORLD);
    EXPECT(status == RS_OK && values != NULL, "no memory");
    for (size_t i = 0; i < sizeof counts / sizeof *counts && !failed; i++) {
        check_sum(&ordered, values, counts[i]);
        check_maximum(&ordered, values, counts[i]);
        check_pieces(&ordered, values, counts[i]);
    }
    check_agreement();
    rs_ordered_fini(&ordered);
    free(values);
    return check_end("all sums the same");
}
