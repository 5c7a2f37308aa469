/*
 * `reshard plan`: what it would take to go from one layout to another, before anything moves.
 *
 * The figures are those of the plans that a job would run: every rank's plan is made in turn and
 * added up. Next to each figure stands the bound that no plan can beat.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/picture.h"
#include "cli/subject.h"
#include "reshard/move.h"
#include "reshard/plan.h"
#include "train/moe_forecast.h"
#include "train/nodes.h"

typedef struct plan_args {
    const char *model, *from, *to, *dtype, *optimizer, *freeze, *svg;
    int64_t ranks_per_node, redundancy, rank, seq, micro_batch, global_batch;
    double intra, inter;
    bool json, force;
} plan_args;

#define AT(member) offsetof(plan_args, member)

static const cli_option options[] = {
    {CLI_TEXT, "model", "M", "preset name, config.json, or a folder that holds one",
        .target = AT(model), .required = true},
    {CLI_TEXT, "from", "L", "the layout before", .target = AT(from), .required = true},
    {CLI_TEXT, "to", "L", "the layout after", .target = AT(to), .required = true},
    {CLI_CHOICE, "dtype", "D", "type of the parameters; auto: what the model states, else fp32",
        "auto", .target = AT(dtype), .choices = "auto|fp32|bf16|fp16"},
    {CLI_CHOICE, "optimizer", "O", "whose state is kept beside the parameters", "adamw",
        .target = AT(optimizer), .choices = "adamw|sgd|muon"},
    {CLI_TEXT, "freeze", "PATTERNS",
        "tensors without it, as patterns of names: embed.weight,layers.attn.*",
        .target = AT(freeze)},
    {CLI_INT, "ranks-per-node", "N", "ranks of a node; 0: all ranks share one node", "0",
        .target = AT(ranks_per_node), .alias = "nproc-per-node"},
    {CLI_INT, "redundancy", "N",
        "1: with what ZeRO gave to one node alone mirrored on another (with --ranks-per-node)", "0",
        .target = AT(redundancy)},
    {CLI_INT, "rank", "R", "also show the copies of this rank; -1: of none", "-1",
        .target = AT(rank), .minimum = -1},
    {CLI_REAL, "intra-gbps", "X",
        "GB/s (1e9 bytes) that a rank pulls inside its node; with it, or the next, the least time "
        "of the move is shown",
        .target = AT(intra)},
    {CLI_REAL, "inter-gbps", "Y", "GB/s that enter a node, and as many that leave it",
        .target = AT(inter)},
    {CLI_INT, "seq", "T",
        "tokens of a sequence; with the next two, for the memory of rows at experts", "256",
        .target = AT(seq), .minimum = 1},
    {CLI_INT, "micro-batch", "b", "sequences of one forward pass", "2", .target = AT(micro_batch),
        .alias = "micro-batch-size", .minimum = 1},
    {CLI_INT, "global-batch", "B", "sequences of a step", "8", .target = AT(global_batch),
        .alias = "global-batch-size", .minimum = 1},
    {CLI_FLAG, "json", NULL, "print JSON", .target = AT(json)},
    {CLI_TEXT, "svg", "FILE",
        "draw who holds what before and after, and who sends how much to whom", .target = AT(svg)},
    {CLI_FLAG, "force", NULL, "replace FILE if it exists", .target = AT(force)},
    {.kind = CLI_END},
};

/* Everything that the report is made of. */
typedef struct report {
    const plan_args *args;
    subject subject;
    rs_layout from, to;
    rs_placement *before, *after;
    rs_plan_options how;
    rs_plan_totals totals;
    rs_plan *rank_plan; /* NULL without --rank */
    rs_moe_forecast rows_before, rows_after;
    double worst, median;
    int timed; /* ranks whose plans were timed */
} report;

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Times the plans of up to TIMED ranks, evenly spread; of the asked one alone with --rank. */
static rs_status time_plans(report *r)
{
    enum { TIMED = 64 };
    double seconds[TIMED];
    int world = rs_placement_holders(r->before) > rs_placement_holders(r->after)
                    ? rs_placement_holders(r->before)
                    : rs_placement_holders(r->after);
    bool one = r->args->rank >= 0;
    int count = one ? 1 : world < TIMED ? world : TIMED;
    for (int i = 0; i < count; i++) {
        int rank = one          ? (int)r->args->rank
                   : count == 1 ? 0
                                : (int)((int64_t)i * (world - 1) / (count - 1));
        rs_plan *plan = NULL;
        double begin = cli_now();
        RS_TRY(rs_plan_create(r->before, r->after, rank, &r->how, &plan));
        seconds[i] = cli_now() - begin;
        if (one)
            r->rank_plan = plan;
        else
            rs_plan_destroy(plan);
    }
    qsort(seconds, (size_t)count, sizeof *seconds, compare_doubles);
    r->worst = seconds[count - 1];
    r->median = seconds[count / 2];
    r->timed = count;
    return RS_OK;
}

