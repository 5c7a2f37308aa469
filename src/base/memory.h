/*
 * Allocation and growing arrays. All of the library's allocations come through here, so that tests
 * can make the N-th of them fail.
 */
#ifndef RS_BASE_MEMORY_H
#define RS_BASE_MEMORY_H

#include <stddef.h>

#include "reshard/status.h"

/* malloc, zeroed; NULL on failure and for a product that overflows. Sizes of zero give memory. */
void *rs_calloc(size_t count, size_t size) __attribute__((malloc));

/* realloc to count * size; the old block stays valid on failure (NULL). */
void *rs_realloc(void *pointer, size_t count, size_t size);

/*
 * Has the system give large pages to a big block whose pages were not touched yet, which takes it a
 * quarter of the time that small ones take. A wish; smaller blocks stay as they are.
 */
void rs_large_pages(void *block, size_t bytes);

char *rs_strdup(const char *text) __attribute__((malloc));

/*
 * Makes room for `need` items of `size` bytes in the array at `*items` (capacity `*capacity`),
 * growing geometrically. RS_ERR_NO_MEMORY leaves the array as it is.
 */
rs_status rs_array_reserve(void **items, size_t *capacity, size_t need, size_t size) RS_MUST_CHECK;

/* Appends room for one item to a list struct with members items, count, capacity. */
#define RS_LIST_RESERVE_ONE(list)                                                                  \
    rs_array_reserve(                                                                              \
        (void **)&(list)->items, &(list)->capacity, (list)->count + 1, sizeof *(list)->items)

/* Test hook: the n-th allocation from now on fails (1 = the next); 0 switches it off. Returns how
 * many allocations were made since the last call. */
size_t rs_alloc_fail_at(size_t n);

#endif
