/*
 * `reshard layout L --model M [--rank R]`: what a layout means: who stands where on the mesh and
 * which part of the model it has; with --rank, that rank's ranges and every shard with the place of
 * its bytes.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/subject.h"
#include "reshard/placement.h"
#include "train/nodes.h"

typedef struct layout_args {
    const char *layout;
    const char *model;
    const char *dtype;
    const char *optimizer;
    const char *freeze;
    int64_t rank, ranks_per_node, redundancy;
    bool json;
} layout_args;

static const cli_option options[] = {
    {CLI_ARGUMENT, "LAYOUT", .target = offsetof(layout_args, layout),
        .help = "a layout, as key=value,...: tp, pp, dp, cp, ep, zero, ..."},
    {CLI_TEXT, "model", "M", "preset name, config.json, or a folder that holds one",
        .target = offsetof(layout_args, model), .required = true},
    {CLI_CHOICE, "dtype", "D", "type of the parameters; auto: what the model states, else fp32",
        "auto", .target = offsetof(layout_args, dtype), .choices = "auto|fp32|bf16|fp16"},
    {CLI_CHOICE, "optimizer", "O", "whose state is kept beside the parameters", "adamw",
        .target = offsetof(layout_args, optimizer), .choices = "adamw|sgd|muon"},
    {CLI_TEXT, "freeze", "PATTERNS",
        "tensors without it, as patterns of names: embed.weight,layers.attn.*",
        .target = offsetof(layout_args, freeze)},
    {CLI_INT, "ranks-per-node", "N", "ranks of a node; 0: all ranks share one node", "0",
        .target = offsetof(layout_args, ranks_per_node), .alias = "nproc-per-node"},
    {CLI_INT, "redundancy", "N",
        "1: with what ZeRO gave to one node alone mirrored on another (with --ranks-per-node)", "0",
        .target = offsetof(layout_args, redundancy)},
    {CLI_INT, "rank", "R", "list the shards of this rank; -1: one line for every rank", "-1",
        .target = offsetof(layout_args, rank), .minimum = -1},
    {CLI_FLAG, "json", NULL, "print JSON", .target = offsetof(layout_args, json)},
    {CLI_END},
};

/* A half-open range in whole units (heads, rows, layers) that a rank has of an axis of the model.
 */
typedef struct axis_range {
    bool exists; /* some tensor has the axis */
    int64_t begin, end, of;
} axis_range;

static bool has_experts(const rs_tensor *tensor)
{
    for (int d = 0; d < tensor->ndim; d++)
        if (tensor->axis[d] == RS_AXIS_EXPERT)
            return true;
    return false;
}

/* What stands in the table: an axis of the tensors with experts, or of those without. */
static const struct {
    const char *name;
    rs_axis axis;
    bool experts;
} axes[] = {
    {"heads", RS_AXIS_Q_HEAD, false},
    {"kv heads", RS_AXIS_KV_HEAD, false},
    {"ffn rows", RS_AXIS_FFN, false},
    {"vocab rows", RS_AXIS_VOCAB, false},
    {"experts", RS_AXIS_EXPERT, true},
    {"expert rows", RS_AXIS_FFN, true},
};

enum { AXES = sizeof axes / sizeof *axes };

static axis_range range_on(const rs_space *space, const rs_layout *layout, rs_coords c, int which)
{
    for (int t = 0; t < rs_space_tensor_count(space); t++) {
        const rs_tensor *tensor = rs_space_tensor(space, t);
        for (int d = 0; d < tensor->ndim; d++) {
            if (tensor->axis[d] != axes[which].axis || has_experts(tensor) != axes[which].experts)
                continue;
            int64_t unit = tensor->unit[d] > 0 ? tensor->unit[d] : 1;
            axis_range r = {.exists = true, .of = tensor->shape[d] / unit};
            if (axes[which].axis == RS_AXIS_EXPERT)
                rs_layout_ep_range(layout, tensor, d, c.ep, &r.begin, &r.end);
            else
                rs_layout_tp_range(
                    layout, tensor, d, axes[which].experts ? c.etp : c.tp, &r.begin, &r.end);
            r.begin /= unit;
            r.end /= unit;
            return r;
        }
    }
    return (axis_range){0};
}