static rs_status make_report(report *r)
{
    int mirrors = r->args->redundancy > 0 ? (int)r->args->ranks_per_node : 0;
    RS_TRY(rs_nodes_supposed_placement(r->subject.space, &r->from, mirrors, &r->before));
    RS_TRY(rs_nodes_supposed_placement(r->subject.space, &r->to, mirrors, &r->after));
    RS_TRY(time_plans(r));
    const rs_moe_load load = {r->args->seq, r->args->micro_batch, r->args->global_batch};
    const subject *s = &r->subject;
    RS_TRY(rs_moe_forecast_make(&s->model, s->space, &r->from, &load, &r->rows_before));
    RS_TRY(rs_moe_forecast_make(&s->model, s->space, &r->to, &load, &r->rows_after));
    return rs_plan_totals_compute(r->before, r->after, &r->how, r->args->svg != NULL, &r->totals);
}

static bool has_rates(const report *r)
{
    return r->args->intra > 0 || r->args->inter > 0;
}

static double seconds_bound(const report *r)
{
    return rs_plan_seconds_bound(&r->totals, 1e9 * r->args->intra, 1e9 * r->args->inter);
}

/* ---- for people ---- */

static void print_layout(const report *r, const char *label, const rs_layout *layout)
{
    char text[RS_LAYOUT_TEXT], meaning[RS_LAYOUT_TEXT];
    int64_t per_node = r->args->ranks_per_node, world = rs_layout_world(layout);
    printf("%-7s %s: %s", label, rs_layout_format(layout, text),
        rs_layout_describe_for(layout, rs_placement_space(r->before), meaning));
    if (per_node > 0)
        printf("; %" PRId64 " nodes of %" PRId64, (world + per_node - 1) / per_node, per_node);
    printf("\n");
}

/* "4.12 MiB each", "3.59 MiB (rank 2) to 4.12 MiB (rank 0)". */
static void describe_state(const rs_state_bytes *s, char *text, size_t size)
{
    char most[RS_HUMAN], least[RS_HUMAN];
    rs_human_bytes(s->max, most);
    rs_human_bytes(s->min, least);
    if (strcmp(most, least) == 0)
        snprintf(text, size, "%s%s each", s->max == s->min ? "" : "about ", most);
    else
        snprintf(
            text, size, "%s (rank %d) to %s (rank %d)", least, s->min_holder, most, s->max_holder);
}

static void describe_rows(const rs_moe_forecast *rows, char *text, size_t size)
{
    char worst[RS_HUMAN], even[RS_HUMAN];
    snprintf(text, size, "%s if chosen evenly, %s at worst", rs_human_bytes(rows->even, even),
        rs_human_bytes(rows->worst, worst));
}

/* Tokens' rows that arrive at experts: the one part of the activations that no size bounds well. */
static void print_rows(const report *r)
{
    char before[128], after[128];
    if (r->rows_before.worst == 0)
        return;
    describe_rows(&r->rows_before, before, sizeof before);
    describe_rows(&r->rows_after, after, sizeof after);
    printf("  %-12s %-46s %s\n", "experts' rows", before, after);
}

