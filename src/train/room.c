/*
 * Nodes and their memory. Arenas are files of a machine's shared memory, so room is counted per
 * machine; what the plan calls a node is the same unless options say otherwise (ranks per node, for
 * trying out several nodes on one machine; or MPI between all ranks).
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "train/attach.h"
#include "train/job.h"
#include "train/nodes.h"
#include "train/twophase.h"

/* Bytes of arena tables and page rounding, per rank, at most. */
#define OVERHEAD (256 << 10)

static void number_hosts(rs_job *job, int *host_of, int *hosts)
{
    int lowest = job->rank;
    MPI_Bcast(&lowest, 1, MPI_INT, 0, job->host);
    MPI_Allgather(&lowest, 1, MPI_INT, host_of, 1, MPI_INT, job->comm);
    *hosts = 0;
    for (int r = 0; r < job->ranks; r++)
        host_of[r] = host_of[r] == r ? (*hosts)++ : host_of[host_of[r]];
}

rs_status rs_job_find_nodes(rs_job *job)
{
    const rs_train_options *o = job->options;
    MPI_Comm_split_type(job->comm, MPI_COMM_TYPE_SHARED, job->rank, MPI_INFO_NULL, &job->host);
    job->node_of = rs_calloc((size_t)job->ranks, sizeof *job->node_of);
    rs_status status =
        job->node_of != NULL ? RS_OK : rs_error_memory((size_t)job->ranks * sizeof(int));
    RS_TRY(rs_job_agree(job, status));
    number_hosts(job, job->node_of, &job->nodes);
    if (o->transport == RS_TRANSPORT_ARENA && job->nodes > 1)
        return rs_job_agree(
            job, rs_error_set(RS_ERR_ARGUMENT,
                     "transport arena wants all ranks on one machine, and they are on %d: use auto",
                     job->nodes));
    int size = rs_nodes_size(o);
    job->apart = size == 0 && job->nodes > 1;
    if (size > 0) {
        rs_nodes_fill(job->ranks, size, job->node_of);
        job->nodes = job->node_of[job->ranks - 1] + 1;
    }
    job->mirrors = o->redundancy > 0 ? job->node_of : NULL;
    return RS_OK;
}

const int *rs_job_mirrors(const rs_job *job)
{
    return job->mirrors;
}

void rs_job_plan_options(const rs_job *job, rs_plan_options *out)
{
    *out = (rs_plan_options){.node_of = job->node_of, .adopt = true};
}

/* What this rank needs while it switches from `from` to `to`: in tight mode the gradients of the
 * one go before those of the other come. */
static rs_status switch_bytes(
    const rs_job *job, const rs_state *from, const rs_state *to, int64_t *bytes)
{
    rs_plan_options options;
    rs_plan *plan = NULL;
    rs_job_plan_options(job, &options);
    RS_TRY(rs_plan_create(from->placement, to->placement, job->rank, &options, &plan));
    const rs_plan_figures *figures = rs_plan_figures_of(plan);
    *bytes = job->options->tight ? figures->peak_tight : figures->peak_safe;
    rs_plan_destroy(plan);
    int64_t old = 0, new = 0;
    RS_TRY(rs_twophase_bytes(from, rs_train_optimizer(job->options), job->options->threads, &old));
    RS_TRY(rs_twophase_bytes(to, rs_train_optimizer(job->options), job->options->threads, &new));
    *bytes += job->options->tight ? rs_max64(old, new) : old + new;
    return RS_OK;
}

/* Refuses if the ranks of some machine together need more than its keeper has. */
static rs_status check_machine(
    rs_job *job, rs_status mine, int64_t bytes, const char *what, bool moves)
{
    int64_t mine_and_tables = bytes + OVERHEAD, need, have = 0;
    MPI_Allreduce(&mine_and_tables, &need, 1, MPI_INT64_T, MPI_SUM, job->host);
    if (mine == RS_OK)
        mine = rs_keeper_free_bytes(job->keeper, &have);
    if (mine == RS_OK && need > have) {
        char need_text[RS_HUMAN], have_text[RS_HUMAN], host[128] = "";
        const char *folder = job->options->arena_dir;
        gethostname(host, sizeof host - 1);
        mine = rs_error_set(RS_ERR_BUDGET,
            "%s needs %s in %s on host %s, and there are %s: make it larger, use another folder "
            "(--arena-dir)%s",
            what, rs_human_bytes(need, need_text), folder[0] != '\0' ? folder : "/dev/shm", host,
            rs_human_bytes(have, have_text),
            !moves || job->options->tight ? "" : ", or switch in less memory (--tight)");
    }
    return rs_job_agree(job, mine);
}