/* The layers of chunk `v` of a pipeline rank. */
static axis_range layers_of(const rs_space *space, const rs_layout *layout, int stage, int v)
{
    axis_range r = {.of = rs_space_layer_count(space)};
    r.exists = r.of > 0;
    rs_layout_stage_layers(layout, r.of, v * layout->pp + stage, &r.begin, &r.end);
    return r;
}

static char *range_text(axis_range r, char *text, size_t size)
{
    if (!r.exists)
        snprintf(text, size, "-");
    else if (r.begin == r.end)
        snprintf(text, size, "none");
    else if (r.end == r.begin + 1)
        snprintf(text, size, "%" PRId64, r.begin);
    else
        snprintf(text, size, "%" PRId64 "-%" PRId64, r.begin, r.end - 1);
    return text;
}

/* "0-3", or "0-1,4-5" with chunks. */
static char *layers_text(
    const rs_space *space, const rs_layout *layout, int stage, char *text, size_t size)
{
    size_t used = 0;
    for (int v = 0; v < layout->vpp && used + 1 < size; v++) {
        char one[48];
        int length = snprintf(text + used, size - used, "%s%s", v > 0 ? "," : "",
            range_text(layers_of(space, layout, stage, v), one, sizeof one));
        used += (size_t)length < size - used ? (size_t)length : size - used - 1;
    }
    return text;
}

/* Whether some rank has the axis, and so a column of the table. */
static bool has_axis(const rs_space *space, const rs_layout *layout, int which)
{
    return !axes[which].experts || range_on(space, layout, (rs_coords){0}, which).exists;
}

static void print_world(const subject *s, const rs_layout *layout, const rs_placement *placement)
{
    bool experts = rs_space_expert_count(s->space) > 0;
    printf("\n%6s %4s %4s %4s", "rank", "tp", "pp", "dp");
    if (layout->cp > 1)
        printf(" %4s", "cp");
    if (experts)
        printf(" %4s %4s %4s", "etp", "ep", "edp");
    printf("  %-9s", "layers");
    for (int a = 0; a < AXES; a++)
        if (has_axis(s->space, layout, a))
            printf(" %-13s", axes[a].name);
    printf(" %12s\n", "state");
    for (int rank = 0; rank < rs_layout_world(layout); rank++) {
        rs_coords c = rs_layout_coords(layout, rank);
        char text[128];
        printf("%6d %4d %4d %4d", rank, c.tp, c.pp, c.dp);
        if (layout->cp > 1)
            printf(" %4d", c.cp);
        if (experts)
            printf(" %4d %4d %4d", c.etp, c.ep, c.edp);
        printf("  %-9s", layers_text(s->space, layout, c.pp, text, sizeof text));
        for (int a = 0; a < AXES; a++)
            if (has_axis(s->space, layout, a))
                printf(" %-13s", range_text(range_on(s->space, layout, c, a), text, sizeof text));
        char bytes[RS_HUMAN];
        printf(" %12s\n", rs_human_bytes(subject_rank_state(placement, rank, -1), bytes));
    }
}

