/* Pickles. What is accepted must be a graph that can be written as JSON and compared with itself.
 */
#include <stdlib.h>

#include "ckpt/file.h"
#include "ckpt/pickle.h"
#include "ckpt/value_json.h"
#include "input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rs_files *files;
    rs_pickle pickle;
    int file;
    if (rs_files_create(&files) != RS_OK)
        return 0;
    if (rs_files_add(files, input_file(data, size), &file) == RS_OK) {
        if (rs_pickle_read(files, file, 0, (int64_t)size, &pickle) == RS_OK) {
            int64_t left = 10000;
            json_decref(rs_value_json(pickle.root, &left));
            if (pickle.end > (int64_t)size || !rs_value_equal(pickle.root, pickle.root))
                abort();
        }
        rs_pickle_fini(&pickle);
    }
    rs_files_destroy(files);
    return 0;
}
