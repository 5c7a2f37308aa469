/* Whole files of torch.save. */
#include "open.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return open_as("torch", data, size);
}