static void print_rank(const subject *s, const rs_layout *layout, const rs_placement *placement,
    int rank, const rs_shard_list *shards)
{
    rs_coords c = rs_layout_coords(layout, rank);
    char text[128], bytes[RS_HUMAN];
    printf("rank    %d: tp %d, pp %d, dp %d", rank, c.tp, c.pp, c.dp);
    if (layout->cp > 1)
        printf(", cp %d", c.cp);
    if (rs_space_expert_count(s->space) > 0)
        printf("; experts: etp %d, ep %d, edp %d", c.etp, c.ep, c.edp);
    printf("\nhas     layers %s of %" PRId64,
        layers_text(s->space, layout, c.pp, text, sizeof text), rs_space_layer_count(s->space));
    for (int a = 0; a < AXES; a++) {
        axis_range r = range_on(s->space, layout, c, a);
        if (r.exists)
            printf(", %s %s of %" PRId64, axes[a].name, range_text(r, text, sizeof text), r.of);
    }
    printf("\nstate   %s in %zu shards:",
        rs_human_bytes(subject_rank_state(placement, rank, -1), bytes), shards->count);
    for (int role = 0; role < rs_space_role_count(s->space); role++)
        printf("%s %s %s", role > 0 ? "," : "", rs_space_role(s->space, role)->name,
            rs_human_bytes(subject_rank_state(placement, rank, role), bytes));
    printf("\n\n%-11s %-28s %-30s %8s %12s %12s\n", "role", "tensor", "box", "segment", "offset",
        "bytes");
    for (size_t i = 0; i < shards->count; i++) {
        const rs_shard *shard = &shards->items[i];
        printf("%-11s %-28s %-30s %8d %12" PRId64 " %12" PRId64 "\n",
            rs_space_role(s->space, shard->role)->name,
            rs_space_tensor(s->space, shard->tensor)->name,
            rs_box_format(&shard->box, text, sizeof text), shard->segment, shard->offset,
            rs_box_volume(&shard->box) * (int64_t)rs_dtype_size(shard->dtype));
    }
}

static json_t *range_json(axis_range r)
{
    if (!r.exists)
        return json_null();
    return json_pack("[I, I]", (json_int_t)r.begin, (json_int_t)r.end);
}

static json_t *box_json(const rs_box *box)
{
    json_t *dims = json_array();
    for (int d = 0; d < box->ndim; d++)
        json_array_append_new(dims, json_pack("[I, I]", (json_int_t)box->offset[d],
                                        (json_int_t)(box->offset[d] + box->extent[d])));
    return dims;
}

static json_t *rank_json(
    const subject *s, const rs_layout *layout, const rs_placement *placement, int rank)
{
    rs_coords c = rs_layout_coords(layout, rank);
    json_t *roles = json_object();
    for (int role = 0; role < rs_space_role_count(s->space); role++)
        json_object_set_new(roles, rs_space_role(s->space, role)->name,
            json_integer(subject_rank_state(placement, rank, role)));
    json_t *out = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "rank", rank, "tp", c.tp,
        "pp", c.pp, "dp", c.dp, "cp", c.cp, "etp", c.etp, "ep", c.ep, "edp", c.edp);
    /* With chunks, a rank's layers are no one range. */
    json_t *chunks = json_array();
    for (int v = 0; v < layout->vpp; v++)
        json_array_append_new(chunks, range_json(layers_of(s->space, layout, c.pp, v)));
    json_object_set(out, "layers", layout->vpp == 1 ? json_array_get(chunks, 0) : json_null());
    json_object_set_new(out, "chunks", chunks);
    for (int a = 0; a < AXES; a++) {
        char key[32];
        snprintf(key, sizeof key, "%s", axes[a].name);
        for (char *p = strchr(key, ' '); p != NULL; p = strchr(p, ' '))
            *p = '_';
        json_object_set_new(out, key, range_json(range_on(s->space, layout, c, a)));
    }
    json_object_set_new(out, "state_bytes", roles);
    json_object_set_new(out, "total_bytes", json_integer(subject_rank_state(placement, rank, -1)));
    return out;
}

static json_t *shards_json(const subject *s, const rs_shard_list *shards)
{
    json_t *list = json_array();
    for (size_t i = 0; i < shards->count; i++) {
        const rs_shard *shard = &shards->items[i];
        json_array_append_new(list,
            json_pack("{s:s, s:s, s:s, s:o, s:i, s:I, s:I}", "tensor",
                rs_space_tensor(s->space, shard->tensor)->name, "role",
                rs_space_role(s->space, shard->role)->name, "dtype", rs_dtype_name(shard->dtype),
                "box", box_json(&shard->box), "segment", shard->segment, "offset",
                (json_int_t)shard->offset, "bytes",
                (json_int_t)(rs_box_volume(&shard->box) * (int64_t)rs_dtype_size(shard->dtype))));
    }
    return list;
}

