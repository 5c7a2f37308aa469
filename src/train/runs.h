/*
 * Runs: where the elements of a rank's local vector lie. The local vector is the rank's local
 * concatenation of the dense tensors, then that of the experts (layout.h); a position in it means
 * the same parameter for every role and for every rank with the same slice of the model. What a
 * rank has of a role, or is to have, is a list of runs. All functions are local.
 */
#ifndef RS_TRAIN_RUNS_H
#define RS_TRAIN_RUNS_H

#include <stddef.h>
#include <stdint.h>

#include "reshard/status.h"

/* Positions begin .. end-1, all of one block; the first of them lies at `data`. */
typedef struct rs_run {
    int64_t begin;
    int64_t end;
    int block;
    char *data; /* NULL: no memory is meant */
} rs_run;

/* Starts as {0}. Ascending and disjoint, once rs_runs_sort was called. */
typedef struct rs_runs {
    rs_run *items;
    size_t count;
    size_t capacity;
} rs_runs;

void rs_runs_fini(rs_runs *runs);

/* Appends a run; an empty one is left out. */
rs_status rs_runs_add(rs_runs *runs, const rs_run *run) RS_MUST_CHECK;

/* Puts them in order and joins those of one block that follow each other, in memory too, where
 * elements are of `size` bytes. */
void rs_runs_sort(rs_runs *runs, size_t size);

/* Elements of all runs. */
int64_t rs_runs_elements(const rs_runs *runs);

/* The run that has `position`; NULL if none has. */
const rs_run *rs_runs_find(const rs_runs *runs, int64_t position);

/* Lets the runs lie one behind the other from `data` on. */
void rs_runs_place(rs_runs *runs, size_t size, void *data);

/* The runs begin of which lie at or behind `position` begin with this one. */
size_t rs_runs_from(const rs_runs *runs, int64_t position);

/* Where `position` lies, of elements of `size` bytes; NULL if nowhere. */
void *rs_runs_at(const rs_runs *runs, size_t size, int64_t position);

/* Copies positions begin .. end-1, which the runs have, to or from contiguous memory. */
void rs_runs_read(const rs_runs *runs, size_t size, int64_t begin, int64_t end, void *to);
void rs_runs_write(const rs_runs *runs, size_t size, int64_t begin, int64_t end, const void *from);

#endif
