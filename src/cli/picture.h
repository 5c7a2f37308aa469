/* The picture of a plan: who holds what before and after, and who sends how much to whom. */
#ifndef RS_CLI_PICTURE_H
#define RS_CLI_PICTURE_H

#include "cli/subject.h"
#include "cli/svg.h"
#include "reshard/plan.h"

typedef struct picture {
    const subject *subject;
    const rs_layout *from;
    const rs_layout *to;
    const rs_plan_totals *totals; /* with pair_bytes */
    int ranks_per_node;           /* 0: one node */
} picture;

rs_status picture_save(const picture *p, const char *path, bool replace) RS_MUST_CHECK;

/* The parts, each drawn with its upper left corner at the origin. */

enum { PICTURE_WIDTH = 1400, PICTURE_LEFT = 200, PICTURE_MARGIN = 40 };

double picture_holders_height(const picture *p, const rs_layout *layout);
void picture_holders(svg *s, const picture *p, const rs_layout *layout, const char *heading);

double picture_matrix_height(const picture *p);
void picture_matrix(svg *s, const picture *p);

/* Ranks that share a row so that at most `rows` are needed: 1, or whole nodes, or whole tp groups.
 */
int picture_group(const picture *p, int world, int rows);

/* Colour of tp slice `slice` of `of`: light for parameters, dark for optimizer state. */
char *picture_slice_colour(int slice, int of, bool dark, char *out);

/* Colour of a matrix cell of `part` (0..1) of the largest. */
char *picture_heat_colour(double part, char *out);

#endif
