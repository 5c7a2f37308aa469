/*
 * The transfer matrix: row = rank of the old world, column = rank of the new one, darkness = bytes.
 * Large worlds are summed over groups of ranks. Bars at the edges show what each sends and
 * receives, so that one sees at once whether the load is even. What a rank keeps (the diagonal)
 * never travels and is left out.
 */
#include "cli/picture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

enum { MAX_CELLS = 64, SIDE = 500, TOP = 120, BAR = 54 };

typedef struct matrix {
    int old_world, new_world;
    int group, rows, columns;
    double cell;
    int64_t *bytes; /* [rows][columns] */
    int64_t *sent, *received;
    int64_t most, most_sent, most_received;
} matrix;

char *picture_heat_colour(double part, char *out)
{
    return svg_oklch(0.93 - 0.58 * part, 0.03 + 0.10 * part, 255, out);
}

static matrix make_matrix(const picture *p)
{
    matrix m = {.old_world = rs_layout_world(p->from), .new_world = rs_layout_world(p->to)};
    int larger = m.old_world > m.new_world ? m.old_world : m.new_world;
    m.group = picture_group(p, larger, MAX_CELLS);
    m.rows = (m.old_world + m.group - 1) / m.group;
    m.columns = (m.new_world + m.group - 1) / m.group;
    int cells = m.rows > m.columns ? m.rows : m.columns;
    m.cell = fmin(46, (double)SIDE / cells);
    return m;
}

double picture_matrix_height(const picture *p)
{
    matrix m = make_matrix(p);
    return fmax(TOP + m.rows * m.cell + 40, 330);
}

static bool fill(matrix *m, const picture *p)
{
    m->bytes = rs_calloc((size_t)m->rows * (size_t)m->columns, sizeof *m->bytes);
    m->sent = rs_calloc((size_t)m->rows, sizeof *m->sent);
    m->received = rs_calloc((size_t)m->columns, sizeof *m->received);
    if (m->bytes == NULL || m->sent == NULL || m->received == NULL)
        return false;
    for (int from = 0; from < m->old_world; from++) {
        for (int to = 0; to < m->new_world; to++) {
            if (from == to)
                continue;
            int64_t bytes = p->totals->pair_bytes[(size_t)from * (size_t)m->new_world + (size_t)to];
            m->bytes[from / m->group * m->columns + to / m->group] += bytes;
            m->sent[from / m->group] += bytes;
            m->received[to / m->group] += bytes;
        }
    }
    for (int r = 0; r < m->rows; r++) {
        m->most_sent = m->sent[r] > m->most_sent ? m->sent[r] : m->most_sent;
        for (int c = 0; c < m->columns; c++) {
            int64_t bytes = m->bytes[r * m->columns + c];
            m->most = bytes > m->most ? bytes : m->most;
        }
    }
    for (int c = 0; c < m->columns; c++)
        m->most_received = m->received[c] > m->most_received ? m->received[c] : m->most_received;
    return true;
}

static void name_group(const matrix *m, int index, int world, char *text, size_t size)
{
    int first = index * m->group;
    int last = first + m->group < world ? first + m->group - 1 : world - 1;
    if (first == last)
        snprintf(text, size, "%d", first);
    else
        snprintf(text, size, "%d-%d", first, last);
}

/* "256K", "1.5G": short enough for a cell. */
static char *brief_bytes(int64_t bytes, char *text, size_t size)
{
    static const char units[] = " KMGTPE";
    double value = (double)bytes;
    int unit = 0;
    while (value >= 999.5 && units[unit + 1] != '\0') {
        value /= 1024;
        unit++;
    }
    snprintf(text, size, "%.*f%c", value < 9.95 && unit > 0 ? 1 : 0, value, units[unit]);
    return text;
}

static void draw_value(svg *s, const matrix *m, double x, double y, int64_t bytes, double dark)
{
    char text[16];
    svg_style style = {
        .size = 11, .anchor = SVG_MIDDLE, .fill = dark > 0.45 ? "#ffffff" : "#24292f"};
    svg_text(s, x + m->cell / 2, y + m->cell / 2 + 4, style, "%s",
        brief_bytes(bytes, text, sizeof text));
}

static void draw_cells(svg *s, const matrix *m)
{
    double inset = m->cell > 14 ? 0.75 : 0.25;
    for (int r = 0; r < m->rows; r++) {
        for (int c = 0; c < m->columns; c++) {
            int64_t bytes = m->bytes[r * m->columns + c];
            double x = PICTURE_LEFT + m->cell * c + inset, y = TOP + m->cell * r + inset;
            double side = m->cell - 2 * inset;
            char colour[SVG_COLOUR], tip[160], from[32], to[32], human[RS_HUMAN];
            if (bytes > 0) {
                name_group(m, r, m->old_world, from, sizeof from);
                name_group(m, c, m->new_world, to, sizeof to);
                snprintf(tip, sizeof tip, "old %s to new %s: %s", from, to,
                    rs_human_bytes(bytes, human));
                double dark = sqrt((double)bytes / (double)m->most);
                picture_heat_colour(dark, colour);
                svg_rect(s, x, y, side, side, colour, tip);
                if (m->cell >= 34)
                    draw_value(s, m, x - inset, y - inset, bytes, dark);
            } else if (r == c && m->group == 1) {
                svg_rect(s, x, y, side, side, "#e4e7ea", NULL);
            } else {
                svg_rect(s, x, y, side, side, "#f6f7f8", NULL);
            }
        }
    }
}

