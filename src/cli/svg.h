/* Writing a standalone SVG file: shapes, escaped text, colours. Coordinates are pixels. */
#ifndef RS_CLI_SVG_H
#define RS_CLI_SVG_H

#include <stdbool.h>

#include "base/text.h"
#include "reshard/status.h"

/* Starts as {0}; errors are kept in `text` until svg_save. */
typedef struct svg {
    rs_text text;
} svg;

#define SVG_COLOUR 8

/* "#rrggbb" of an OKLCH colour (lightness 0..1, chroma 0..0.4, hue in degrees): colours of one
 * lightness look equally bright whatever their hue. Returns `out` (SVG_COLOUR bytes). */
char *svg_oklch(double lightness, double chroma, double hue, char *out);

/* Opens the file: size, title for screen readers, white ground. */
void svg_begin(svg *s, double width, double height, const char *title);
void svg_end(svg *s);

/* Shapes between svg_group and svg_group_end move by (x, y). */
void svg_group(svg *s, double x, double y);
void svg_group_end(svg *s);

/* `tip` is shown under the mouse; NULL: none. */
void svg_rect(svg *s, double x, double y, double w, double h, const char *fill, const char *tip);
void svg_line(svg *s, double x1, double y1, double x2, double y2, const char *stroke);

/* Many rectangles of one colour as one path. */
void svg_path_begin(svg *s, const char *fill);
void svg_path_rect(svg *s, double x, double y, double w, double h);
void svg_path_end(svg *s);

typedef enum svg_anchor { SVG_START = 0, SVG_MIDDLE, SVG_FINISH } svg_anchor;

typedef struct svg_style {
    double size;
    svg_anchor anchor;
    bool bold;
    double turn;      /* degrees clockwise about the text's point */
    const char *fill; /* NULL: dark grey */
} svg_style;

void svg_text(svg *s, double x, double y, svg_style style, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/*
 * Writes the file beside its place, then puts it there: `path` is never half a picture.
 * RS_ERR_EXISTS if it exists and `replace` is false. Releases the text in every case.
 */
rs_status svg_save(svg *s, const char *path, bool replace) RS_MUST_CHECK;

#endif
