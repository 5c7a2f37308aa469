/* Threads that stand for the ranks of a group: they meet, and reductions add in the order of ranks.
 */
#ifndef TESTS_SUPPORT_MEETING_H
#define TESTS_SUPPORT_MEETING_H

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/status.h"

#define MEETING_RANKS 12 /* at most */

/* What each rank brings stands in `items`. The barrier is its user's to make and destroy. */
typedef struct meeting {
    int count;
    pthread_barrier_t barrier;
    void *items[MEETING_RANKS];
    int64_t counts[MEETING_RANKS];
    float *result;
} meeting;

/* The sum, or the maximum, of all ranks' values; RS_ERR_PEER on all if they brought unlike numbers
 * of them. Collective. */
static inline rs_status meeting_reduce(
    meeting *g, int me, float *values, int64_t count, bool maximum)
{
    g->items[me] = values;
    g->counts[me] = count;
    pthread_barrier_wait(&g->barrier);
    if (me == 0) {
        g->result = malloc((size_t)count * sizeof *g->result);
        memcpy(g->result, values, (size_t)count * sizeof *g->result);
        for (int r = 1; r < g->count; r++)
            for (int64_t i = 0; i < count && g->counts[r] == count; i++) {
                float other = ((const float *)g->items[r])[i];
                g->result[i] = maximum ? fmaxf(g->result[i], other) : g->result[i] + other;
            }
    }
    pthread_barrier_wait(&g->barrier);
    memcpy(values, g->result, (size_t)count * sizeof *values);
    rs_status status = g->counts[0] == count ? RS_OK : RS_ERR_PEER;
    pthread_barrier_wait(&g->barrier);
    if (me == 0)
        free(g->result);
    return status;
}

#endif
