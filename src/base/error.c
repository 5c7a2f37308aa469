/*
 * Status names and the per-thread error detail.
 *
 * The detail is one fixed buffer per thread: recording an error must not fail, so it allocates
 * nothing. Longer texts are cut.
 */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define DETAIL_BYTES 1024

static _Thread_local char detail[DETAIL_BYTES];

const char *rs_status_name(rs_status status)
{
    switch (status) {
    case RS_OK:
        return "ok";
    case RS_ERR_ARGUMENT:
        return "wrong argument";
    case RS_ERR_UNSUPPORTED:
        return "not supported";
    case RS_ERR_BUDGET:
        return "not enough room";
    case RS_ERR_NO_MEMORY:
        return "out of memory";
    case RS_ERR_OVERFLOW:
        return "size overflow";
    case RS_ERR_IO:
        return "input/output error";
    case RS_ERR_MALFORMED:
        return "malformed file";
    case RS_ERR_MISMATCH:
        return "mismatch";
    case RS_ERR_EXISTS:
        return "exists already";
    case RS_ERR_NOT_FOUND:
        return "not found";
    case RS_ERR_STALLED:
        return "transfer stalled";
    case RS_ERR_CANCELLED:
        return "cancelled";
    case RS_ERR_CERTIFICATE:
        return "certificate differs";
    case RS_ERR_PEER:
        return "another rank failed";
    case RS_ERR_RANK_LOST:
        return "rank lost";
    case RS_ERR_MPI:
        return "MPI error";
    }
    return "unknown status";
}

const char *rs_error_message(void)
{
    return detail;
}

rs_status rs_error_set(rs_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    return status;
}

rs_status rs_error_context(rs_status status, const char *format, ...)
{
    char old[DETAIL_BYTES];
    memcpy(old, detail, sizeof old);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    /* What does not fit is cut off at the end, on purpose. */
    if (n >= 0 && (size_t)n + 3 < sizeof detail)
        snprintf(detail + n, sizeof detail - (size_t)n, ": %.*s",
            (int)(sizeof detail - (size_t)n - 3), old);
    return status;
}

rs_status rs_error_errno(int error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof detail)
        snprintf(detail + n, sizeof detail - (size_t)n, ": %s", strerror(error));
    switch (error) {
    case ENOENT:
        return RS_ERR_NOT_FOUND;
    case EEXIST:
        return RS_ERR_EXISTS;
    case ENOSPC:
    case ENOMEM:
    case EDQUOT:
        return RS_ERR_BUDGET;
    default:
        return RS_ERR_IO;
    }
}

rs_status rs_error_memory(size_t bytes)
{
    return rs_error_set(RS_ERR_NO_MEMORY, "cannot allocate %zu bytes", bytes);
}
