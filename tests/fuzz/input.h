/* The input of a fuzzer as a file, without touching the disk. */
#ifndef TEST_FUZZ_INPUT_H
#define TEST_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A path that reads as `data`; valid until the next call. */
const char *input_file(const uint8_t *data, size_t size);

#endif
