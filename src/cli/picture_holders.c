/*
 * Who holds what: a row per rank (or per group of ranks, in large worlds), a column per block of
 * the model, from the embedding through the layers to the head.
 *
 * Within a block left to right is the tensor-parallel cut: a rank that has slice t of T fills that
 * part of the column, in the slice's colour. A layer with experts has two columns: the left one is
 * what every token passes through, the right one the experts, left to right the first to the last,
 * and each cut over etp. The upper band of a row is the parameters, the lower
 * and darker one the optimizer state: under ZeRO it is the part of the slice that this rank keeps.
 * Pipeline stages show as a staircase, data-parallel replicas as rows that look alike but for their
 * lower bands.
 */
#include "cli/picture.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { MAX_ROWS = 32, HEAD = 46 };

/* The part of a block's column, 0..1, that a rank fills. */
typedef struct span {
    double begin, end;
} span;

typedef struct panel {
    const picture *p;
    const rs_layout *layout;
    const rs_space *space;
    int world, group, rows;
    int blocks;                     /* columns: of one mesh */
    bool *split;                    /* of each column: it has experts */
    int model_role, optimizer_role; /* -1: the space has none */
    double row, column;
} panel;

int picture_group(const picture *p, int world, int rows)
{
    if (world <= rows)
        return 1;
    int unit = p->ranks_per_node > 0 ? p->ranks_per_node : p->from->tp;
    int least = (world + rows - 1) / rows;
    return (least + unit - 1) / unit * unit;
}

char *picture_slice_colour(int slice, int of, bool dark, char *out)
{
    /* Two slices take colours far apart; more take equal steps around the circle, not closing it.
     */
    double step = of == 2 ? 165 : 310.0 / (of > 0 ? of : 1);
    double hue = fmod(255 + step * slice, 360);
    return svg_oklch(dark ? 0.52 : 0.80, dark ? 0.13 : 0.105, hue, out);
}

static int find_role(const rs_space *space, rs_role_class wanted)
{
    for (int role = 0; role < rs_space_role_count(space); role++) {
        if (rs_space_role(space, role)->role_class == wanted)
            return role;
    }
    return -1;
}

static panel make_panel(const picture *p, const rs_layout *layout)
{
    panel a = {.p = p, .layout = layout, .space = p->subject->space};
    a.world = rs_layout_world(layout);
    a.group = picture_group(p, a.world, MAX_ROWS);
    a.rows = (a.world + a.group - 1) / a.group;
    a.blocks = (int)rs_space_layer_count(a.space) + 2;
    a.model_role = find_role(a.space, RS_ROLE_MODEL);
    a.optimizer_role = find_role(a.space, RS_ROLE_OPTIMIZER);
    a.row = fmin(34, fmax(13, 360.0 / a.rows));
    a.column = (double)(PICTURE_WIDTH - PICTURE_LEFT - PICTURE_MARGIN) / a.blocks;
    return a;
}

double picture_holders_height(const picture *p, const rs_layout *layout)
{
    panel a = make_panel(p, layout);
    return HEAD + a.rows * a.row + 20;
}

static bool is_expert(const rs_tensor *tensor)
{
    for (int d = 0; d < tensor->ndim; d++)
        if (tensor->axis[d] == RS_AXIS_EXPERT)
            return true;
    return false;
}

/* Whether a tensor, or a layer of it, stands in a block, as layouts number them: the tied embedding
 * stands at both ends where these are different stages. */
static bool in_block(const panel *a, const rs_tensor *tensor, int block)
{
    bool first = block == 0, last = block == a->blocks - 1;
    if (tensor->ndim > 0 && tensor->axis[0] == RS_AXIS_LAYER)
        return rs_tensor_layers_before(tensor, block - 1) < rs_tensor_layers_before(tensor, block);
    if (tensor->stage == RS_STAGE_FIRST_AND_LAST)
        return first || (last && a->layout->pp > 1);
    return tensor->stage == RS_STAGE_LAST ? last : first;
}

static void find_split(panel *a)
{
    for (int t = 0; t < rs_space_tensor_count(a->space); t++)
        for (int block = 0; block < a->blocks; block++) {
            const rs_tensor *tensor = rs_space_tensor(a->space, t);
            a->split[block] = a->split[block] || (is_expert(tensor) && in_block(a, tensor, block));
        }
}

/* The part `inner`, 0..1, of what is within `outer`. */
static span within(span outer, double begin, double end)
{
    double width = outer.end - outer.begin;
    return (span){outer.begin + width * begin, outer.begin + width * end};
}

