/*
 * Runs of positions: sorted, found by binary search. Whatever ZeRO cuts, and however, is a list of
 * them, so that what moves and sums knows neither tensors nor cuts.
 */
#include "train/runs.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/memory.h"
#include "base/search.h"

void rs_runs_fini(rs_runs *runs)
{
    free(runs->items);
    memset(runs, 0, sizeof *runs);
}

rs_status rs_runs_add(rs_runs *runs, const rs_run *run)
{
    if (run->begin >= run->end)
        return RS_OK;
    rs_status status = RS_LIST_RESERVE_ONE(runs);
    if (status == RS_OK)
        runs->items[runs->count++] = *run;
    return status;
}

static int compare(const void *a, const void *b)
{
    const rs_run *x = a, *y = b;
    return rs_compare(x->begin, y->begin);
}

void rs_runs_sort(rs_runs *runs, size_t size)
{
    size_t kept = 0;
    if (runs->count == 0)
        return;
    qsort(runs->items, runs->count, sizeof *runs->items, compare);
    for (size_t i = 1; i < runs->count; i++) {
        rs_run *last = &runs->items[kept];
        const rs_run *run = &runs->items[i];
        char *behind =
            last->data != NULL ? last->data + (last->end - last->begin) * (int64_t)size : NULL;
        if (run->begin == last->end && run->block == last->block && run->data == behind)
            last->end = run->end;
        else
            runs->items[++kept] = *run;
    }
    runs->count = kept + 1;
}

int64_t rs_runs_elements(const rs_runs *runs)
{
    int64_t count = 0;
    for (size_t i = 0; i < runs->count; i++)
        count += runs->items[i].end - runs->items[i].begin;
    return count;
}

size_t rs_runs_from(const rs_runs *runs, int64_t position)
{
    return RS_SEARCH(runs->count, k, runs->items[k].begin < position);
}

const rs_run *rs_runs_find(const rs_runs *runs, int64_t position)
{
    size_t next = rs_runs_from(runs, position + 1);
    const rs_run *run = next > 0 ? &runs->items[next - 1] : NULL;
    return run != NULL && position < run->end ? run : NULL;
}

void rs_runs_place(rs_runs *runs, size_t size, void *data)
{
    char *next = data;
    for (size_t i = 0; i < runs->count; i++) {
        rs_run *run = &runs->items[i];
        run->data = next;
        next += (run->end - run->begin) * (int64_t)size;
    }
}

void *rs_runs_at(const rs_runs *runs, size_t size, int64_t position)
{
    const rs_run *run = rs_runs_find(runs, position);
    return run != NULL ? run->data + (position - run->begin) * (int64_t)size : NULL;
}

void rs_runs_read(const rs_runs *runs, size_t size, int64_t begin, int64_t end, void *to)
{
    const rs_run *run = begin < end ? rs_runs_find(runs, begin) : NULL;
    for (int64_t at = begin; run != NULL && at < end; at = run++->end) {
        const char *from = run->data + (at - run->begin) * (int64_t)size;
        char *into = (char *)to + (at - begin) * (int64_t)size;
        if (into != from)
            memcpy(into, from, (size_t)(rs_min64(end, run->end) - at) * size);
    }
}

void rs_runs_write(const rs_runs *runs, size_t size, int64_t begin, int64_t end, const void *from)
{
    const rs_run *run = begin < end ? rs_runs_find(runs, begin) : NULL;
    for (int64_t at = begin; run != NULL && at < end; at = run++->end)
        memcpy(run->data + (at - run->begin) * (int64_t)size,
            (const char *)from + (at - begin) * (int64_t)size,
            (size_t)(rs_min64(end, run->end) - at) * size);
}
