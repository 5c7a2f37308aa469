/*
 * The hosts of a job: a file that names them, and how many ranks each gets.
 *
 * A line names a host and says how many ranks it takes: "node1 slots=4" (Open MPI), "node1:4"
 * (MPICH) or "node1" (one). A host that comes again has so many more, so a list of one line per
 * task, as Slurm writes it, is fine. Text after '#' is a comment. All functions are local and,
 * but for the reading and rs_host_is_here, pure.
 */
#ifndef RS_ELASTIC_HOSTS_H
#define RS_ELASTIC_HOSTS_H

#include <stdbool.h>

#include "reshard/status.h"

#define RS_HOSTS 64 /* that a job may have */
#define RS_HOST_NAME 128

typedef struct rs_host {
    char name[RS_HOST_NAME];
    int slots;
} rs_host;

typedef struct rs_hosts {
    rs_host items[RS_HOSTS]; /* in the order of the file */
    int count;
} rs_hosts;

/* RS_ERR_MALFORMED names `path` and line. */
rs_status rs_hosts_parse(const char *text, const char *path, rs_hosts *out) RS_MUST_CHECK;
/* Also RS_ERR_NOT_FOUND, RS_ERR_IO. */
rs_status rs_hosts_read(const char *path, rs_hosts *out) RS_MUST_CHECK;

/* A host with slots=0 takes no ranks. */
int rs_hosts_slots(const rs_hosts *hosts);

/*
 * The host of each of `ranks` ranks, as an index, to `out`. Rank r goes to host near[r], if `near`
 * is not NULL, near[r] is not -1 and there is a slot left; all others to the slots that are left
 * then, from the first host on. RS_ERR_BUDGET: there are too few slots.
 */
rs_status rs_hosts_place(const rs_hosts *hosts, int ranks, const int *near, int *out) RS_MUST_CHECK;

/* True if both name the same host: alike, or alike up to the first dot where one has no domain. */
bool rs_host_is(const char *name, const char *other);
/* True if `name` is this host's, or localhost. */
bool rs_host_is_here(const char *name);

#endif