/* Where a slice of a block lies within its column: taken from the block's largest tensor. */
static span slice_of(const panel *a, bool experts, int block, rs_coords c)
{
    int64_t largest = -1;
    span column = !a->split[block] ? (span){0, 1} : experts ? (span){0.36, 1} : (span){0, 0.32};
    span s = column;
    for (int t = 0; t < rs_space_tensor_count(a->space); t++) {
        const rs_tensor *tensor = rs_space_tensor(a->space, t);
        rs_box box = rs_box_whole(tensor->ndim, tensor->shape);
        if (is_expert(tensor) != experts || !in_block(a, tensor, block) ||
            rs_box_volume(&box) <= largest)
            continue;
        largest = rs_box_volume(&box);
        s = column;
        for (int d = 0; d < tensor->ndim; d++) {
            int64_t begin, end;
            double of = (double)tensor->shape[d];
            if (tensor->axis[d] == RS_AXIS_EXPERT)
                rs_layout_ep_range(a->layout, tensor, d, c.ep, &begin, &end);
            else
                rs_layout_tp_range(a->layout, tensor, d, experts ? c.etp : c.tp, &begin, &end);
            if (tensor->axis[d] != RS_AXIS_LAYER && end - begin < tensor->shape[d])
                s = within(s, (double)begin / of, (double)end / of);
        }
    }
    return s;
}

/* The part of a block's column that the rank keeps of a role. */
static bool span_of(
    const panel *a, bool experts, int rank, int block, int role, span slice, span *out)
{
    int64_t block_begin, block_end, begin, end;
    int number = experts ? rs_layout_expert_block(a->space, block) : block;
    rs_layout_block_range(a->space, a->layout, rank, number, &block_begin, &block_end);
    if (block_begin == block_end)
        return false;
    bool sharded = a->layout->zero > (role == a->model_role ? 2 : 0);
    if (sharded && a->layout->zero_cut != RS_CUT_CONCAT) {
        double group = rs_layout_shard_group(a->layout, experts);
        double member = rs_layout_shard_member(a->layout, experts, rank);
        *out = within(slice, member / group, (member + 1) / group);
        return true;
    }
    if (experts)
        rs_layout_expert_flat_range(a->space, a->layout, rank, role, &begin, &end);
    else
        rs_layout_flat_range(a->space, a->layout, rank, role, &begin, &end);
    begin = begin > block_begin ? begin : block_begin;
    end = end < block_end ? end : block_end;
    if (begin >= end)
        return false;
    double length = (double)(block_end - block_begin);
    *out =
        within(slice, (double)(begin - block_begin) / length, (double)(end - block_begin) / length);
    return true;
}

/* Slices of a mesh, and which one a rank has. */
static int slice_count(const panel *a, bool experts)
{
    return experts ? rs_layout_etp(a->layout) * a->layout->ep : a->layout->tp;
}

static int slice_number(const panel *a, bool experts, rs_coords c)
{
    return experts ? c.etp + c.ep * rs_layout_etp(a->layout) : c.tp;
}

/* One band (parameters or optimizer state) of all rows, for one slice: one path of one colour. */
static void draw_band(
    svg *s, const panel *a, bool experts, int slice, int role, bool dark, const span *slices)
{
    char colour[SVG_COLOUR];
    double top = dark ? 0.64 : 0.08, height = dark ? 0.30 : 0.52;
    svg_path_begin(s, picture_slice_colour(slice, slice_count(a, experts), dark, colour));
    for (int block = 0; block < a->blocks; block++) {
        span last = {-1, -1};
        int last_row = -1;
        for (int rank = 0; rank < a->world; rank++) {
            span x;
            rs_coords c = rs_layout_coords(a->layout, rank);
            if (slice_number(a, experts, c) != slice ||
                !span_of(a, experts, rank, block, role, slices[block], &x))
                continue;
            /* Replicas in one row would draw the same rectangle again. */
            int row = rank / a->group;
            if (row == last_row && x.begin == last.begin && x.end == last.end)
                continue;
            double left = PICTURE_LEFT + a->column * (block + x.begin);
            double width = a->column * (x.end - x.begin);
            svg_path_rect(s, left, HEAD + a->row * (row + top), fmax(width, 0.15), a->row * height);
            last = x;
            last_row = row;
        }
    }
    svg_path_end(s);
}

/* Both bands of a mesh, slice by slice; `slices` has room for a span a block. */
static void draw_mesh(svg *s, const panel *a, bool experts, span *slices)
{
    for (int slice = 0; slice < slice_count(a, experts); slice++) {
        int etp = rs_layout_etp(a->layout);
        rs_coords c = {.tp = slice, .etp = slice % etp, .ep = slice / etp};
        for (int block = 0; block < a->blocks; block++)
            slices[block] = slice_of(a, experts, block, c);
        if (a->model_role >= 0)
            draw_band(s, a, experts, slice, a->model_role, false, slices);
        if (a->optimizer_role >= 0)
            draw_band(s, a, experts, slice, a->optimizer_role, true, slices);
    }
}

static void range_label(char *text, size_t size, const char *name, int least, int most, int of)
{
    size_t used = strlen(text);
    if (of == 1 || used >= size)
        return;
    if (least == most)
        snprintf(text + used, size - used, " \xc2\xb7 %s%d", name, least);
    else if (most - least + 1 < of)
        snprintf(text + used, size - used, " \xc2\xb7 %s%d-%d", name, least, most);
}

