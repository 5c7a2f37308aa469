/*
 * Status codes and error detail.
 *
 * Every function that can fail returns an rs_status, and the compiler insists that it is looked at.
 * The codes are grouped by what has to be rebuilt before trying again: the call, the file, the
 * transfer, or the world of processes. The function that first knows of an error records the detail
 * (what, where, wanted and found) for its thread; its callers pass the status on unchanged.
 *
 * The library never prints, exits or aborts.
 */
#ifndef RESHARD_STATUS_H
#define RESHARD_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define RS_MUST_CHECK __attribute__((warn_unused_result))
#else
#define RS_MUST_CHECK
#endif

typedef enum rs_status {
    RS_OK = 0,

    /* The call: change the arguments. */
    RS_ERR_ARGUMENT = 10,    /* an argument is wrong; the detail names it and what would fit */
    RS_ERR_UNSUPPORTED = 11, /* well-formed, but this build or version cannot do it */
    RS_ERR_BUDGET = 12,      /* it would need more memory than was allowed or exists */
    RS_ERR_NO_MEMORY = 13,   /* an allocation failed */
    RS_ERR_OVERFLOW = 14,    /* a size does not fit 64-bit arithmetic */

    /* The file: it has to be repaired or replaced. */
    RS_ERR_IO = 20,        /* the operating system refused; the detail has errno's text */
    RS_ERR_MALFORMED = 21, /* the bytes are not what the format says */
    RS_ERR_MISMATCH = 22,  /* well-formed, but not what was asked for */
    RS_ERR_EXISTS = 23,    /* it is there already, and would be overwritten */
    RS_ERR_NOT_FOUND = 24,

    /* The transfer: the state is whole where it was; the operation can be tried again. */
    RS_ERR_STALLED = 30,
    RS_ERR_CANCELLED = 31,
    RS_ERR_CERTIFICATE = 32, /* content checksums before and after differ */
    RS_ERR_PEER = 33,        /* another rank failed; its detail is in its own record */

    /* The world: processes have to be started anew. */
    RS_ERR_RANK_LOST = 40,
    RS_ERR_MPI = 41
} rs_status;

/* Short English name of a status, never NULL. Local. */
const char *rs_status_name(rs_status status);

/*
 * The detail recorded by the last failing call on this thread, "" if there was none. Local.
 * The text belongs to the library and lasts until the next failing call on this thread.
 */
const char *rs_error_message(void);

#ifdef __cplusplus
}
#endif

#endif
