/*
 * The engine: one rank's part of a move.
 *
 * A rank walks its copies in the plan's order with two cursors. The *local* cursor pulls: copies
 * within the rank and its node are made here, from mapped memory. The *remote* cursor runs ahead
 * and posts messages, sends and receives alike, as long as those in flight stay within the window.
 * Between two pulls messages are tested and finished. What is packed on its side travels from or to
 * its place; what is strided is packed and unpacked through the staging pool.
 *
 * No deadlock: take the unfinished message with the lowest place in the global order. Sender and
 * receiver have finished all their earlier ones, so at both it is next or posted: an empty window
 * takes a message of any size, and an empty pool has room for the largest. Any limit on what is in
 * flight keeps this.
 *
 * Tight mode adds, for either cursor: copy j waits until all copies of the rank's list (those that
 * it only lends its memory for, too) from the first on are done, up to where those left and j
 * together are within the window. Such copies precede j, so the lowest unfinished copy still waits
 * for nobody. rs_plan_peak_tight walks the same rule. Every copy is checked against the source's
 * sum before the source may be released: pulls by the reader, who then marks them; messages by the
 * receiver, who answers; what was wrong is copied once more.
 *
 * One process may stand for several holders (a ferry, move_mpi.h): then its list is that of all of
 * them, and wherever an end of a copy is asked for, the holder is taken for its process. The lists
 * keep the global order, so nothing above changes.
 *
 * Errors: the first is kept. From then on the rank writes no target and makes no pulls, but posts
 * and finishes every message (receives go to scratch), so that no peer waits for it. In tight mode
 * it also tells its sources, by marks and answers, that they must not release what it has not read;
 * they halt in turn. Whatever was not moved is whole where it was.
 *
 * Cost: per message one test per turn; per copy two look-ups of its place.
 */
#include "move/engine.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/crash.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/memory.h"
#include "move/execute.h"

#define MAX_FLIGHTS RS_TRANSPORT_FLIGHTS
_Static_assert(MAX_FLIGHTS <= RS_TRANSPORT_NUMBERS, "numbers of a pair's flights are distinct");

/* What a receiver answers in a tight move. */
enum { ANSWER_RIGHT = 1, ANSWER_AGAIN, ANSWER_HALTED };

/* A remote copy under way. */
typedef struct flight {
    size_t index; /* of the copy */
    int number;   /* among those of its pair, for labels */
    bool sends;
    bool scratch;     /* a receive whose bytes are thrown away */
    bool direct;      /* its bytes come or go straight from their place */
    bool again;       /* it is being made the second time */
    bool answered;    /* the answer was posted (receiver) */
    char *staging;    /* NULL if direct */
    const void *data; /* what is sent or received */
    rs_message *body;
    rs_message *check;
    rs_message *answer;
    rs_sum sum;
    char verdict;
} flight;

/* Where a cursor's window begins: the first copy that may be unfinished when the cursor's is
 * started. */
typedef struct gate {
    size_t low;
    size_t end; /* copies low .. end - 1 are in `bytes` */
    int64_t bytes;
} gate;

struct rs_engine {
    rs_engine_task task;
    const rs_space *space;
    int rank;
    int ranks;
    const rs_copy *copies;
    size_t count;
    rs_cells cells;
    const rs_memory **peers; /* by rank, lent once */
    uint32_t *sent;          /* by rank: messages started to it, and from it */
    uint32_t *received;
    rs_staging staging;
    rs_tight tight;
    bool *done;    /* of each copy */
    size_t oldest; /* first that is not done */
    size_t local;  /* the cursors */
    size_t remote;
    gate local_gate;
    gate remote_gate;
    flight slots[MAX_FLIGHTS];    /* messages point into them: a flight never moves */
    flight *flights[MAX_FLIGHTS]; /* those under way, oldest first, then the free slots */
    int flight_count;
    int64_t in_flight;
    int64_t bytes_done;
    int64_t bytes_total;
    rs_status status; /* first error */
    char *detail;     /* its text; NULL if there was no memory for it */
    bool halted;
    rs_move_report report;
};

static bool is_remote(const rs_copy *copy)
{
    return copy->reach == RS_REACH_REMOTE;
}

/* The process that stands for a holder. */
static int process_of(const rs_engine *engine, int holder)
{
    return engine->task.process_of != NULL ? engine->task.process_of[holder] : holder;
}

