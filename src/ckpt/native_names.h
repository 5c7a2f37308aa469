/* Names in a folder of native checkpoints; docs/formats/native.md. */
#ifndef RS_CKPT_NATIVE_NAMES_H
#define RS_CKPT_NATIVE_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/native.h"

#define RS_NATIVE_VERSION 1
#define RS_NATIVE_MANIFEST "manifest.json"
#define RS_NATIVE_LATEST "latest"
#define RS_NATIVE_NAME 128
#define RS_NATIVE_MANIFEST_MOST ((size_t)1 << 30)

/* What the manifest's last bytes are, around 16 hexadecimal digits: the XXH3-64 of all bytes before
 * them. */
#define RS_NATIVE_DIGEST_HEAD ",\"digest\":\""
#define RS_NATIVE_DIGEST_TAIL "\"}\n"

/* "step-00000123". */
char *rs_native_step_name(int64_t step, char text[RS_NATIVE_NAME]);

/* "step-00000123.tmp-JOB", where a save writes until its commit. RS_ERR_ARGUMENT for a job's name
 * that cannot be part of one. */
rs_status rs_native_aside_name(const rs_save_name *name, char text[RS_NATIVE_NAME]) RS_MUST_CHECK;

/* The step that such a name tells; `*rest` is what follows the number. False: it is no such name.
 */
bool rs_native_read_name(const char *name, int64_t *step, const char **rest);

/* True for a folder that a search for checkpoints passes over: unfinished, or set aside. */
bool rs_native_is_aside(const char *name);

/* "rank-00003.safetensors". */
char *rs_native_file_name(int rank, char text[RS_NATIVE_NAME]);

#endif
