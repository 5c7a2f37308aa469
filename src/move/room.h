/* How much memory there is to be had. Include in .c files only. */
#ifndef RS_MOVE_ROOM_H
#define RS_MOVE_ROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the start of a small text file, NUL-terminated; false if that is not possible. */
bool rs_read_text(const char *path, char *text, size_t size);

/* Bytes of memory that this process may still take, as the folders `proc` and `groups` say
 * ("/proc",
 * "/sys/fs/cgroup"); INT64_MAX if they set no limit. */
int64_t rs_room_memory(const char *proc, const char *groups);

#endif
