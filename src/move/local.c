/*
 * Moving within one process: every rank's plan in turn, copies between memories that are all here.
 *
 * Only a rank's incoming copies are made, so each copy is made once. The order of ranks does not
 * matter: no copy reads what another writes.
 */
#include "reshard/move.h"

#include "base/clock.h"
#include "base/error.h"
#include "move/execute.h"

/* Makes the copies into the plan's rank. */
static rs_status pull(const rs_plan *plan, const rs_placement *from, const rs_placement *to,
    const rs_memory *old, const rs_memory *now, rs_sums *sums, rs_move_report *report)
{
    rs_status status;
    rs_cells cells = {0};
    const rs_space *space = rs_placement_space(to);
    int rank = rs_plan_rank(plan);
    RS_TRY_GOTO(rs_cells_init(&cells, sums), done);
    size_t count;
    const rs_copy *copies = rs_plan_copies(plan, &count);
    for (size_t k = 0; k < count; k++) {
        const rs_copy *copy = &copies[k];
        rs_end source;
        rs_end target;
        if (copy->target != rank)
            continue;
        RS_TRY_GOTO(
            rs_end_locate(from, copy->source, &old[copy->source], copy, &source, NULL), done);
        RS_TRY_GOTO(rs_end_locate(to, rank, now, copy, &target, NULL), done);
        RS_TRY_GOTO(rs_copy_execute(space, copy, &target, &source, &cells), done);
        if (copy->reach == RS_REACH_SELF)
            report->self_bytes += copy->bytes;
        else if (copy->reach == RS_REACH_NODE)
            report->node_bytes += copy->bytes;
        else
            report->remote_bytes += copy->bytes;
    }
done:
    rs_cells_fini(&cells);
    return status;
}

rs_status rs_move_pull(const rs_plan *plan, const rs_placement *from, const rs_placement *to,
    const rs_memory *old, const rs_memory *now, rs_sums *sums, rs_move_report *report)
{
    double start = rs_clock_seconds();
    rs_move_report total = {0};
    RS_TRY(pull(plan, from, to, old, now, sums, &total));
    total.seconds = rs_clock_seconds() - start;
    if (report != NULL)
        *report = total;
    return RS_OK;
}

rs_status rs_move_local(const rs_placement *from, const rs_placement *to,
    const rs_plan_options *options, const rs_memory *old, const rs_memory *now,
    rs_sums *const *sums, rs_move_report *report)
{
    double start = rs_clock_seconds();
    rs_move_report total = {0};
    for (int rank = 0; rank < rs_placement_holders(to); rank++) {
        rs_plan *plan = NULL;
        RS_TRY(rs_plan_create(from, to, rank, options, &plan));
        rs_status status =
            pull(plan, from, to, old, &now[rank], sums != NULL ? sums[rank] : NULL, &total);
        rs_plan_destroy(plan);
        RS_TRY(status);
    }
    total.sent_bytes = total.remote_bytes;
    total.seconds = rs_clock_seconds() - start;
    if (report != NULL)
        *report = total;
    return RS_OK;
}
