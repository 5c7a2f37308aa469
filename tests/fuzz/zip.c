/* Zip directories. What is accepted must lie inside the file. */
#include <stdlib.h>

#include "ckpt/file.h"
#include "ckpt/zip.h"
#include "input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rs_files *files;
    rs_zip zip;
    int file;
    if (rs_files_create(&files) != RS_OK)
        return 0;
    if (rs_files_add(files, input_file(data, size), &file) == RS_OK) {
        if (rs_zip_read(files, file, 0, (int64_t)size, &zip) == RS_OK)
            for (size_t i = 0; i < zip.count; i++)
                if (zip.items[i].offset < 0 || zip.items[i].stored < 0 ||
                    zip.items[i].offset + zip.items[i].stored > (int64_t)size)
                    abort();
        rs_zip_fini(&zip);
    }
    rs_files_destroy(files);
    return 0;
}
