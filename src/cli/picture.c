/*
 * The picture of a plan: title, who holds what before, who holds what after (columns aligned, so
 * that one compares the same part of the model vertically), the transfer matrix, figures and
 * legend.
 */
#include "cli/picture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { HEADER = 92, GAP = 26, FIGURES_X = 860, LINE = 24 };

typedef struct cursor {
    svg *s;
    double x, y;
} cursor;

static void figure(cursor *at, const char *label, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void figure(cursor *at, const char *label, const char *format, ...)
{
    char text[160];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    svg_text(at->s, at->x, at->y, (svg_style){.size = 13, .fill = "#57606a"}, "%s", label);
    svg_text(at->s, at->x + 150, at->y, (svg_style){.size = 13}, "%s", text);
    at->y += LINE;
}

static void draw_figures(cursor *at, const picture *p)
{
    const rs_plan_totals *t = p->totals;
    char a[RS_HUMAN], b[RS_HUMAN];
    svg_text(at->s, at->x, at->y, (svg_style){.size = 16, .bold = true}, "Figures");
    at->y += LINE + 4;
    figure(at, "bytes moved", "%s; the minimum is %s", rs_human_bytes(t->moved, a),
        rs_human_bytes(t->minimum, b));
    figure(at, "kept in place", "%s; copied within a rank %s", rs_human_bytes(t->adopted, a),
        rs_human_bytes(t->self, b));
    figure(at, "busiest rank", "%s; bound %s (%s)", rs_human_bytes(t->rank_bytes_max, a),
        rs_human_bytes(t->rank_bytes_bound, b), t->bound_kind);
    figure(at, "inside nodes", "%s", rs_human_bytes(t->node.bytes, a));
    figure(at, "between nodes", "%s; busiest node %s", rs_human_bytes(t->remote.bytes, a),
        rs_human_bytes(t->node_bytes_max, b));
    figure(at, "peak of a rank", "safe %s, tight %s", rs_human_bytes(t->peak_safe, a),
        rs_human_bytes(t->peak_tight, b));
}

/* A sample cell with its words, then the colours of the slices. */
static void draw_legend(cursor *at, const picture *p)
{
    svg *s = at->s;
    char light[SVG_COLOUR], dark[SVG_COLOUR];

    svg_text(s, at->x, at->y, (svg_style){.size = 16, .bold = true}, "Legend");
    at->y += 16;
    svg_style words = {.size = 12, .fill = "#57606a"};
    svg_rect(s, at->x, at->y, 120, 40, "#f1f3f5", NULL);
    svg_rect(s, at->x, at->y + 3, 60, 21, picture_slice_colour(0, 2, false, light), NULL);
    svg_rect(s, at->x + 30, at->y + 26, 30, 12, picture_slice_colour(0, 2, true, dark), NULL);
    svg_text(s, at->x + 132, at->y + 17, words, "above: parameters, the part of the block held");
    svg_text(s, at->x + 132, at->y + 35, words, "below: optimizer state, cut further by ZeRO");
    at->y += 60;
    static const char *const names[] = {"before", "after"};
    for (int side = 0; side < 2; side++) {
        int of = side == 0 ? p->from->tp : p->to->tp;
        double width = fmin(44, 360.0 / of);
        svg_text(s, at->x, at->y + 12, words, "tp slices %s", names[side]);
        for (int i = 0; i < of; i++) {
            double x = at->x + 132 + width * i;
            svg_rect(s, x, at->y, width - (of > 40 ? 0 : 1), 9,
                picture_slice_colour(i, of, false, light), NULL);
            svg_rect(s, x, at->y + 9, width - (of > 40 ? 0 : 1), 6,
                picture_slice_colour(i, of, true, dark), NULL);
        }
        at->y += 24;
    }
}

rs_status picture_save(const picture *p, const char *path, bool replace)
{
    char from[RS_LAYOUT_TEXT], to[RS_LAYOUT_TEXT], count[CLI_COUNT], bytes[RS_HUMAN];
    const subject *subj = p->subject;
    rs_layout_format(p->from, from);
    rs_layout_format(p->to, to);
    double before = picture_holders_height(p, p->from);
    double after = picture_holders_height(p, p->to);
    double matrix = picture_matrix_height(p);

    svg s = {0};
    char title[2 * RS_LAYOUT_TEXT + 100];
    snprintf(title, sizeof title, "%s: %s to %s", subj->model.name, from, to);
    svg_begin(&s, PICTURE_WIDTH, HEADER + before + GAP + after + GAP + matrix + 20, title);
    svg_text(&s, PICTURE_MARGIN, 42, (svg_style){.size = 24, .bold = true},
        "%s: %s \xe2\x86\x92 %s", subj->model.name, from, to);
    svg_text(&s, PICTURE_MARGIN, 66, (svg_style){.size = 13, .fill = "#57606a"},
        "%s parameters in %s, %s of training state, %d layers; %d rank%s to %d",
        cli_human_count(rs_space_elements(subj->space), count), cli_dtype_name(subj->dtype),
        rs_human_bytes(rs_space_bytes(subj->space, -1), bytes),
        (int)rs_space_layer_count(subj->space), rs_layout_world(p->from),
        rs_layout_world(p->from) == 1 ? "" : "s", rs_layout_world(p->to));
    double y = HEADER;
    svg_group(&s, 0, y);
    picture_holders(&s, p, p->from, "Before");
    svg_group_end(&s);
    y += before + GAP;
    svg_group(&s, 0, y);
    picture_holders(&s, p, p->to, "After");
    svg_group_end(&s);
    y += after + GAP;
    svg_group(&s, 0, y);
    picture_matrix(&s, p);
    cursor at = {.s = &s, .x = FIGURES_X, .y = 14};
    draw_figures(&at, p);
    at.y += 24;
    draw_legend(&at, p);
    svg_group_end(&s);
    svg_end(&s);
    return svg_save(&s, path, replace);
}