static bool gives(const rs_engine *engine, const rs_copy *copy)
{
    return process_of(engine, copy->source) == engine->rank;
}

static bool takes(const rs_engine *engine, const rs_copy *copy)
{
    return process_of(engine, copy->target) == engine->rank;
}

/* A copy that is a message of this rank. */
static bool is_message(const rs_engine *engine, const rs_copy *copy)
{
    return is_remote(copy) && !engine->task.ferried;
}

/* A copy that this rank makes by itself. */
static bool is_pull(const rs_engine *engine, const rs_copy *copy)
{
    return takes(engine, copy) && !is_remote(copy);
}

/* Keeps the first error; from here on only the others' part is done. */
static void fail(rs_engine *engine, rs_status status)
{
    if (status == RS_OK)
        return;
    if (engine->status == RS_OK) {
        engine->status = status;
        engine->detail = rs_strdup(rs_error_message());
    }
    if (engine->halted)
        return;
    engine->halted = true;
    if (engine->task.tight) {
        rs_status halted = rs_tight_halt(&engine->tight);
        (void)halted; /* the error that led here is the one to report */
        /* What others pull from here is not waited for any more. */
        for (size_t k = 0; k < engine->count; k++)
            if (engine->copies[k].reach == RS_REACH_NODE)
                engine->done[k] = true;
    }
}

/* Halts because a peer did. */
static void halt_for_peer(rs_engine *engine, int rank)
{
    fail(engine, rs_error_set(RS_ERR_PEER, "rank %d stopped in the middle of a tight move", rank));
}

static void finish_copy(rs_engine *engine, size_t index)
{
    const rs_copy *copy = &engine->copies[index];
    engine->done[index] = true;
    if (!takes(engine, copy))
        return;
    engine->bytes_done += copy->bytes;
    if (engine->task.progress != NULL)
        engine->task.progress(
            engine->task.progress_context, engine->bytes_done, engine->bytes_total);
}

/* True if copy `index` may be started; the gate's cursor only moves forwards. */
static bool gate_open(rs_engine *engine, gate *g, size_t index)
{
    if (!engine->task.tight || engine->halted)
        return true;
    for (; g->end <= index; g->end++)
        g->bytes += engine->copies[g->end].bytes;
    for (; g->low < index && g->bytes > engine->task.window; g->low++)
        g->bytes -= engine->copies[g->low].bytes;
    while (engine->oldest < engine->count && engine->done[engine->oldest])
        engine->oldest++;
    return engine->oldest >= g->low;
}

/* The memory that a copy reads. */
static rs_status source_memory(rs_engine *engine, int source, const rs_memory **out)
{
    if (engine->task.process_of == NULL && source == engine->rank) {
        *out = engine->task.old;
        return RS_OK;
    }
    if (engine->peers[source] == NULL) {
        if (engine->task.peer == NULL)
            return rs_error_set(RS_ERR_ARGUMENT,
                "rank %d pulls from rank %d, but nothing lends that rank's memory", engine->rank,
                source);
        RS_TRY(engine->task.peer(engine->task.peer_context, source, &engine->peers[source]));
    }
    *out = engine->peers[source];
    return RS_OK;
}

static rs_status locate_source(rs_engine *engine, const rs_copy *copy, rs_end *end)
{
    const rs_memory *memory = NULL;
    RS_TRY(source_memory(engine, copy->source, &memory));
    return rs_end_locate(engine->task.from, copy->source, memory, copy, end, NULL);
}

static rs_status locate_target(rs_engine *engine, const rs_copy *copy, rs_end *end)
{
    const rs_memory *memory = engine->task.now;
    if (engine->task.process_of != NULL)
        RS_TRY(engine->task.target(engine->task.peer_context, copy->target, &memory));
    return rs_end_locate(engine->task.to, copy->target, memory, copy, end, NULL);
}

/* ---- pulls ---- */

