/* Whole files of safetensors. */
#include "open.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return open_as("safetensors", data, size);
}
