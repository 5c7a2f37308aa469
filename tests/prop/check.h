/*
 * Random cases: case i of a run uses seed S + i, and what is not so is said with the seed, so that
 * a case that failed is run again by itself.
 */
#ifndef RS_TESTS_PROP_CHECK_H
#define RS_TESTS_PROP_CHECK_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/status.h"
#include "support/spaces.h" /* before `state` is a name here */

static uint64_t case_seed; /* of this case */
static uint64_t state;     /* of its generator */

/* In functions of a case, which return whether it is good. */
#define FAIL(...)                                                                                  \
    do {                                                                                           \
        printf("seed %" PRIu64 ", line %d: ", case_seed, __LINE__);                                \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        return false;                                                                              \
    } while (0)

#define NEED(call)                                                                                 \
    do {                                                                                           \
        rs_status need_ = (call);                                                                  \
        if (need_ != RS_OK)                                                                        \
            FAIL("%s: %s: %s", #call, rs_status_name(need_), rs_error_message());                  \
    } while (0)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            FAIL("not so: %s", #condition);                                                        \
    } while (0)

typedef struct prop_run {
    uint64_t seed;
    long cases;
    bool verbose;
    const char *flag; /* an option of this program alone, or NULL */
    bool flag_set;
} prop_run;

/* Reads [FLAG] [--seed S] [--cases N] [--verbose] over the defaults in `run`. */
static bool prop_options(int argc, char **argv, prop_run *run)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            run->seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--cases") == 0 && i + 1 < argc)
            run->cases = strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--verbose") == 0)
            run->verbose = true;
        else if (run->flag != NULL && strcmp(argv[i], run->flag) == 0)
            run->flag_set = true;
        else {
            printf("usage: %s %s%s%s[--seed S] [--cases N] [--verbose]\n", argv[0],
                run->flag != NULL ? "[" : "", run->flag != NULL ? run->flag : "",
                run->flag != NULL ? "] " : "");
            return false;
        }
    }
    printf("seed %" PRIu64 ", %ld cases\n", run->seed, run->cases);
    return run->cases > 0;
}

/* Runs the cases until one is not good. */
static bool prop_cases(const prop_run *run, bool (*one)(void))
{
    for (long i = 0; i < run->cases; i++) {
        state = case_seed = run->seed + (uint64_t)i;
        if (run->verbose)
            printf("seed %" PRIu64 "\n", case_seed);
        if (!one()) {
            printf("run it again: --seed %" PRIu64 " --cases 1%s%s\n", case_seed,
                run->flag_set ? " " : "", run->flag_set ? run->flag : "");
            return false;
        }
    }
    printf("all good\n");
    return true;
}

#endif