/* Bars of what is sent (right) and received (above), and the ranks' names. */
static void draw_edges(svg *s, const matrix *m)
{
    double right = PICTURE_LEFT + m->cell * m->columns + 8;
    int every = m->cell >= 16 ? 1 : m->group == 1 ? 8 : (int)ceil(30 / m->cell);
    svg_style names = {.size = 11, .anchor = SVG_FINISH, .fill = "#57606a"};
    char text[32], human[RS_HUMAN], tip[96];
    for (int r = 0; r < m->rows; r++) {
        double y = TOP + m->cell * r;
        double w = m->most_sent > 0 ? BAR * (double)m->sent[r] / (double)m->most_sent : 0;
        snprintf(tip, sizeof tip, "sends %s", rs_human_bytes(m->sent[r], human));
        svg_rect(s, right, y + 0.15 * m->cell, w, 0.7 * m->cell, "#9aa7b4", tip);
        name_group(m, r, m->old_world, text, sizeof text);
        if (r % every == 0)
            svg_text(s, PICTURE_LEFT - 8, y + m->cell / 2 + 4, names, "%s", text);
    }
    for (int c = 0; c < m->columns; c++) {
        double x = PICTURE_LEFT + m->cell * c;
        double h =
            m->most_received > 0 ? BAR * (double)m->received[c] / (double)m->most_received : 0;
        snprintf(tip, sizeof tip, "receives %s", rs_human_bytes(m->received[c], human));
        svg_rect(s, x + 0.15 * m->cell, TOP - 20 - h, 0.7 * m->cell, h, "#9aa7b4", tip);
        name_group(m, c, m->new_world, text, sizeof text);
        names.anchor = SVG_MIDDLE;
        if (c % every == 0 && m->group == 1)
            svg_text(s, x + m->cell / 2, TOP - 6, names, "%s", text);
        else if (c % (2 * every) == 0 && m->group > 1)
            svg_text(s, x + m->cell / 2, TOP - 6, names, "%d", c * m->group);
    }
}

/* Lines between nodes, where cells do not cross them. */
static void draw_nodes(svg *s, const picture *p, const matrix *m)
{
    if (p->ranks_per_node == 0 || m->group > p->ranks_per_node ||
        m->cell * p->ranks_per_node / m->group < 6)
        return;
    double step = m->cell * p->ranks_per_node / m->group;
    double w = m->cell * m->columns, h = m->cell * m->rows;
    for (double x = step; x < w - 0.01; x += step)
        svg_line(s, PICTURE_LEFT + x, TOP, PICTURE_LEFT + x, TOP + h, "#b1bac4");
    for (double y = step; y < h - 0.01; y += step)
        svg_line(s, PICTURE_LEFT, TOP + y, PICTURE_LEFT + w, TOP + y, "#b1bac4");
}

static void draw_scale(svg *s, const matrix *m)
{
    double x0 = PICTURE_LEFT, y = TOP + m->cell * m->rows + 14;
    char colour[SVG_COLOUR], human[RS_HUMAN];
    enum { STEPS = 40, WIDE = 200 };
    for (int i = 0; i < STEPS; i++)
        svg_rect(s, x0 + (double)WIDE * i / STEPS, y, (double)WIDE / STEPS + 0.5, 10,
            picture_heat_colour(sqrt((i + 0.5) / STEPS), colour), NULL);
    svg_style small = {.size = 11, .fill = "#57606a"};
    svg_text(s, x0 + WIDE + 8, y + 9, small, "0 to %s a cell", rs_human_bytes(m->most, human));
}

void picture_matrix(svg *s, const picture *p)
{
    matrix m = make_matrix(p);
    svg_text(s, PICTURE_MARGIN, 14, (svg_style){.size = 16, .bold = true}, "Transfers");
    svg_text(s, PICTURE_MARGIN + 110, 14, (svg_style){.size = 12, .fill = "#57606a"},
        "bytes from old rank to new rank%s; what a rank keeps does not travel",
        m.group > 1 ? ", summed over groups" : "");
    svg_style axis = {.size = 12, .anchor = SVG_MIDDLE, .fill = "#57606a"};
    svg_text(s, PICTURE_LEFT + m.cell * m.columns / 2, TOP - BAR - 28, axis,
        "new rank (bars: received)");
    axis.turn = -90;
    svg_text(s, PICTURE_LEFT - 74, TOP + m.cell * m.rows / 2, axis, "old rank");
    axis.turn = 90;
    svg_text(
        s, PICTURE_LEFT + m.cell * m.columns + BAR + 18, TOP + m.cell * m.rows / 2, axis, "sent");
    if (fill(&m, p)) {
        draw_cells(s, &m);
        draw_nodes(s, p, &m);
        draw_edges(s, &m);
        draw_scale(s, &m);
    } else if (s->text.status == RS_OK) {
        s->text.status = RS_ERR_NO_MEMORY;
    }
    free(m.bytes);
    free(m.sent);
    free(m.received);
}