static rs_status pull(rs_engine *engine, size_t index)
{
    const rs_copy *copy = &engine->copies[index];
    rs_end source;
    rs_end target;
    RS_TRY(locate_source(engine, copy, &source));
    RS_TRY(locate_target(engine, copy, &target));
    if (!engine->task.tight) {
        RS_TRY(rs_copy_execute(engine->space, copy, &target, &source, &engine->cells));
    } else {
        RS_TRY(rs_tight_reserve(&engine->tight, copy));
        RS_TRY(rs_copy_execute_checked(engine->space, copy, &target, &source, &engine->cells));
    }
    finish_copy(engine, index);
    if (copy->reach == RS_REACH_SELF)
        engine->report.self_bytes += copy->bytes;
    else
        engine->report.node_bytes += copy->bytes;
    if (!engine->task.tight)
        return RS_OK;
    rs_crash_point("tight.copy");
    RS_TRY(rs_tight_mark(&engine->tight, copy->source));
    rs_crash_point("tight.mark");
    return copy->reach == RS_REACH_SELF ? rs_tight_release(&engine->tight, copy) : RS_OK;
}

/* Moves the local cursor past its next pull; true if it moved. */
static bool pull_next(rs_engine *engine)
{
    size_t before = engine->local;
    while (engine->local < engine->count && !is_pull(engine, &engine->copies[engine->local]))
        engine->local++;
    if (engine->local == engine->count || !gate_open(engine, &engine->local_gate, engine->local))
        return engine->local > before;
    if (!engine->halted)
        fail(engine, pull(engine, engine->local));
    engine->done[engine->local++] = true; /* made, or given up */
    return true;
}

/* ---- messages ---- */

static int peer_of(const rs_engine *engine, const flight *f)
{
    const rs_copy *copy = &engine->copies[f->index];
    return process_of(engine, f->sends ? copy->target : copy->source);
}

/* Starts one message; an error is kept, and the message counts as done. */
static void start(rs_engine *engine, const flight *f, bool sends, rs_channel channel,
    const void *data, int64_t bytes, rs_message **out)
{
    const rs_transport *transport = engine->task.transport;
    int peer = peer_of(engine, f);
    rs_label label = {channel, f->number};
    void *to = (void *)(uintptr_t)data; /* receives only write what this rank may write */
    rs_status status = sends ? transport->send(transport->context, peer, label, data, bytes, out)
                             : transport->receive(transport->context, peer, label, to, bytes, out);
    if (status != RS_OK)
        *out = NULL;
    fail(engine, status);
}

/* True if a message is done (or was never started); an error is kept. */
static bool arrived(rs_engine *engine, rs_message **message)
{
    const rs_transport *transport = engine->task.transport;
    bool done = true;
    if (*message == NULL)
        return true;
    rs_status status = transport->test(transport->context, *message, &done);
    fail(engine, status);
    if (done || status != RS_OK)
        *message = NULL;
    return *message == NULL;
}

/* Packs what is to be sent. The place it is sent from was checked beforehand; if it has gone since,
 * zeros are sent, for the peer waits for something. */
static void pack(rs_engine *engine, flight *f, const rs_end *source, bool located)
{
    const rs_copy *copy = &engine->copies[f->index];
    if (f->direct)
        return;
    if (!located) {
        memset(f->staging, 0, (size_t)copy->bytes);
        return;
    }
    size_t size = rs_copy_element_size(engine->space, copy);
    rs_end packed;
    rs_end_packed(copy, size, f->staging, &packed);
    rs_move_box(copy->box.ndim, copy->box.extent, size, f->staging, packed.stride, source->data,
        source->stride);
}

/* Sends the body, and in a tight move its sum, and waits for the answer. */
static void start_send(rs_engine *engine, flight *f)
{
    const rs_copy *copy = &engine->copies[f->index];
    if (rs_fault_hit(RS_FAULT_SEND)) /* an error here, while the peer still gets its message */
        fail(
            engine, rs_error_set(RS_ERR_IO, "a message to rank %d was made to fail", copy->target));
    start(engine, f, true, RS_CHANNEL_DATA, f->data, copy->bytes, &f->body);
    if (!engine->task.tight)
        return;
    start(engine, f, true, RS_CHANNEL_CHECK, &f->sum, sizeof f->sum, &f->check);
    start(engine, f, false, RS_CHANNEL_ANSWER, &f->verdict, 1, &f->answer);
}