/* "rank 3  tp1 dp1", "ranks 32-63  pp2": what all ranks of the row have in common. */
static void draw_label(svg *s, const panel *a, int row)
{
    int first = row * a->group;
    int last = first + a->group < a->world ? first + a->group - 1 : a->world - 1;
    rs_coords least = rs_layout_coords(a->layout, first), most = least;
    for (int rank = first; rank <= last; rank++) {
        rs_coords c = rs_layout_coords(a->layout, rank);
        least.tp = c.tp < least.tp ? c.tp : least.tp;
        most.tp = c.tp > most.tp ? c.tp : most.tp;
        least.pp = c.pp < least.pp ? c.pp : least.pp;
        most.pp = c.pp > most.pp ? c.pp : most.pp;
        least.dp = c.dp < least.dp ? c.dp : least.dp;
        most.dp = c.dp > most.dp ? c.dp : most.dp;
        least.cp = c.cp < least.cp ? c.cp : least.cp;
        most.cp = c.cp > most.cp ? c.cp : most.cp;
        least.ep = c.ep < least.ep ? c.ep : least.ep;
        most.ep = c.ep > most.ep ? c.ep : most.ep;
    }
    char text[96];
    if (first == last)
        snprintf(text, sizeof text, "rank %d", first);
    else
        snprintf(text, sizeof text, "%d-%d", first, last);
    range_label(text, sizeof text, "tp", least.tp, most.tp, a->layout->tp);
    range_label(text, sizeof text, "pp", least.pp, most.pp, a->layout->pp);
    range_label(text, sizeof text, "cp", least.cp, most.cp, a->layout->cp);
    range_label(text, sizeof text, "dp", least.dp, most.dp, a->layout->dp);
    range_label(text, sizeof text, "ep", least.ep, most.ep, a->layout->ep);
    svg_style style = {.size = fmin(12, a->row * 0.8), .anchor = SVG_FINISH, .fill = "#57606a"};
    svg_text(
        s, PICTURE_LEFT - 10, HEAD + a->row * (row + 0.5) + style.size * 0.36, style, "%s", text);
}

static void draw_column_names(svg *s, const panel *a)
{
    svg_style style = {.size = 11, .anchor = SVG_MIDDLE, .fill = "#57606a"};
    int layers = a->blocks - 2, every = 1;
    for (int i = 0; every * a->column < 26; i++)
        every = every / (i % 3 == 1 ? 2 : 1) * (i % 3 == 1 ? 5 : 2); /* 1 2 5 10 20 50 ... */
    /* The names of the ends are wider than a narrow column: layers beside them stay unnamed. */
    int beside = (int)ceil(34 / a->column);
    for (int block = 0; block < a->blocks; block++) {
        double x = PICTURE_LEFT + a->column * (block + 0.5);
        int layer = block - 1;
        if (block == 0)
            svg_text(s, x, HEAD - 6, style, "embed");
        else if (block == a->blocks - 1)
            svg_text(s, x, HEAD - 6, style, "head");
        else if (layer % every == 0 && block >= beside && layers - layer >= beside)
            svg_text(s, x, HEAD - 6, style, "%d", layer);
    }
}

void picture_holders(svg *s, const picture *p, const rs_layout *layout, const char *heading)
{
    panel a = make_panel(p, layout);
    char text[RS_LAYOUT_TEXT], meaning[RS_LAYOUT_TEXT];
    svg_text(s, PICTURE_MARGIN, 14, (svg_style){.size = 16, .bold = true}, "%s", heading);
    svg_text(
        s, PICTURE_MARGIN + 70, 14, (svg_style){.size = 15}, "%s", rs_layout_format(layout, text));
    svg_style small = {.size = 12, .anchor = SVG_FINISH, .fill = "#57606a"};
    rs_layout_describe_for(layout, a.space, meaning);
    if (a.group > 1)
        svg_text(s, PICTURE_WIDTH - PICTURE_MARGIN, 14, small, "%s; a row is %d ranks", meaning,
            a.group);
    else
        svg_text(s, PICTURE_WIDTH - PICTURE_MARGIN, 14, small, "%s", meaning);
    draw_column_names(s, &a);
    svg_path_begin(s, "#f1f3f5");
    for (int row = 0; row < a.rows; row++)
        svg_path_rect(
            s, PICTURE_LEFT, HEAD + a.row * (row + 0.04), a.column * a.blocks, a.row * 0.92);
    svg_path_end(s);

    span *slices = rs_calloc((size_t)a.blocks, sizeof *slices);
    a.split = rs_calloc((size_t)a.blocks, sizeof *a.split);
    if (slices != NULL && a.split != NULL) {
        find_split(&a);
        draw_mesh(s, &a, false, slices);
        if (rs_space_expert_count(a.space) > 0)
            draw_mesh(s, &a, true, slices);
    }
    free(a.split);
    free(slices);
    for (int block = 0; block <= a.blocks; block++) {
        double x = PICTURE_LEFT + a.column * block;
        svg_line(s, x, HEAD, x, HEAD + a.row * a.rows, "#ffffff");
    }
    for (int row = 0; row < a.rows; row++)
        draw_label(s, &a, row);
}