/* Bytes of all mirrors in a placement of `layout`. */
static rs_status mirror_bytes(
    const report *r, const rs_layout *layout, const rs_placement *placement, int64_t *bytes)
{
    rs_placement *plain = NULL;
    rs_state_bytes with, without;
    RS_TRY(rs_layout_placement(r->subject.space, layout, &plain));
    rs_status status = rs_state_bytes_of(placement, -1, &with);
    if (status == RS_OK)
        status = rs_state_bytes_of(plain, -1, &without);
    if (status == RS_OK)
        *bytes = with.total - without.total;
    rs_placement_destroy(plain);
    return status;
}

static rs_status print_mirrors(const report *r)
{
    int64_t before, after;
    char old_text[RS_HUMAN + 32], new_text[RS_HUMAN + 32], bytes[RS_HUMAN];
    if (r->args->redundancy == 0)
        return RS_OK;
    RS_TRY(mirror_bytes(r, &r->from, r->before, &before));
    RS_TRY(mirror_bytes(r, &r->to, r->after, &after));
    snprintf(old_text, sizeof old_text, "%s of all ranks", rs_human_bytes(before, bytes));
    snprintf(new_text, sizeof new_text, "%s of all ranks", rs_human_bytes(after, bytes));
    printf("  %-12s %-46s %s\n", "mirrors", old_text, new_text);
    return RS_OK;
}

static rs_status print_state(const report *r)
{
    const rs_space *space = r->subject.space;
    printf("\nstate per rank (activations not counted)\n  %-12s %-46s %s\n", "", "before", "after");
    for (int role = 0; role <= rs_space_role_count(space); role++) {
        int wanted = role < rs_space_role_count(space) ? role : -1;
        rs_state_bytes before, after;
        char old_text[128], new_text[128];
        RS_TRY(rs_state_bytes_of(r->before, wanted, &before));
        RS_TRY(rs_state_bytes_of(r->after, wanted, &after));
        describe_state(&before, old_text, sizeof old_text);
        describe_state(&after, new_text, sizeof new_text);
        printf("  %-12s %-46s %s\n", wanted >= 0 ? rs_space_role(space, wanted)->name : "total",
            old_text, new_text);
    }
    print_rows(r);
    return print_mirrors(r);
}

static void print_load(const char *label, const rs_plan_load *load)
{
    char a[RS_HUMAN], b[RS_HUMAN], c[RS_HUMAN];
    if (load->bytes == 0) {
        printf("  %-16s none\n", label);
        return;
    }
    printf("  %-16s %s; most of a rank %s (rank %d), bound %s\n", label,
        rs_human_bytes(load->bytes, a), rs_human_bytes(load->rank_max, b), load->rank,
        rs_human_bytes(load->rank_bound, c));
}

static void print_move(const report *r)
{
    const rs_plan_totals *t = &r->totals;
    char a[RS_HUMAN], b[RS_HUMAN];
    printf("\nmove\n");
    printf("  %-16s %s; the minimum is %s\n", "bytes moved", rs_human_bytes(t->moved, a),
        rs_human_bytes(t->minimum, b));
    printf("  %-16s %s; copied within a rank %s\n", "kept in place", rs_human_bytes(t->adopted, a),
        rs_human_bytes(t->self, b));
    printf("  %-16s %s; bound %s (%s)", "busiest rank", rs_human_bytes(t->rank_bytes_max, a),
        rs_human_bytes(t->rank_bytes_bound, b), t->bound_kind);
    if (t->rank_bytes_bound > 0)
        printf(": %.3f times", (double)t->rank_bytes_max / (double)t->rank_bytes_bound);
    printf("\n");
    print_load("inside nodes", &t->node);
    print_load("between nodes", &t->remote);
    if (t->remote.bytes > 0)
        printf("  %-16s %s; bound %s\n", "busiest node", rs_human_bytes(t->node_bytes_max, a),
            rs_human_bytes(t->node_bytes_bound, b));
    printf("  %-16s safe %s, tight %s + up to %d MiB in flight\n", "peak of a rank",
        rs_human_bytes(t->peak_safe, a), rs_human_bytes(t->peak_tight, b), RS_MOVE_WINDOW >> 20);
    if (has_rates(r))
        printf("  %-16s %s: no plan can be faster\n", "least time",
            rs_human_seconds(seconds_bound(r), a));
    printf("  %-16s %" PRId64 "\n", "copies", t->copies);
    if (r->timed == 1)
        printf("  %-16s %s\n", "planned in", rs_human_seconds(r->worst, a));
    else
        printf("  %-16s %s for the slowest rank, median %s (%d ranks timed)\n", "planned in",
            rs_human_seconds(r->worst, a), rs_human_seconds(r->median, b), r->timed);
}