static void start_receive(rs_engine *engine, flight *f)
{
    const rs_copy *copy = &engine->copies[f->index];
    if (rs_fault_hit(RS_FAULT_RECEIVE))
        fail(engine,
            rs_error_set(RS_ERR_IO, "a message from rank %d was made to fail", copy->source));
    start(engine, f, false, RS_CHANNEL_DATA, f->data, copy->bytes, &f->body);
    if (engine->task.tight)
        start(engine, f, false, RS_CHANNEL_CHECK, &f->sum, sizeof f->sum, &f->check);
}

/* Prepares the memory of a flight; false if that has to be tried again. */
static bool prepare(rs_engine *engine, flight *f)
{
    const rs_copy *copy = &engine->copies[f->index];
    rs_end end;
    rs_status status =
        f->sends ? locate_source(engine, copy, &end) : locate_target(engine, copy, &end);
    fail(engine, status);
    bool located = status == RS_OK;
    f->scratch = !f->sends && engine->halted;
    f->direct = located && !f->scratch &&
                rs_end_is_packed(copy, rs_copy_element_size(engine->space, copy), &end);
    if (!f->direct) {
        f->staging = rs_staging_take(&engine->staging, copy->bytes);
        if (f->staging == NULL)
            return false;
    }
    if (engine->task.tight && !f->sends && !f->scratch) {
        status = rs_tight_reserve(&engine->tight, copy);
        fail(engine, status);
        if (status != RS_OK) { /* the next time it goes to scratch */
            rs_staging_give(&engine->staging, f->staging);
            return false;
        }
    }
    f->data = f->direct ? end.data : f->staging;
    if (f->sends) {
        pack(engine, f, &end, located);
        if (engine->task.tight && located)
            f->sum = rs_end_sum(engine->space, copy, &end);
    }
    return true;
}

/* Moves the remote cursor past its next message; true if it moved. */
static bool post_next(rs_engine *engine)
{
    size_t before = engine->remote;
    while (engine->remote < engine->count && !is_message(engine, &engine->copies[engine->remote]))
        engine->remote++;
    if (engine->remote == engine->count)
        return engine->remote > before;
    const rs_copy *copy = &engine->copies[engine->remote];
    if (engine->flight_count == MAX_FLIGHTS ||
        (engine->flight_count > 0 && copy->bytes > engine->task.window - engine->in_flight) ||
        !gate_open(engine, &engine->remote_gate, engine->remote))
        return engine->remote > before;
    flight *f = engine->flights[engine->flight_count];
    *f = (flight){.index = engine->remote, .sends = gives(engine, copy)};
    if (!prepare(engine, f))
        return engine->remote > before;
    uint32_t *numbers = f->sends ? engine->sent : engine->received;
    f->number = (int)(numbers[peer_of(engine, f)]++ % RS_TRANSPORT_NUMBERS);
    engine->flight_count++;
    engine->in_flight += copy->bytes;
    engine->remote++;
    if (f->sends)
        start_send(engine, f);
    else
        start_receive(engine, f);
    return true;
}

/* A body has come: puts it in its place and sums it. In a tight move says whether it was right. */
static rs_status unpack(rs_engine *engine, flight *f, bool *right)
{
    const rs_copy *copy = &engine->copies[f->index];
    rs_end target;
    rs_end packed;
    *right = true;
    RS_TRY(locate_target(engine, copy, &target));
    rs_end_packed(copy, rs_copy_element_size(engine->space, copy), f->data, &packed);
    if (!f->direct)
        return engine->task.tight
                   ? rs_copy_attempt(
                         engine->space, copy, &target, &packed, &f->sum, &engine->cells, right)
                   : rs_copy_execute(engine->space, copy, &target, &packed, &engine->cells);
    if (rs_fault_hit(RS_FAULT_CORRUPT))
        *(unsigned char *)(uintptr_t)f->data ^= 0x04;
    if (!engine->task.tight) {
        rs_copy_sum_target(engine->space, copy, &target, &engine->cells);
        return RS_OK;
    }
    rs_sum sum = rs_end_sum(engine->space, copy, &target);
    *right = memcmp(&sum, &f->sum, sizeof sum) == 0;
    if (*right)
        rs_copy_add_sum(engine->space, copy, &target, &sum, &engine->cells);
    return RS_OK;
}

