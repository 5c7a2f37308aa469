/*
 * A ferry between hosts, one process each: for pairs of layouts whose ranks are dealt over the
 * hosts, the ferry's copies and those within each host together give every new rank its state; the
 * old one is only read. Then a process that fails: all end, and know.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "elastic/heritage.h"
#include "np/check.h"
#include "pattern.h"
#include "reshard/layout.h"
#include "reshard/move_mpi.h"

#define SALT 9

static int host, hosts; /* a rank stands for a host */

/* Both worlds, and the memory of those of their ranks that are on this host. */
typedef struct worlds {
    rs_placement *old, *now;
    int old_ranks, new_ranks;
    int *old_host, *new_host, *kept;
    rs_memory *old_memory, *new_memory; /* empty where the rank is on another host */
    const rs_memory **lent;
    rs_heritage *heritage;
    rs_memory *holders;
    rs_plan_options options;
    rs_copy *copies;
    size_t count;
} worlds;

static rs_placement *place(const rs_space *space, const char *text)
{
    rs_layout layout;
    rs_placement *placement;
    NEED(rs_layout_parse(text, &layout));
    NEED(rs_layout_placement(space, &layout, &placement));
    return placement;
}

static void begin(worlds *w, const rs_space *space, const char *from, const char *to, int block)
{
    *w = (worlds){.old = place(space, from), .now = place(space, to)};
    w->old_ranks = rs_placement_holders(w->old);
    w->new_ranks = rs_placement_holders(w->now);
    size_t old = (size_t)w->old_ranks, now = (size_t)w->new_ranks;
    w->old_host = calloc(old, sizeof(int));
    w->new_host = calloc(now, sizeof(int));
    w->kept = calloc(now, sizeof(int));
    w->old_memory = calloc(old, sizeof(rs_memory));
    w->new_memory = calloc(now, sizeof(rs_memory));
    w->lent = calloc(old, sizeof *w->lent);
    w->holders = calloc(old + now, sizeof(rs_memory));
    for (int i = 0; i < w->old_ranks; i++) {
        w->old_host[i] = i / block % hosts;
        if (w->old_host[i] != host)
            continue;
        NEED(rs_memory_allocate(w->old, i, &w->old_memory[i]));
        CHECK(pattern_fill(w->old, i, &w->old_memory[i], SALT));
        w->lent[i] = &w->old_memory[i];
    }
    for (int r = 0; r < w->new_ranks; r++) {
        w->new_host[r] = (hosts - 1 + r) % hosts;
        if (w->new_host[r] == host)
            NEED(rs_memory_allocate(w->now, r, &w->new_memory[r]));
    }
    rs_places at = {w->old_host, w->new_host};
    NEED(rs_assign_ranks(w->old, w->now, &at, w->kept));
    NEED(rs_heritage_create(w->old, w->now, w->kept, &at, &w->heritage));
    for (int h = 0; h < w->new_ranks + w->old_ranks; h++)
        if (rs_heritage_hosts(w->heritage)[h] == host)
            NEED(rs_heritage_memory(w->heritage, h, w->lent, &w->holders[h]));
    w->options = (rs_plan_options){
        .node_of = rs_heritage_hosts(w->heritage), .adopt = true, .chunk_bytes = 3000};
    NEED(rs_plan_crossing(
        rs_heritage_placement(w->heritage), w->now, host, &w->options, &w->copies, &w->count));
}

static void end(worlds *w)
{
    for (int h = 0; h < w->new_ranks + w->old_ranks; h++)
        free(w->holders[h].regions);
    for (int i = 0; i < w->old_ranks; i++)
        rs_memory_free(&w->old_memory[i]);
    for (int r = 0; r < w->new_ranks; r++)
        rs_memory_free(&w->new_memory[r]);
    free(w->copies);
    free(w->old_host);
    free(w->new_host);
    free(w->kept);
    free(w->old_memory);
    free(w->new_memory);
    free(w->lent);
    free(w->holders);
    rs_heritage_destroy(w->heritage);
    rs_placement_destroy(w->old);
    rs_placement_destroy(w->now);
}

static rs_status lend(void *context, int holder, const rs_memory **out)
{
    const worlds *w = context;
    CHECK(rs_heritage_hosts(w->heritage)[holder] == host);
    *out = &w->holders[holder];
    return RS_OK;
}

static rs_status give(void *context, int holder, const rs_memory **out)
{
    const worlds *w = context;
    CHECK(holder < w->new_ranks && w->new_host[holder] == host);
    *out = &w->new_memory[holder];
    return RS_OK;
}

static rs_status carry(worlds *w, int64_t window, rs_move_report *report)
{
    rs_ferry ferry = {.comm = MPI_COMM_WORLD,
        .process_of = rs_heritage_hosts(w->heritage),
        .from = rs_heritage_placement(w->heritage),
        .to = w->now,
        .copies = w->copies,
        .count = w->count,
        .source = lend,
        .target = give,
        .context = w,
        .window = window};
    return rs_ferry_run(&ferry, report);
}

