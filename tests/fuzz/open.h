/* Opens a file as a format, and reads what is not too large. */
#ifndef TEST_FUZZ_OPEN_H
#define TEST_FUZZ_OPEN_H

#include <stdlib.h>

#include "input.h"
#include "reshard/checkpoint.h"

static int open_as(const char *format, const uint8_t *data, size_t size)
{
    rs_checkpoint *checkpoint;
    rs_checkpoint_options options = {.format = format};
    char hex[RS_CHECKPOINT_HASH];
    int64_t left = 1 << 20;
    if (rs_checkpoint_open(input_file(data, size), &options, &checkpoint) != RS_OK)
        return 0;
    for (size_t i = 0; i < rs_checkpoint_count(checkpoint); i++) {
        const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, i);
        left -= rs_checkpoint_entry_bytes(entry);
        /* A complete catalog can be read: its pieces lie inside its files. */
        if (left > 0 && rs_checkpoint_hash(checkpoint, i, hex) == RS_ERR_MALFORMED)
            abort();
    }
    rs_checkpoint_close(checkpoint);
    return 0;
}

#endif