static int print_report(const cli_command *command, const report *r)
{
    subject_print(&r->subject);
    print_layout(r, "from", &r->from);
    print_layout(r, "to", &r->to);
    char *text = NULL;
    rs_status status = print_state(r);
    if (status == RS_OK)
        print_move(r);
    if (status == RS_OK && r->rank_plan != NULL)
        status = rs_plan_text(r->rank_plan, &text);
    if (status != RS_OK)
        return cli_fail(command, status, NULL);
    if (text != NULL)
        printf("\n%s", text);
    free(text);
    return 0;
}

/* ---- for programs ---- */

static json_t *load_json(const rs_plan_load *load)
{
    return json_pack("{s:I, s:I, s:i, s:I}", "bytes", (json_int_t)load->bytes, "rank_max",
        (json_int_t)load->rank_max, "rank", load->rank, "rank_bound", (json_int_t)load->rank_bound);
}

static json_t *layout_json(const report *r, const rs_layout *layout, const rs_placement *placement,
    const rs_moe_forecast *rows)
{
    json_t *out = subject_layout_json(layout, placement);
    if (rows->worst > 0)
        json_object_set_new(out, "expert_rows_bytes",
            json_pack(
                "{s:I, s:I}", "even", (json_int_t)rows->even, "worst", (json_int_t)rows->worst));
    int64_t per_node = r->args->ranks_per_node, world = rs_layout_world(layout);
    json_object_set_new(
        out, "nodes", json_integer(per_node > 0 ? (world + per_node - 1) / per_node : 1));
    int64_t mirrors = 0;
    if (r->args->redundancy > 0 && mirror_bytes(r, layout, placement, &mirrors) == RS_OK)
        json_object_set_new(out, "mirror_bytes", json_integer(mirrors));
    return out;
}

static int json_report(const cli_command *command, const report *r)
{
    const rs_plan_totals *t = &r->totals;
    json_t *out = json_pack(
        "{s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:o, s:o, "
        "s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:i}",
        "model", subject_json(&r->subject), "from",
        layout_json(r, &r->from, r->before, &r->rows_before), "to",
        layout_json(r, &r->to, r->after, &r->rows_after), "ranks_per_node",
        (json_int_t)r->args->ranks_per_node, "redundancy", (json_int_t)r->args->redundancy,
        "bytes_moved", (json_int_t)t->moved, "bytes_minimum", (json_int_t)t->minimum,
        "bytes_adopted", (json_int_t)t->adopted, "bytes_self", (json_int_t)t->self,
        "rank_bytes_max", (json_int_t)t->rank_bytes_max, "rank_bytes_bound",
        (json_int_t)t->rank_bytes_bound, "bound_kind", t->bound_kind, "node", load_json(&t->node),
        "remote", load_json(&t->remote), "node_bytes_max", (json_int_t)t->node_bytes_max,
        "node_bytes_bound", (json_int_t)t->node_bytes_bound, "peak_safe", (json_int_t)t->peak_safe,
        "peak_tight", (json_int_t)t->peak_tight, "window_bytes", (json_int_t)RS_MOVE_WINDOW,
        "copies", (json_int_t)t->copies, "plan_seconds", r->worst, "plan_seconds_median", r->median,
        "plan_ranks_timed", r->timed);
    if (has_rates(r))
        json_object_set_new(out, "seconds_bound", json_real(seconds_bound(r)));
    if (r->rank_plan != NULL) {
        char *text = NULL;
        rs_status status = rs_plan_json(r->rank_plan, &text);
        if (status != RS_OK) {
            json_decref(out);
            return cli_fail(command, status, NULL);
        }
        json_object_set_new(out, "plan", json_loads(text, 0, NULL));
        free(text);
    }
    return cli_print_json(command, out);
}

