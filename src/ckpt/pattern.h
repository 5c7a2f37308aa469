/* Name patterns of checkpoints: regular expressions as Python's re.match takes them, anchored at
 * the start of the name only. They may come from strangers; matching is bounded. */
#ifndef RS_CKPT_PATTERN_H
#define RS_CKPT_PATTERN_H

#include <stdbool.h>

#include "reshard/status.h"

typedef struct rs_pattern rs_pattern;

/* RS_ERR_MALFORMED: no regular expression, or one beyond the limits. */
rs_status rs_pattern_create(const char *text, rs_pattern **out) RS_MUST_CHECK;
void rs_pattern_destroy(rs_pattern *pattern);

const char *rs_pattern_text(const rs_pattern *pattern);

/* RS_ERR_BUDGET if the match takes too many steps. */
rs_status rs_pattern_match(
    const rs_pattern *pattern, const char *name, bool *matches) RS_MUST_CHECK;

#endif
