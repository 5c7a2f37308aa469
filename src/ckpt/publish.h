/*
 * Writing so that a reader sees all or nothing: files and folders are made aside, synced, and
 * renamed into place. Every write, sync and rename passes a fault point (base/fault.h).
 */
#ifndef RS_CKPT_PUBLISH_H
#define RS_CKPT_PUBLISH_H

#include <stddef.h>
#include <stdint.h>

#include "reshard/status.h"

/* A file being written from its beginning on. */
typedef struct rs_out {
    int fd;     /* -1: none */
    char *path; /* that errors name; owned */
    int64_t bytes;
    int64_t pushed; /* of them, on their way to the disk */
} rs_out;

/* Creates `folder`/`name`, which must not exist. */
rs_status rs_out_create(rs_out *out, const char *folder, const char *name) RS_MUST_CHECK;
rs_status rs_out_write(rs_out *out, const void *data, size_t bytes) RS_MUST_CHECK;

/* Syncs and closes. */
rs_status rs_out_finish(rs_out *out) RS_MUST_CHECK;

/* Closes whatever state it is in; the file stays. Nothing after rs_out_finish. */
void rs_out_fini(rs_out *out);

/* `folder`/`name` with this text, replaced as a whole; errors name it, not what is written aside.
 */
rs_status rs_publish_text(const char *folder, const char *name, const char *text) RS_MUST_CHECK;

/* Renames, and syncs `folder`, where both names stand. RS_ERR_EXISTS if `to` is there and is no
 * empty folder or `from` no folder. */
rs_status rs_publish_rename(const char *folder, const char *from, const char *to) RS_MUST_CHECK;

/*
 * Lets `from`, a file or folder in `folder`, stand at `to` in place of what is there, in one step,
 * and removes what was there. Where the file system cannot exchange names, what was there is called
 * "<to>.old-reshard" for the moment between two renames.
 */
rs_status rs_publish_replace(const char *folder, const char *from, const char *to) RS_MUST_CHECK;

/* If there is no `to` in `folder` but a "<to>.old-reshard", which a kill in that moment leaves:
 * puts it back. If there are both, removes the old one. */
rs_status rs_publish_restore(const char *folder, const char *to) RS_MUST_CHECK;

/* Makes the folder `path` for what is to become `target`, which an error names where it cannot, or
 * empties what a killed process left of it. While `*lock` is open no other process gets it:
 * RS_ERR_EXISTS there. (Where a file system cannot lock folders, nobody is told.) */
rs_status rs_publish_aside(const char *path, const char *target, int *lock) RS_MUST_CHECK;

/* Removes a file, or a folder with all that is in it; links are not followed. Absent is no error.
 */
rs_status rs_remove_path(const char *folder, const char *name) RS_MUST_CHECK;

/* Syncs an open file, which errors call `path`; a folder. */
rs_status rs_sync_file(int fd, const char *path) RS_MUST_CHECK;
rs_status rs_sync_folder(const char *path) RS_MUST_CHECK;

/* Makes a folder; one that is there is no error. */
rs_status rs_make_folder(const char *path) RS_MUST_CHECK;

/* The same, and where it was made, syncs the folder that it stands in. */
rs_status rs_publish_folder(const char *path) RS_MUST_CHECK;

/* Removes a folder with the files and folders in it; links are not followed. Absent is no error. */
rs_status rs_remove_folder(const char *path) RS_MUST_CHECK;

#endif
