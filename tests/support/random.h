/* Repeatable random numbers for tests, and a check that names the seed it failed with. */
#ifndef RS_TESTS_RANDOM_H
#define RS_TESTS_RANDOM_H

#include <stdint.h>

/* splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). */
static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A number in low..high, both included. */
static inline int random_in(uint64_t *state, int low, int high)
{
    return low + (int)(random_next(state) % (uint64_t)(high - low + 1));
}

/* As assert_true, with the number of the random case in the message. */
#define CHECK_SEED(seed, condition)                                                                \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail_msg("seed %llu: %s", (unsigned long long)(seed), #condition);                     \
    } while (0)

#endif
