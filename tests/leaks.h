/*
 * Leak checking of MPI programs: MPI_Finalize unloads the plugins that MPI's own leaks come from,
 * and what comes from nowhere cannot be suppressed by name. So the check is made just before it.
 */
#ifndef RS_TESTS_LEAKS_H
#define RS_TESTS_LEAKS_H

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

/* Looks for leaks now and not at the end; ends the program if there are any. Without a sanitizer,
 * nothing. */
static inline void leaks_check(void)
{
#if defined(__SANITIZE_ADDRESS__)
    __lsan_do_leak_check();
#endif
}

#endif