/* What new rank `r` has on this host already: adopted, copied or pulled. */
static void fill_in(worlds *w, int r)
{
    const rs_placement *from = rs_heritage_placement(w->heritage);
    rs_plan *plan;
    size_t count;
    NEED(rs_plan_create(from, w->now, r, &w->options, &plan));
    const int *adopted = rs_plan_adopted(plan, &count);
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < w->new_memory[r].count; k++)
            if (w->new_memory[r].regions[k].segment == adopted[i])
                memcpy(w->new_memory[r].regions[k].data,
                    rs_memory_segment(&w->holders[r], adopted[i]),
                    (size_t)w->new_memory[r].regions[k].bytes);
    const rs_copy *copies = rs_plan_copies(plan, &count);
    for (size_t i = 0; i < count; i++) {
        const rs_copy *copy = &copies[i];
        rs_shard source, target;
        if (copy->target != r || copy->reach == RS_REACH_REMOTE)
            continue;
        NEED(rs_placement_address(
            from, copy->source, copy->tensor, copy->role, &copy->box, &source));
        NEED(rs_placement_address(w->now, r, copy->tensor, copy->role, &copy->box, &target));
        rs_move_box(copy->box.ndim, copy->box.extent, rs_dtype_size(target.dtype),
            rs_memory_shard(&w->new_memory[r], &target), target.stride,
            rs_memory_shard(&w->holders[copy->source], &source), source.stride);
    }
    rs_plan_destroy(plan);
}

static void moves(const rs_space *space, const char *from, const char *to, int block)
{
    worlds w;
    rs_move_report report = {0};
    snprintf(scenario, sizeof scenario, "%s -> %s, blocks of %d", from, to, block);
    begin(&w, space, from, to, block);
    NEED(carry(&w, block == 1 ? 4000 : 0, &report));
    int64_t in = 0, out = 0;
    for (size_t i = 0; i < w.count; i++) {
        bool mine = rs_heritage_hosts(w.heritage)[w.copies[i].target] == host;
        *(mine ? &in : &out) += w.copies[i].bytes;
    }
    CHECK(report.remote_bytes == in && report.sent_bytes == out && report.node_bytes == 0);
    for (int r = 0; r < w.new_ranks; r++)
        if (w.new_host[r] == host) {
            fill_in(&w, r);
            CHECK(pattern_check(w.now, r, &w.new_memory[r], SALT));
        }
    for (int i = 0; i < w.old_ranks; i++)
        if (w.old_host[i] == host)
            CHECK(pattern_check(w.old, i, &w.old_memory[i], SALT));
    end(&w);
}

static void fails(const rs_space *space, rs_fault point)
{
    worlds w;
    int victim = point == RS_FAULT_SEND ? 0 : hosts - 1; /* it sends; it receives */
    snprintf(scenario, sizeof scenario, "fault %d", (int)point);
    begin(&w, space, "tp=2", "tp=4", 1);
    if (host == victim)
        rs_fault_arm(point, 1, 1);
    rs_status status = carry(&w, 0, NULL);
    int hit = host == victim && !rs_fault_pending(point);
    rs_fault_arm(point, 0, 0);
    MPI_Bcast(&hit, 1, MPI_INT, victim, MPI_COMM_WORLD);
    CHECK(status == (!hit ? RS_OK : host == victim ? RS_ERR_IO : RS_ERR_PEER));
    CHECK(hit || hosts == 1);
    end(&w);
    /* A list that is not this process's. */
    begin(&w, space, "tp=2", "tp=4", 1);
    rs_copy wrong = {.source = 0, .target = 0};
    free(w.copies);
    w.copies = NULL;
    worlds bad = w;
    if (host == 0) {
        bad.copies = &wrong;
        bad.count = 1;
    } else {
        bad.count = 0;
    }
    CHECK(carry(&bad, 0, NULL) == (host == 0 ? RS_ERR_ARGUMENT : RS_ERR_PEER));
    end(&w);
}

int main(void)
{
    static const char *const layouts[] = {"dp=1", "dp=3", "tp=2", "tp=3,pp=2", "pp=5",
        "dp=4,zero=1", "tp=2,pp=2,dp=2,zero=1", "tp=2,dp=5,zero=1", "dp=4,zero=3,zero_cut=param"};
    enum { LAYOUTS = sizeof layouts / sizeof *layouts };
    rs_space *space;
    rs_model model = pattern_model();
    check_begin();
    host = rank;
    hosts = ranks;
    NEED(rs_model_space(&model, RS_DTYPE_BF16, &space));
    for (int a = 0; a < LAYOUTS; a++)
        for (int b = 0; b < LAYOUTS; b++)
            if ((2 * a + b) % 3 == 0)
                moves(space, layouts[a], layouts[b], 1 + (a + b) % 3);
    fails(space, RS_FAULT_SEND);
    fails(space, RS_FAULT_RECEIVE);
    rs_space_destroy(space);
    return check_end("all carried");
}