static int show_json(const cli_command *command, const subject *s, const rs_layout *layout,
    const rs_placement *placement, int only, const rs_shard_list *shards)
{
    json_t *out = subject_layout_json(layout, placement);
    json_object_set_new(out, "model", subject_json(s));
    json_t *ranks = json_array();
    for (int rank = 0; rank < rs_layout_world(layout); rank++) {
        if (only >= 0 && rank != only)
            continue;
        json_t *one = rank_json(s, layout, placement, rank);
        if (only >= 0)
            json_object_set_new(one, "shards", shards_json(s, shards));
        json_array_append_new(ranks, one);
    }
    json_object_set_new(out, "ranks", ranks);
    return cli_print_json(command, out);
}

static int show(
    const cli_command *command, const layout_args *args, const subject *s, const rs_layout *layout)
{
    int world = rs_layout_world(layout);
    if (args->rank >= world)
        return cli_error(command, CLI_USAGE, "--rank: wanted a rank from 0 to %d, found %" PRId64,
            world - 1, args->rank);
    if (args->ranks_per_node > 1 << 20)
        return cli_error(command, CLI_USAGE, "--ranks-per-node: wanted at most %d, found %" PRId64,
            1 << 20, args->ranks_per_node);
    int code = subject_redundancy(command, args->redundancy, args->ranks_per_node);
    if (code >= 0)
        return code;
    rs_placement *placement = NULL;
    rs_shard_list shards = {0};
    int mirrors = args->redundancy > 0 ? (int)args->ranks_per_node : 0;
    rs_status status = rs_nodes_supposed_placement(s->space, layout, mirrors, &placement);
    if (status == RS_OK && args->rank >= 0)
        status = rs_placement_shards(placement, (int)args->rank, -1, &shards);
    code = 0;
    if (status != RS_OK) {
        code = cli_fail(command, status, args->layout);
    } else if (args->json) {
        code = show_json(command, s, layout, placement, (int)args->rank, &shards);
    } else {
        char text[RS_LAYOUT_TEXT], meaning[RS_LAYOUT_TEXT];
        subject_print(s);
        printf("layout  %s: %s\n", rs_layout_format(layout, text),
            rs_layout_describe_for(layout, s->space, meaning));
        if (args->rank >= 0)
            print_rank(s, layout, placement, (int)args->rank, &shards);
        else
            print_world(s, layout, placement);
    }
    rs_shard_list_fini(&shards);
    rs_placement_destroy(placement);
    return code;
}

static int run(const cli_command *command, int argc, char **argv)
{
    layout_args args;
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code >= 0)
        return code;
    rs_layout layout;
    subject s;
    if ((code = subject_layout(command, NULL, args.layout, &layout)) >= 0 ||
        (code = subject_load(command, args.model, args.dtype,
             &(rs_training){args.optimizer, args.freeze}, &s)) >= 0)
        return code;
    code = show(command, &args, &s, &layout);
    subject_free(&s);
    return code;
}

const cli_command cmd_layout = {
    .name = "layout",
    .summary = "show what a layout gives to each rank",
    .text = "Lists every rank's place on the mesh and what it has of the model: layers, heads,\n"
            "rows, experts, bytes of training state. With --rank, lists that rank's shards: the\n"
            "box of each tensor and role, and where its bytes lie.",
    .example = "  reshard layout tp=2,pp=2,dp=2,zero=1 --model llama-tiny\n"
               "  reshard layout tp=8,pp=4,dp=4,zero=1 --model llama3-70b --rank 17",
    .options = options,
    .run = run,
};