/* ---- the command ---- */

static int check_args(const cli_command *command, const report *r)
{
    int from = rs_layout_world(&r->from), to = rs_layout_world(&r->to);
    int most = from > to ? from : to;
    if (r->args->rank >= most)
        return cli_error(command, CLI_USAGE, "--rank: wanted a rank from 0 to %d, found %" PRId64,
            most - 1, r->args->rank);
    if (r->args->ranks_per_node > 1 << 20)
        return cli_error(command, CLI_USAGE, "--ranks-per-node: wanted at most %d, found %" PRId64,
            1 << 20, r->args->ranks_per_node);
    int code = subject_redundancy(command, r->args->redundancy, r->args->ranks_per_node);
    if (code >= 0)
        return code;
    if (r->args->force && r->args->svg == NULL)
        return cli_error(command, CLI_USAGE, "--force: wanted with --svg FILE only");
    /* Said before the work; svg_save refuses again, should the file appear meanwhile. */
    if (r->args->svg != NULL && !r->args->force && access(r->args->svg, F_OK) == 0)
        return cli_error(
            command, CLI_FAILURE, "--svg: %s exists already (--force replaces it)", r->args->svg);
    return -1;
}

static int run(const cli_command *command, int argc, char **argv)
{
    plan_args args;
    report r = {.args = &args};
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code >= 0 || (code = subject_layout(command, "--from", args.from, &r.from)) >= 0 ||
        (code = subject_layout(command, "--to", args.to, &r.to)) >= 0 ||
        (code = check_args(command, &r)) >= 0 ||
        (code = subject_load(command, args.model, args.dtype,
             &(rs_training){args.optimizer, args.freeze}, &r.subject)) >= 0)
        return code;
    r.how = (rs_plan_options){.ranks_per_node = (int)args.ranks_per_node, .adopt = true};
    rs_status status = make_report(&r);
    if (status == RS_OK && args.svg != NULL) {
        picture p = {.subject = &r.subject,
            .from = &r.from,
            .to = &r.to,
            .totals = &r.totals,
            .ranks_per_node = (int)args.ranks_per_node};
        status = picture_save(&p, args.svg, args.force);
    }
    if (status != RS_OK)
        code = cli_fail(command, status, NULL);
    else
        code = args.json ? json_report(command, &r) : print_report(command, &r);
    rs_plan_destroy(r.rank_plan);
    rs_plan_totals_fini(&r.totals);
    rs_placement_destroy(r.before);
    rs_placement_destroy(r.after);
    subject_free(&r.subject);
    return code;
}

const cli_command cmd_plan = {
    .name = "plan",
    .summary = "show what a switch between two layouts costs, without doing it",
    .text =
        "Shows what each layout means, the state bytes of each rank, what has to move, the\n"
        "least that any method has to move, the busiest rank and its lower bound, and the peak\n"
        "memory in safe mode (old state kept until the new one is verified) and in tight mode.\n"
        "Needs no cluster and reads no weights.",
    .example = "  reshard plan --model llama-tiny --from tp=2,dp=2 --to pp=2,dp=2,zero=1\n"
               "  reshard plan --model llama3-70b --from tp=8,pp=4,dp=4,zero=1 \\\n"
               "      --to tp=4,pp=4,dp=6,zero=1 --ranks-per-node 8 --svg plan.svg",
    .options = options,
    .run = run,
};