/* A receive's messages are here. True if the flight is over. */
static bool finish_receive(rs_engine *engine, flight *f)
{
    const rs_copy *copy = &engine->copies[f->index];
    if (f->answered) /* only its answer was under way */
        return true;
    bool right = true;
    if (!f->scratch && !engine->halted) {
        fail(engine, unpack(engine, f, &right));
        if (!right && f->again)
            fail(engine, rs_copy_wrong(engine->space, copy));
        if (right && !engine->halted) {
            engine->report.remote_bytes += copy->bytes;
            finish_copy(engine, f->index);
        }
    }
    engine->done[f->index] = engine->done[f->index] || engine->halted;
    if (!engine->task.tight)
        return true;
    bool again = !right && !engine->halted;
    f->verdict = again ? ANSWER_AGAIN : engine->halted ? ANSWER_HALTED : ANSWER_RIGHT;
    start(engine, f, true, RS_CHANNEL_ANSWER, &f->verdict, 1, &f->answer);
    f->answered = !again;
    if (again) {
        f->again = true;
        start_receive(engine, f);
    }
    return false;
}

/* A send's messages are gone, and in a tight move the answer is here. True if the flight is over.
 */
static bool finish_send(rs_engine *engine, flight *f)
{
    const rs_copy *copy = &engine->copies[f->index];
    if (engine->task.tight && f->verdict == ANSWER_AGAIN && !f->again) {
        f->again = true;
        f->verdict = ANSWER_HALTED;
        start_send(engine, f);
        return false;
    }
    if (engine->task.tight && f->verdict != ANSWER_RIGHT)
        halt_for_peer(engine, copy->target);
    else if (engine->task.tight)
        fail(engine, rs_tight_release(&engine->tight, copy));
    engine->report.sent_bytes += copy->bytes;
    finish_copy(engine, f->index);
    return true;
}

/* Tests what is in flight, and finishes what is done. True if anything changed. */
static bool test_flights(rs_engine *engine)
{
    bool moved = false;
    int kept = 0;
    for (int k = 0; k < engine->flight_count; k++) {
        flight *f = engine->flights[k];
        bool here =
            arrived(engine, &f->body) & arrived(engine, &f->check) & arrived(engine, &f->answer);
        moved = moved || here;
        if (here && (f->sends ? finish_send(engine, f) : finish_receive(engine, f))) {
            engine->in_flight -= engine->copies[f->index].bytes;
            rs_staging_give(&engine->staging, f->staging);
            continue;
        }
        engine->flights[k] = engine->flights[kept];
        engine->flights[kept++] = f;
    }
    engine->flight_count = kept;
    return moved;
}

/* ---- what others pull from here ---- */

/* Looks at the readers' marks and releases what they have read. True if anything changed. */
static bool look_at_marks(rs_engine *engine)
{
    bool moved = false;
    for (size_t k = 0; k < engine->tight.peer_count && !engine->halted; k++) {
        rs_tight_reader *reader = &engine->tight.peers[k];
        uint64_t mark = rs_arena_marked(reader->arena, engine->rank);
        for (; reader->next < reader->count && reader->next < (mark & ~RS_TIGHT_HALTED);
             reader->next++) {
            size_t index = reader->copies[reader->next];
            fail(engine, rs_tight_release(&engine->tight, &engine->copies[index]));
            finish_copy(engine, index);
            moved = true;
        }
        if ((mark & RS_TIGHT_HALTED) && reader->next < reader->count)
            halt_for_peer(engine, reader->rank);
    }
    return moved;
}

/* ---- the whole ---- */

/* Finds both ends of every copy once, and the size of the staging pool. */
static rs_status check_copies(rs_engine *engine)
{
    int64_t largest = 0;
    int64_t all = 0;
    for (size_t k = 0; k < engine->count; k++) {
        const rs_copy *copy = &engine->copies[k];
        rs_end end;
        if (is_remote(copy) && !is_message(engine, copy)) {
            engine->done[k] = true;
            continue;
        }
        if (gives(engine, copy) || is_pull(engine, copy))
            RS_TRY(locate_source(engine, copy, &end));
        if (takes(engine, copy)) {
            RS_TRY(locate_target(engine, copy, &end));
            engine->bytes_total += copy->bytes;
        }
        if (is_remote(copy)) {
            if (copy->bytes > engine->task.transport->largest)
                return rs_error_set(RS_ERR_UNSUPPORTED,
                    "a copy of %" PRId64 " bytes is too large for a message of at most %" PRId64
                    "; plan with smaller chunks",
                    copy->bytes, engine->task.transport->largest);
            largest = rs_max64(largest, copy->bytes);
            all = all < INT64_MAX - copy->bytes ? all + copy->bytes : INT64_MAX;
        } else if (!is_pull(engine, copy) && !engine->task.tight) {
            engine->done[k] = true; /* others pull it; nothing here depends on when */
        }
    }
    /* Room for the window, but never less than for one message; each block is rounded up. */
    int64_t capacity = rs_max64(largest, rs_min64(engine->task.window, all));
    return rs_staging_init(&engine->staging, rs_round_up(capacity, 64));
}