rs_status rs_job_check_room(rs_job *job)
{
    const rs_train_options *o = job->options;
    rs_state now = {0}, then = {0};
    rs_layout layout;
    int64_t bytes = 0, ledger = 0;
    rs_status mine = rs_layout_parse(o->layout, &layout), status;
    if (mine == RS_OK)
        mine = rs_state_init(job->space, &layout, job->rank, rs_job_mirrors(job), &now);
    if (mine == RS_OK)
        mine = rs_state_footprint(&now, &bytes);
    if (mine == RS_OK)
        mine = rs_twophase_bytes(&now, rs_train_optimizer(o), o->threads, &ledger);
    bytes = rs_attaches_alike(job) ? 0 : bytes + ledger; /* those are there already */
    RS_TRY_GOTO(check_machine(job, mine, bytes, "training", false), done);
    for (size_t i = 0; i < o->switch_count; i++) {
        char what[RS_LAYOUT_TEXT + 32];
        snprintf(what, sizeof what, "the switch to %s", o->switches[i].layout);
        mine = rs_layout_parse(o->switches[i].layout, &layout);
        if (mine == RS_OK)
            mine = rs_state_init(job->space, &layout, job->rank, rs_job_mirrors(job), &then);
        if (mine == RS_OK)
            mine = switch_bytes(job, &now, &then, &bytes);
        RS_TRY_GOTO(check_machine(job, mine, bytes, what, true), done);
        rs_state_fini(&now);
        now = then;
        memset(&then, 0, sizeof then);
    }
done:
    rs_state_fini(&then);
    rs_state_fini(&now);
    return status;
}

/* Whether a rank of another node than this one's has all of a shard. */
static bool is_elsewhere(const rs_job *job, const rs_shard *shard, const rs_holding_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        const rs_holding *h = &list->items[i];
        for (size_t k = h->first; k < h->first + h->count; k++)
            if (job->node_of[list->ranks[k]] != job->node_of[job->rank] &&
                rs_box_contains(&h->box, &shard->box))
                return true;
    }
    return false;
}

/* Bytes of this rank's shards that no other node has. */
static rs_status count_alone(const rs_job *job, int64_t *bytes)
{
    const rs_placement *placement = job->state.placement;
    rs_shard_list shards = {0};
    rs_holding_list list = {0};
    rs_status status = rs_placement_shards(placement, job->rank, -1, &shards);
    for (size_t i = 0; i < shards.count && status == RS_OK; i++) {
        const rs_shard *s = &shards.items[i];
        status = rs_placement_locate(placement, s->tensor, s->role, &s->box, &list);
        if (status == RS_OK && !is_elsewhere(job, s, &list))
            *bytes += rs_box_volume(&s->box) * (int64_t)rs_dtype_size(s->dtype);
    }
    rs_holding_list_fini(&list);
    rs_shard_list_fini(&shards);
    return status;
}

rs_status rs_job_check_redundancy(rs_job *job)
{
    char text[RS_HUMAN];
    int64_t alone = 0, most = 0;
    if (job->options->redundancy == 0)
        return RS_OK;
    RS_TRY(rs_job_agree(job, count_alone(job, &alone)));
    MPI_Reduce(&alone, &most, 1, MPI_INT64_T, MPI_MAX, 0, job->comm);
    if (most > 0)
        rs_job_notice(job,
            "redundancy 1 mirrors what ZeRO divides over nodes; under %s up to %s of a rank are on "
            "its node alone, and if that is lost, the job goes back to its newest checkpoint",
            job->layout, rs_human_bytes(most, text));
    return RS_OK;
}
