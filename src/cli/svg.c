/*
 * SVG as text. Colours come from OKLCH (B. Ottosson, "A perceptual color space for image
 * processing", 2020), so that slices of different hue weigh the same to the eye.
 */
#include "cli/svg.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

static int channel(double linear)
{
    double v = linear <= 0.0031308 ? 12.92 * linear : 1.055 * pow(linear, 1 / 2.4) - 0.055;
    v = v < 0 ? 0 : v > 1 ? 1 : v;
    return (int)lround(255 * v);
}

char *svg_oklch(double lightness, double chroma, double hue, char *out)
{
    double angle = hue * M_PI / 180;
    double a = chroma * cos(angle), b = chroma * sin(angle);
    double l = pow(lightness + 0.3963377774 * a + 0.2158037573 * b, 3);
    double m = pow(lightness - 0.1055613458 * a - 0.0638541728 * b, 3);
    double s = pow(lightness - 0.0894841775 * a - 1.2914855480 * b, 3);
    unsigned red = (unsigned)channel(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s);
    unsigned green = (unsigned)channel(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s);
    unsigned blue = (unsigned)channel(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s);
    snprintf(out, SVG_COLOUR, "#%02x%02x%02x", red & 255, green & 255, blue & 255);
    return out;
}

/* Text content, with the characters that XML takes for itself written as entities. */
static void put_escaped(svg *s, const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        switch (*c) {
        case '&':
            rs_text_append(&s->text, "&amp;");
            break;
        case '<':
            rs_text_append(&s->text, "&lt;");
            break;
        case '>':
            rs_text_append(&s->text, "&gt;");
            break;
        default:
            if ((unsigned char)*c >= 32)
                rs_text_append(&s->text, "%c", *c);
        }
    }
}

void svg_begin(svg *s, double width, double height, const char *title)
{
    rs_text_append(&s->text,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
        "viewBox=\"0 0 %.0f %.0f\" font-family=\"'DejaVu Sans', Verdana, Helvetica, Arial, "
        "sans-serif\" role=\"img\">\n<title>",
        width, height, width, height);
    put_escaped(s, title);
    rs_text_append(&s->text, "</title>\n");
    svg_rect(s, 0, 0, width, height, "#ffffff", NULL);
}

void svg_end(svg *s)
{
    rs_text_append(&s->text, "</svg>\n");
}

void svg_group(svg *s, double x, double y)
{
    rs_text_append(&s->text, "<g transform=\"translate(%.2f %.2f)\">\n", x, y);
}

void svg_group_end(svg *s)
{
    rs_text_append(&s->text, "</g>\n");
}

void svg_rect(svg *s, double x, double y, double w, double h, const char *fill, const char *tip)
{
    rs_text_append(&s->text,
        "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"", x, y, w, h, fill);
    if (tip != NULL) {
        rs_text_append(&s->text, "><title>");
        put_escaped(s, tip);
        rs_text_append(&s->text, "</title></rect>\n");
    } else {
        rs_text_append(&s->text, "/>\n");
    }
}

void svg_line(svg *s, double x1, double y1, double x2, double y2, const char *stroke)
{
    rs_text_append(&s->text,
        "<line x1=\"%.2f\" y1=\"%.2f\" x2=\"%.2f\" y2=\"%.2f\" stroke=\"%s\"/>\n", x1, y1, x2, y2,
        stroke);
}

void svg_path_begin(svg *s, const char *fill)
{
    rs_text_append(&s->text, "<path fill=\"%s\" d=\"", fill);
}

void svg_path_rect(svg *s, double x, double y, double w, double h)
{
    rs_text_append(&s->text, "M%.2f %.2fh%.2fv%.2fh%.2fz", x, y, w, h, -w);
}

void svg_path_end(svg *s)
{
    rs_text_append(&s->text, "\"/>\n");
}

void svg_text(svg *s, double x, double y, svg_style style, const char *format, ...)
{
    static const char *const anchors[] = {"start", "middle", "end"};
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    rs_text_append(&s->text, "<text x=\"%.2f\" y=\"%.2f\" font-size=\"%.1f\" text-anchor=\"%s\"", x,
        y, style.size, anchors[style.anchor]);
    if (style.bold)
        rs_text_append(&s->text, " font-weight=\"bold\"");
    if (style.turn != 0)
        rs_text_append(&s->text, " transform=\"rotate(%.0f %.2f %.2f)\"", style.turn, x, y);
    rs_text_append(&s->text, " fill=\"%s\">", style.fill != NULL ? style.fill : "#24292f");
    put_escaped(s, line);
    rs_text_append(&s->text, "</text>\n");
}

/* Writes `aside`, which is to become `path`: the name that the user knows, and errors say. */
static rs_status write_file(const char *aside, const char *path, const char *data)
{
    FILE *file = fopen(aside, "w");
    if (file == NULL)
        return rs_error_errno(errno, "%s", path);
    bool ok = fputs(data, file) >= 0;
    ok = fflush(file) == 0 && ok;
    int error = errno;
    fclose(file);
    return ok ? RS_OK : rs_error_errno(error, "%s", path);
}

rs_status svg_save(svg *s, const char *path, bool replace)
{
    char *data = NULL, *aside = NULL;
    rs_text name = {0};
    rs_text_append(&name, "%s.%d.tmp", path, (int)getpid());
    rs_status status;
    RS_TRY_GOTO(rs_text_take(&name, &aside), done);
    RS_TRY_GOTO(rs_text_take(&s->text, &data), done);
    RS_TRY_GOTO(write_file(aside, path, data), remove_aside);
    /* link refuses to replace, also a file that came into being meanwhile; rename replaces. */
    if (replace ? rename(aside, path) != 0 : link(aside, path) != 0) {
        status = errno == EEXIST
                     ? rs_error_set(RS_ERR_EXISTS, "%s exists already (--force replaces it)", path)
                     : rs_error_errno(errno, "%s", path);
    }
remove_aside:
    unlink(aside);
done:
    rs_text_fini(&s->text);
    free(aside);
    free(data);
    return status;
}
