/*
 * Allocation with a switch that makes the N-th request fail, and geometric growth of arrays.
 *
 * The counter is atomic: threads may allocate while a test counts. When the switch is off it costs
 * one relaxed increment.
 */
#include "base/memory.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"

#define LARGE_PAGE ((uintptr_t)2 << 20)

static atomic_size_t allocations;
static atomic_size_t fail_at;

static int must_fail(void)
{
    size_t number = atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed) + 1;
    return number == atomic_load_explicit(&fail_at, memory_order_relaxed);
}

size_t rs_alloc_fail_at(size_t n)
{
    size_t made = atomic_exchange(&allocations, 0);
    atomic_store(&fail_at, n);
    return made;
}

void *rs_calloc(size_t count, size_t size)
{
    if (must_fail())
        return NULL;
    return calloc(count > 0 ? count : 1, size > 0 ? size : 1);
}

void *rs_realloc(void *pointer, size_t count, size_t size)
{
    if (must_fail() || (size > 0 && count > SIZE_MAX / size))
        return NULL;
    size_t bytes = count * size;
    return realloc(pointer, bytes > 0 ? bytes : 1);
}

void rs_large_pages(void *block, size_t bytes)
{
    uintptr_t begin = ((uintptr_t)block + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    uintptr_t end = ((uintptr_t)block + bytes) / LARGE_PAGE * LARGE_PAGE;
    if (begin < end)
        (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE);
}

char *rs_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = rs_calloc(bytes, 1);
    if (copy != NULL)
        memcpy(copy, text, bytes);
    return copy;
}

rs_status rs_array_reserve(void **items, size_t *capacity, size_t need, size_t size)
{
    if (need <= *capacity)
        return RS_OK;
    size_t grown = *capacity > 0 ? *capacity : 8;
    while (grown < need)
        grown = grown > SIZE_MAX / 2 ? need : 2 * grown;
    void *moved = rs_realloc(*items, grown, size);
    if (moved == NULL)
        return rs_error_memory(need * size);
    *items = moved;
    *capacity = grown;
    return RS_OK;
}
