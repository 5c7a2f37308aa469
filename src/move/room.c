/*
 * How much memory there is to be had: the least of what the machine has available and of what every
 * control group above this process has left (its limit less its use, where cached file pages that
 * can be dropped do not count). Both versions of control groups are read; what cannot be read
 * limits nothing.
 */
#include "move/room.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

#define UNLIMITED (INT64_MAX / 4) /* a limit above this is none */

bool rs_read_text(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    size_t n = fread(text, 1, size - 1, file);
    fclose(file);
    text[n] = '\0';
    return n > 0;
}

/* The number after `key` at the start of a line of `text`; `missing` if there is none. */
static int64_t number_after(const char *text, const char *key, int64_t missing)
{
    size_t length = strlen(key);
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, key, length) == 0) {
            char *end;
            long long value = strtoll(line + length, &end, 10);
            return end != line + length && value >= 0 ? value : missing;
        }
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return missing;
}

/* One file of a control group as a number; "max" and what cannot be read are `missing`. */
static int64_t group_number(const char *folder, const char *file, const char *key, int64_t missing)
{
    char path[PATH_MAX];
    char text[8192];
    int n = snprintf(path, sizeof path, "%s/%s", folder, file);
    if (n < 0 || (size_t)n >= sizeof path || !rs_read_text(path, text, sizeof text))
        return missing;
    return number_after(text, key, missing);
}

/* What one control group has left, by version 2's or version 1's file names. */
static int64_t group_room(const char *folder, bool second)
{
    int64_t limit =
        group_number(folder, second ? "memory.max" : "memory.limit_in_bytes", "", INT64_MAX);
    if (limit >= UNLIMITED)
        return INT64_MAX;
    int64_t used = group_number(folder, second ? "memory.current" : "memory.usage_in_bytes", "", 0);
    int64_t cache =
        group_number(folder, "memory.stat", second ? "inactive_file " : "total_inactive_file ", 0);
    return rs_max64(limit - rs_max64(used - cache, 0), 0);
}

/* The least that the group at `path` below `root` and all groups above it have left. */
static int64_t groups_room(const char *root, const char *path, bool second)
{
    char folder[PATH_MAX];
    int n = snprintf(folder, sizeof folder, "%s%s", root, path);
    if (n < 0 || (size_t)n >= sizeof folder)
        return INT64_MAX;
    int64_t room = INT64_MAX;
    size_t top = strlen(root);
    for (;;) {
        room = rs_min64(room, group_room(folder, second));
        char *slash = strrchr(folder, '/');
        if (slash == NULL || strlen(folder) <= top)
            return room;
        *slash = '\0';
    }
}

/* What the control groups of this process have left. */
static int64_t all_groups_room(const char *proc, const char *groups)
{
    char path[PATH_MAX];
    char text[8192];
    char first[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/self/cgroup", proc) >= (int)sizeof path ||
        snprintf(first, sizeof first, "%s/memory", groups) >= (int)sizeof first ||
        !rs_read_text(path, text, sizeof text))
        return INT64_MAX;
    int64_t room = INT64_MAX;
    char *state = NULL;
    for (char *line = strtok_r(text, "\n", &state); line != NULL;
         line = strtok_r(NULL, "\n", &state)) {
        char *group = strstr(line, ":/");
        if (group == NULL)
            continue;
        if (strncmp(line, "0::", 3) == 0)
            room = rs_min64(room, groups_room(groups, group + 1, true));
        else if (strstr(line, ":memory:") != NULL)
            room = rs_min64(room, groups_room(first, group + 1, false));
    }
    return room;
}

int64_t rs_room_memory(const char *proc, const char *groups)
{
    char path[PATH_MAX];
    char text[4096];
    int64_t available = INT64_MAX;
    if (snprintf(path, sizeof path, "%s/meminfo", proc) < (int)sizeof path &&
        rs_read_text(path, text, sizeof text)) {
        int64_t kib = number_after(text, "MemAvailable:", INT64_MAX);
        if (!rs_add_fits(kib, number_after(text, "SwapFree:", 0), &kib) ||
            !rs_mul_fits(kib, 1024, &available))
            available = INT64_MAX;
    }
    return rs_min64(available, all_groups_room(proc, groups));
}
