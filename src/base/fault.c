/* Fault points: per point, an atomic count of visits since it was armed. */
#include "base/fault.h"

#include <signal.h>
#include <stdatomic.h>

typedef struct fault_point {
    atomic_long first; /* visit that goes wrong; 0: none */
    atomic_long last;
    atomic_long visits;
} fault_point;

static fault_point points[RS_FAULTS];

void rs_fault_arm(rs_fault point, long nth, long times)
{
    atomic_store(&points[point].visits, 0);
    atomic_store(&points[point].last, nth + times - 1);
    atomic_store(&points[point].first, nth);
}

bool rs_fault_hit(rs_fault point)
{
    long first = atomic_load_explicit(&points[point].first, memory_order_relaxed);
    if (first == 0)
        return false;
    long visit = atomic_fetch_add(&points[point].visits, 1) + 1;
    return visit >= first && visit <= atomic_load(&points[point].last);
}

bool rs_fault_strikes(rs_fault point)
{
    if (rs_fault_hit(RS_FAULT_DIE))
        raise(SIGKILL);
    return rs_fault_hit(point);
}

bool rs_fault_pending(rs_fault point)
{
    return atomic_load(&points[point].first) > 0 &&
           atomic_load(&points[point].visits) < atomic_load(&points[point].first);
}
