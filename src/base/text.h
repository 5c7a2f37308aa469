/* Growing text, for messages, JSON and reports; and numbers in human units. */
#ifndef RS_BASE_TEXT_H
#define RS_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reshard/status.h"

/* Starts as {0}. After a failed append it stays failed and ignores further text. */
typedef struct rs_text {
    char *data; /* NUL-terminated once anything was appended */
    size_t length;
    size_t capacity;
    rs_status status;
} rs_text;

void rs_text_append(rs_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Hands the characters over (free() them) and resets the text; the status of all appends. */
rs_status rs_text_take(rs_text *text, char **out) RS_MUST_CHECK;
void rs_text_fini(rs_text *text);

/* Appends the numbers below `count` that are not in the set: "0, 3, 5..7"; nothing if all are. */
void rs_text_append_gaps(rs_text *text, const bool *set, int count);

#define RS_HUMAN 32

/* "1.50 GiB", "12 B"; room for RS_HUMAN bytes; returns `out`. */
char *rs_human_bytes(int64_t bytes, char *out);

/* "1.25 s", "3.2 ms", "2 min 5 s". */
char *rs_human_seconds(double seconds, char *out);

#endif
