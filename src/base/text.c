/* Growing text and human units. */
#include "base/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

void rs_text_append(rs_text *text, const char *format, ...)
{
    if (text->status != RS_OK)
        return;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) {
        text->status = rs_error_set(RS_ERR_ARGUMENT, "cannot format text");
        return;
    }
    text->status =
        rs_array_reserve((void **)&text->data, &text->capacity, text->length + (size_t)n + 1, 1);
    if (text->status != RS_OK)
        return;
    va_start(args, format);
    vsnprintf(text->data + text->length, (size_t)n + 1, format, args);
    va_end(args);
    text->length += (size_t)n;
}

void rs_text_append_gaps(rs_text *text, const bool *set, int count)
{
    bool first = true;
    for (int i = 0; i < count; i++) {
        int end = i;
        if (set[i])
            continue;
        while (end + 1 < count && !set[end + 1])
            end++;
        rs_text_append(text, "%s%d", first ? "" : ", ", i);
        if (end > i)
            rs_text_append(text, "..%d", end);
        first = false;
        i = end;
    }
}

rs_status rs_text_take(rs_text *text, char **out)
{
    rs_text_append(text, "%s", "");
    rs_status status = text->status;
    if (status == RS_OK)
        *out = text->data;
    else
        free(text->data);
    memset(text, 0, sizeof *text);
    return status;
}

void rs_text_fini(rs_text *text)
{
    free(text->data);
    memset(text, 0, sizeof *text);
}

char *rs_human_bytes(int64_t bytes, char *out)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes > -1024 && bytes < 1024) {
        snprintf(out, RS_HUMAN, "%" PRId64 " B", bytes);
        return out;
    }
    double value = (double)bytes / 1024;
    size_t unit = 0;
    while ((value >= 1024 || value <= -1024) && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    snprintf(out, RS_HUMAN, "%.2f %s", value, units[unit]);
    return out;
}

char *rs_human_seconds(double seconds, char *out)
{
    if (seconds < 1e-3)
        snprintf(out, RS_HUMAN, "%.0f us", seconds * 1e6);
    else if (seconds < 1)
        snprintf(out, RS_HUMAN, "%.1f ms", seconds * 1e3);
    else if (seconds < 120)
        snprintf(out, RS_HUMAN, "%.2f s", seconds);
    else if (seconds < 7200)
        snprintf(out, RS_HUMAN, "%d min %d s", (int)(seconds / 60), (int)seconds % 60);
    else
        snprintf(out, RS_HUMAN, "%d h %d min", (int)(seconds / 3600), (int)(seconds / 60) % 60);
    return out;
}
