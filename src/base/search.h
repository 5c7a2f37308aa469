/* Order, and binary search in what is in order. */
#ifndef RS_BASE_SEARCH_H
#define RS_BASE_SEARCH_H

#include <stddef.h>
#include <stdint.h>

/* -1, 0, 1: a is less than, equal to, greater than b. */
static inline int rs_compare(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

/* The same for qsort and bsearch of int. */
static inline int rs_compare_ints(const void *a, const void *b)
{
    return rs_compare(*(const int *)a, *(const int *)b);
}

/* The same of int64_t. */
static inline int rs_compare_int64s(const void *a, const void *b)
{
    return rs_compare(*(const int64_t *)a, *(const int64_t *)b);
}

/*
 * The first of 0 .. count - 1 for which `condition` on `index` does not hold, `count` if it holds
 * for all: RS_SEARCH(n, k, items[k].key < key). It must hold up to some index and for none behind.
 * `index` is a name for the condition to use; `condition` is evaluated about log2(count) times.
 */
#define RS_SEARCH(count, index, condition)                                                         \
    __extension__({                                                                                \
        size_t low_ = 0;                                                                           \
        size_t high_ = (size_t)(count);                                                            \
        while (low_ < high_) {                                                                     \
            size_t index = low_ + (high_ - low_) / 2;                                              \
            if (condition)                                                                         \
                low_ = index + 1;                                                                  \
            else                                                                                   \
                high_ = index;                                                                     \
        }                                                                                          \
        low_;                                                                                      \
    })

#endif
