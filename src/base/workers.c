/* Threads are started for a job and joined at its end: jobs here take seconds, threads
 * microseconds.
 */
#include "base/workers.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/error.h"

#define THREADS_MOST 64
#define DETAIL 1000

typedef struct crew {
    rs_worker *work;
    void *context;
    pthread_mutex_t lock;
    rs_status status; /* of the first that failed */
    char detail[DETAIL];
} crew;

typedef struct member {
    crew *crew;
    pthread_t thread;
    int number;
} member;

static void *run(void *argument)
{
    const member *m = argument;
    crew *c = m->crew;
    rs_status status = c->work(c->context, m->number);
    pthread_mutex_lock(&c->lock);
    if (status != RS_OK && c->status == RS_OK) {
        c->status = status;
        snprintf(c->detail, sizeof c->detail, "%s", rs_error_message());
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

rs_status rs_workers_run(int threads, rs_worker *work, void *context)
{
    member members[THREADS_MOST];
    crew c = {.work = work, .context = context, .lock = PTHREAD_MUTEX_INITIALIZER};
    int started = 1;
    members[0] = (member){.crew = &c};
    for (; started < threads && started < THREADS_MOST; started++) {
        member *m = &members[started];
        *m = (member){.crew = &c, .number = started};
        if (pthread_create(&m->thread, NULL, run, m) != 0)
            break;
    }
    run(&members[0]);
    for (int i = 1; i < started; i++)
        pthread_join(members[i].thread, NULL);
    pthread_mutex_destroy(&c.lock);
    return c.status == RS_OK ? RS_OK : rs_error_set(c.status, "%s", c.detail);
}

int rs_workers_cores(void)
{
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return cores > 0 ? cores : 1;
}