rs_status rs_engine_create(const rs_engine_task *task, rs_engine **out)
{
    rs_status status;
    rs_engine *engine = rs_calloc(1, sizeof *engine);
    if (engine == NULL)
        return rs_error_memory(sizeof *engine);
    engine->task = *task;
    engine->space = rs_placement_space(task->to);
    engine->rank = task->plan != NULL ? rs_plan_rank(task->plan) : task->rank;
    engine->ranks = (int)rs_max64(rs_placement_holders(task->from), rs_placement_holders(task->to));
    engine->ranks = (int)rs_max64(engine->ranks, rs_max64(engine->rank + 1, task->processes));
    engine->copies = task->copies;
    engine->count = task->count;
    if (task->plan != NULL)
        engine->copies = rs_plan_copies(task->plan, &engine->count);
    for (int k = 0; k < MAX_FLIGHTS; k++)
        engine->flights[k] = &engine->slots[k];
    engine->done = rs_calloc(engine->count, sizeof *engine->done);
    engine->peers = rs_calloc((size_t)engine->ranks, sizeof *engine->peers);
    engine->sent = rs_calloc((size_t)engine->ranks, sizeof *engine->sent);
    engine->received = rs_calloc((size_t)engine->ranks, sizeof *engine->received);
    if (engine->done == NULL || engine->peers == NULL || engine->sent == NULL ||
        engine->received == NULL) {
        status = rs_error_memory(engine->count + (size_t)engine->ranks * sizeof *engine->peers);
        goto failed;
    }
    RS_TRY_GOTO(rs_cells_init(&engine->cells, task->after), failed);
    RS_TRY_GOTO(check_copies(engine), failed);
    if (task->tight)
        RS_TRY_GOTO(rs_tight_init(&engine->tight, task->from, task->to, task->plan, engine->ranks,
                        task->tight_old, task->tight_now),
            failed);
    *out = engine;
    return RS_OK;
failed:
    rs_engine_destroy(engine);
    return status;
}

void rs_engine_destroy(rs_engine *engine)
{
    if (engine == NULL)
        return;
    rs_tight_fini(&engine->tight);
    rs_staging_fini(&engine->staging);
    rs_cells_fini(&engine->cells);
    free(engine->done);
    free(engine->peers);
    free(engine->sent);
    free(engine->received);
    free(engine->detail);
    free(engine);
}

static bool is_finished(rs_engine *engine)
{
    if (engine->local < engine->count || engine->remote < engine->count || engine->flight_count > 0)
        return false;
    while (engine->oldest < engine->count && engine->done[engine->oldest])
        engine->oldest++;
    return engine->oldest == engine->count;
}

rs_status rs_engine_run(rs_engine *engine, rs_move_report *report)
{
    const rs_transport *transport = engine->task.transport;
    double start_time = rs_clock_seconds();
    if (engine->task.tight)
        fail(engine, rs_tight_begin(&engine->tight));
    while (!is_finished(engine)) {
        bool moved = test_flights(engine);
        if (engine->task.tight)
            moved = look_at_marks(engine) || moved;
        while (post_next(engine))
            moved = true;
        moved = pull_next(engine) || moved;
        if (!moved)
            transport->idle(transport->context);
    }
    engine->report.staging_bytes = engine->staging.most;
    engine->report.freed_bytes = engine->tight.freed_bytes;
    engine->report.seconds = rs_clock_seconds() - start_time;
    if (engine->status == RS_OK) {
        if (report != NULL)
            *report = engine->report;
        return RS_OK;
    }
    return rs_error_set(
        engine->status, "%s", engine->detail != NULL ? engine->detail : "no memory for the detail");
}
