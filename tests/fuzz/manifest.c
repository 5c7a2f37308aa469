/* Manifests of native checkpoints: the input is a manifest without its digest, which is added here,
 * so that what stands behind it is reached. Two data files of known sizes lie beside it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "input.h"
#include "reshard/checkpoint.h"

static char folder[] = "/tmp/reshard-fuzz-XXXXXX";
static char manifest[64];

static void remove_folder(void)
{
    char path[64];
    unlink(manifest);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/rank-%05d.safetensors", folder, i);
        unlink(path);
    }
    rmdir(folder);
}

static void make_folder(void)
{
    if (mkdtemp(folder) == NULL)
        abort();
    snprintf(manifest, sizeof manifest, "%s/manifest.json", folder);
    for (int i = 0; i < 2; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s/rank-%05d.safetensors", folder, i);
        FILE *file = fopen(path, "w");
        if (file == NULL || ftruncate(fileno(file), 4096) != 0 || fclose(file) != 0)
            abort();
    }
    atexit(remove_folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rs_checkpoint *checkpoint;
    rs_checkpoint_options options = {.format = "native"};
    char hex[RS_CHECKPOINT_HASH];
    int64_t left = 1 << 20;
    if (manifest[0] == '\0')
        make_folder();
    FILE *file = fopen(manifest, "w");
    if (file == NULL || fwrite(data, 1, size, file) != size ||
        fprintf(file, ",\"digest\":\"%016" PRIx64 "\"}\n", (uint64_t)XXH3_64bits(data, size)) < 0 ||
        fclose(file) != 0)
        abort();
    if (rs_checkpoint_open(manifest, &options, &checkpoint) != RS_OK)
        return 0;
    for (size_t i = 0; i < rs_checkpoint_count(checkpoint); i++) {
        left -= rs_checkpoint_entry_bytes(rs_checkpoint_entry_at(checkpoint, i));
        /* A complete catalog can be read: its pieces lie inside its files. */
        if (left > 0 && rs_checkpoint_hash(checkpoint, i, hex) == RS_ERR_MALFORMED)
            abort();
    }
    if (left > 0 && rs_checkpoint_check(checkpoint) == RS_ERR_MALFORMED)
        abort();
    rs_checkpoint_close(checkpoint);
    return 0;
}
