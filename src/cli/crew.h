/* A command that several processes may run together, each started with the same arguments by mpirun
 * or srun, and that ends well when it is interrupted. */
#ifndef RS_CLI_CREW_H
#define RS_CLI_CREW_H

#include <stdbool.h>

#include "reshard/group.h"
#include "reshard/status.h"

typedef struct crew {
    bool joined;
    rs_group group;
} crew;

/* Before anything is printed: of the processes of a launcher only the first speaks. */
void crew_hush(void);

/* Finds the other processes, if a launcher started this one. RS_ERR_MPI: they cannot be found,
 * which is so when the launcher is another MPI's. */
rs_status crew_join(crew *c) RS_MUST_CHECK;

/* NULL: this process is alone. */
const rs_group *crew_group(const crew *c);
void crew_leave(crew *c);

/* From here on SIGINT, SIGTERM and SIGHUP are noted, but for those that are ignored (nohup); the
 * second time they end the process. */
void crew_catch_signals(void);

/* The one that was noted, 0 if none. */
int crew_signal(void);

#endif
