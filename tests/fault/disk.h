/*
 * A disk that loses what was not synced. The program is linked so that its calls that change files
 * (--wrap) come by here: they are made, and those below one folder are written down. From the list
 * a model of the file system can be brought to any instant, and the power be cut there: what is
 * left is made as real files, for a reader to judge.
 *
 * A file's content is safe as of its last fsync, a folder's names as of the folder's. What is not
 * safe may be lost, or not, or in part; a rename is never half done within a folder, and names of a
 * folder change in the order in which they were changed.
 */
#ifndef TEST_FAULT_DISK_H
#define TEST_FAULT_DISK_H

#include <stddef.h>
#include <stdint.h>

/* What becomes of that which is not safe. */
typedef enum disk_loss {
    DISK_ALL = 0, /* it is lost */
    DISK_CONTENT, /* names are kept, what files hold is lost */
    DISK_SOME     /* by chance, file by file, name by name; files may be torn */
} disk_loss;

/* From here on changes below the folder are written down; what is there now is safe. */
void disk_begin(const char *folder);

/* The end of the list; the number of changes. */
size_t disk_end(void);

/* "fsync step-1/manifest.json" of change number `n`, for messages. */
const char *disk_change(size_t n);

/* Makes the folder `to`, which must not exist, as it is after a power cut behind the first `n`
 * changes. */
void disk_cut(size_t n, disk_loss loss, uint64_t seed, const char *to);

/* Forgets the list. */
void disk_forget(void);

/* Syncs in the list, and renames: the test looks whether any were seen. */
size_t disk_syncs(void);
size_t disk_renames(void);

#endif
