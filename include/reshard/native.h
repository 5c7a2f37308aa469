/*
 * Checkpoints in reshard's own format: saving the state of a job from where it lies in memory, and
 * loading it under any layout. docs/formats/native.md is the format.
 *
 * A checkpoint is a folder `step-00000123` with a manifest and one data file per rank that writes;
 * checkpoints of a job stand side by side in one folder, and a file `latest` there names one. Of
 * elements that several ranks hold, the lowest of them writes its copy.
 *
 * Usual order of a save: one process (the committer) calls rs_save_prepare; every rank
 * rs_save_begin (after which its state may change) and, on any thread, rs_save_write; the committer
 * collects the texts of rs_save_record and calls rs_save_commit, or rs_save_abandon if a rank
 * failed. A save that is killed or fails at any point leaves the earlier checkpoints as they were,
 * and what it leaves itself never looks like a checkpoint; rs_save_clean removes it.
 *
 * Usual order of a load: rs_native_find, rs_native_open, rs_native_fits, rs_native_load on every
 * rank, then the certificate: the sums of what was loaded (certificate.h) against rs_native_words.
 *
 * All functions are local.
 */
#ifndef RESHARD_NATIVE_H
#define RESHARD_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#include "reshard/memory.h"
#include "reshard/placement.h"
#include "reshard/space.h"
#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- saving ---- */

/* Which save is meant. */
typedef struct rs_save_name {
    const char *folder; /* of the job's checkpoints */
    int64_t step;
    const char *job; /* letters, digits, '-', '_' */
} rs_save_name;

/* Makes the folder (its parent exists) and in it the one that files are written to until the
 * commit. RS_ERR_EXISTS if there is a checkpoint of this step. */
rs_status rs_save_prepare(const rs_save_name *name) RS_MUST_CHECK;

/* One rank's part of a save. */
typedef struct rs_save rs_save;

/*
 * Copies what `holder` has to write of its `memory`. Memory: as many bytes, kept for the next save
 * where `*save` is one from before (with the same placement and holder), else a new one is made
 * (`*save` NULL). A holder beyond the placement has nothing to write. The placement is borrowed.
 */
rs_status rs_save_begin(const rs_placement *placement, int holder, const rs_memory *memory,
    rs_save **save) RS_MUST_CHECK;

/*
 * Ahead of the first save: makes what rs_save_begin would, and lets the system give its memory page
 * by page, which takes ten times as long as copying does. rs_save_touch goes over the next `most`
 * bytes of it and returns how many are left; 0 once a save was begun. It leaves what was copied
 * alone.
 */
rs_status rs_save_reserve(const rs_placement *placement, int holder, rs_save **save) RS_MUST_CHECK;
int64_t rs_save_touch(rs_save *save, int64_t most);

/* Writes the copy to the rank's file and syncs it. May run on another thread. */
rs_status rs_save_write(rs_save *save, const rs_save_name *name) RS_MUST_CHECK;

/* Bytes of the copy. */
int64_t rs_save_bytes(const rs_save *save);

/* What the manifest says of this rank's file, after rs_save_write: JSON; "" if it has none. free()
 * it. */
rs_status rs_save_record(const rs_save *save, char **record) RS_MUST_CHECK;
void rs_save_destroy(rs_save *save);

typedef struct rs_save_about {
    const char *layout; /* that it was saved under */
    int world;          /* its ranks */
    const char *extras; /* a JSON object: what else belongs to the job; it is kept as it is */
    /* Asked when all but the renaming is done; RS_OK: the checkpoint may take its place. NULL: it
     * may. */
    rs_status (*permit)(void *context);
    void *context;
} rs_save_about;

/*
 * Completes the save: checks that every file that the records name is there in full, writes the
 * manifest, syncs, asks for permission, renames, and lets `latest` name it, in this order.
 * RS_ERR_NOT_FOUND: a rank's
 * file is not in the folder as this process sees it (it is on another machine's disk).
 */
rs_status rs_save_commit(const rs_save_name *name, const rs_space *space,
    const rs_save_about *about, const char *const *records, size_t count) RS_MUST_CHECK;

/* Removes what an unfinished save has written. */
rs_status rs_save_abandon(const rs_save_name *name) RS_MUST_CHECK;

/* Removes what unfinished saves left in the folder; an absent folder is no error. Only for whom no
 * other is saving there. */
rs_status rs_save_clean(const char *folder) RS_MUST_CHECK;

/* Removes the oldest checkpoints until `keep` are left; never the one that `latest` names. */
rs_status rs_save_prune(const char *folder, int64_t keep) RS_MUST_CHECK;

/* ---- loading ---- */

/* The steps of the checkpoints in the folder, the newest first; free() them. None is no error.
 * RS_ERR_NOT_FOUND: `latest` names one that is not there; the text lists those that are. */
rs_status rs_native_find(const char *folder, int64_t **steps, size_t *count) RS_MUST_CHECK;

/* Sets the checkpoints after `step` aside, under names that no search finds ("...abandoned"), and
 * lets `latest` name that of `step`. `*count` (may be NULL) gets their number. */
rs_status rs_native_abandon_after(const char *folder, int64_t step, size_t *count) RS_MUST_CHECK;

typedef struct rs_native rs_native;

/* Reads the manifest of the checkpoint in the folder `path` and checks it, its completeness, and
 * the sizes of its files; reads no tensor. RS_ERR_MALFORMED says what is damaged. */
rs_status rs_native_open(const char *path, rs_native **out) RS_MUST_CHECK;

/* The same for the checkpoint of a step in a folder of them. */
rs_status rs_native_open_step(const char *folder, int64_t step, rs_native **out) RS_MUST_CHECK;
void rs_native_close(rs_native *native);

int64_t rs_native_step(const rs_native *native);
const char *rs_native_layout(const rs_native *native);

/* The extras given when it was saved, as JSON; free() it. */
rs_status rs_native_extras(const rs_native *native, char **out) RS_MUST_CHECK;

/* RS_ERR_MISMATCH names the first tensor or role of the space that the checkpoint lacks or has in
 * another shape or dtype, or has beyond it, but for what other formats say twice: steps of tensors
 * that are the checkpoint's, and masters that are the float32 params. These are compared, which
 * reads them: of `parts` calls, on as many ranks, each looks at its share of what is beyond the
 * space. */
rs_status rs_native_fits(
    const rs_native *native, const rs_space *space, int part, int parts) RS_MUST_CHECK;

/* Reads all shards of `holder` into its memory: exactly their bytes, `*bytes` (may be NULL) of
 * them. The space of the placement fits. */
rs_status rs_native_load(const rs_native *native, const rs_placement *placement, int holder,
    const rs_memory *memory, int64_t *bytes) RS_MUST_CHECK;

/* The checkpoint's content sums where rs_sums_compare looks for those of the state before a move:
 * rs_sums_word_count words. */
rs_status rs_native_words(
    const rs_native *native, const rs_space *space, uint64_t *words) RS_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
