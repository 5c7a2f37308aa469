/* The command lines that start ranks: mpirun's and srun's. */
#ifndef RS_CLI_LAUNCHER_H
#define RS_CLI_LAUNCHER_H

#include "elastic/hosts.h"
#include "elastic/link.h"
#include "train/train.h"

#define LAUNCHER_ARGUMENTS (48 + 40 * RS_HOSTS)

typedef struct launcher {
    const char *arguments[LAUNCHER_ARGUMENTS]; /* NULL-terminated; [0] is a path */
    int count;
    char path[512];
    char self[RS_TRAIN_PATH];
    char folder[RS_TRAIN_PATH];
    char ranks[16], width[16], type[32], world[16];
    char address[RS_LINK_ADDRESS];
    char words[RS_HOSTS * (RS_HOST_NAME + 32)]; /* of hosts and their ranks */
    size_t used;
} launcher;

/* The world that is started. */
typedef struct launcher_world {
    int number;
    int ranks;
    bool ferry;
    const char *address;   /* of the supervisor, for its ranks */
    const rs_hosts *hosts; /* NULL, or without any: this one alone */
    const int *places;     /* the host of each rank */
} launcher_world;

/* Fills in the command line for `name` ("auto", "mpirun", "srun") and sets the thread counts in the
 * environment where the user has not. RS_ERR_NOT_FOUND: there is no such launcher here. */
rs_status launcher_prepare(launcher *l, const char *name, const rs_train_options *options,
    const launcher_world *world, const char *console, int width) RS_MUST_CHECK;

/* The launcher's own temporary folder of this job; returns `path`. */
char *launcher_folder(const rs_train_options *options, char *path, size_t size);

#endif
