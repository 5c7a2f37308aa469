/*
 * The state of all ranks lies in shared memory of the host. A switch in safe mode needs the old and
 * the new state at once, less what stays where it lies; in tight mode at most the larger of the two
 * and a window per rank. The most over all steps of the job is held against what is free.
 */
#include "cli/room.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "reshard/arena.h"
#include "reshard/model.h"
#include "reshard/move.h"
#include "reshard/plan.h"
#include "train/nodes.h"

static int64_t world_bytes(const rs_placement *placement, rs_status *status)
{
    rs_segment_list segments = {0};
    int64_t bytes = 0;
    for (int rank = 0; rank < rs_placement_holders(placement) && *status == RS_OK; rank++) {
        *status = rs_placement_segments(placement, rank, &segments);
        for (size_t i = 0; i < segments.count && *status == RS_OK; i++)
            bytes += segments.items[i].bytes;
    }
    rs_segment_list_fini(&segments);
    return bytes;
}

typedef struct need {
    int64_t safe, tight; /* bytes on this host, at their highest */
} need;

/* One transition: `old` is replaced by the placement of `text`. */
static rs_status add_transition(const rs_train_options *options, const rs_space *space,
    const char *text, rs_placement **old, int64_t *old_bytes, need *most)
{
    rs_layout layout;
    rs_placement *now = NULL;
    rs_plan_totals totals = {0};
    rs_plan_options how = {.ranks_per_node = options->ranks_per_node, .adopt = true};
    RS_TRY(rs_layout_parse(text, &layout));
    RS_TRY(rs_nodes_supposed_placement(
        space, &layout, options->redundancy > 0 ? rs_nodes_size(options) : 0, &now));
    rs_status status = RS_OK;
    int64_t bytes = world_bytes(now, &status);
    if (status == RS_OK && *old != NULL)
        status = rs_plan_totals_compute(*old, now, &how, false, &totals);
    if (status != RS_OK) {
        rs_placement_destroy(now);
        return status;
    }
    int64_t window = options->window > 0 ? options->window : RS_MOVE_WINDOW;
    int64_t safe = *old_bytes + bytes - totals.adopted;
    int64_t tight = rs_max64(*old_bytes, bytes) + window * options->ranks;
    most->safe = rs_max64(most->safe, safe);
    most->tight = rs_max64(most->tight, rs_min64(safe, tight));
    rs_plan_totals_fini(&totals);
    rs_placement_destroy(*old);
    *old = now;
    *old_bytes = bytes;
    return RS_OK;
}

static rs_status estimate(const rs_train_options *options, need *out)
{
    rs_model model;
    rs_space *space = NULL;
    rs_placement *placement = NULL;
    int64_t bytes = 0;
    need most = {0};
    RS_TRY(rs_model_load(options->model, &model));
    RS_TRY(rs_train_space(options, &model, &space));
    rs_status status = add_transition(options, space, options->layout, &placement, &bytes, &most);
    for (size_t i = 0; i < options->switch_count && status == RS_OK; i++)
        status =
            add_transition(options, space, options->switches[i].layout, &placement, &bytes, &most);
    rs_placement_destroy(placement);
    rs_space_destroy(space);
    *out = most;
    return status;
}

rs_status room_estimate(const rs_train_options *options, int64_t *safe, int64_t *tight)
{
    need most = {0};
    RS_TRY(estimate(options, &most));
    *safe = most.safe;
    *tight = most.tight;
    return RS_OK;
}

rs_status room_check(const rs_train_options *options)
{
    const char *nodes = getenv("SLURM_JOB_NUM_NODES");
    if (options->hosts[0] != '\0' || (nodes != NULL && strtol(nodes, NULL, 10) > 1))
        return RS_OK;
    const char *folder = options->arena_dir[0] != '\0' ? options->arena_dir : "/dev/shm";
    rs_keeper *keeper = NULL;
    int64_t room = 0;
    need most;
    RS_TRY(rs_keeper_open("room", folder, &keeper));
    rs_status status = rs_keeper_free_bytes(keeper, &room);
    rs_keeper_close(keeper);
    RS_TRY(status);
    RS_TRY(estimate(options, &most));
    int64_t wanted = options->tight ? most.tight : most.safe;
    if (wanted <= room)
        return RS_OK;
    char a[RS_HUMAN], b[RS_HUMAN], c[RS_HUMAN];
    rs_human_bytes(wanted, a);
    rs_human_bytes(room, b);
    if (!options->tight && most.tight <= room)
        return rs_error_set(RS_ERR_BUDGET,
            "%s: the job needs %s, found %s free; --tight needs %s, --arena-dir names another "
            "folder",
            folder, a, b, rs_human_bytes(most.tight, c));
    return rs_error_set(RS_ERR_BUDGET,
        "%s: the job needs %s, found %s free; use a smaller model, or another folder with "
        "--arena-dir",
        folder, a, b);
}
