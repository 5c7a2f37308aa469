/*
 * Patterns, by PCRE2. Checkpoints carry patterns written for Python; the two agree in everything
 * that such patterns use. The limits are far above what a name needs, and keep a hostile pattern
 * from taking memory or time without end.
 */
#include "ckpt/pattern.h"

#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "base/memory.h"

#define LENGTH_MOST 4096
#define NEST_MOST 50
#define STEPS_MOST 100000
#define HEAP_MOST 16384 /* KiB */

struct rs_pattern {
    char *text;
    pcre2_code *code;
    pcre2_match_context *limits;
    pcre2_match_data *data;
};

rs_status rs_pattern_create(const char *text, rs_pattern **out)
{
    rs_pattern *pattern = rs_calloc(1, sizeof *pattern);
    if (pattern == NULL)
        return rs_error_memory(sizeof *pattern);
    rs_status status = RS_OK;
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    pattern->text = rs_strdup(text);
    pattern->limits = pcre2_match_context_create(NULL);
    if (context == NULL || pattern->text == NULL || pattern->limits == NULL)
        RS_TRY_GOTO(rs_error_memory(strlen(text)), out);
    pcre2_set_max_pattern_length(context, LENGTH_MOST);
    pcre2_set_parens_nest_limit(context, NEST_MOST);
    pcre2_set_match_limit(pattern->limits, STEPS_MOST);
    pcre2_set_depth_limit(pattern->limits, STEPS_MOST);
    pcre2_set_heap_limit(pattern->limits, HEAP_MOST);
    pattern->code =
        pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED, &code, &at, context);
    if (pattern->code == NULL) {
        PCRE2_UCHAR reason[128];
        pcre2_get_error_message(code, reason, sizeof reason);
        RS_TRY_GOTO(rs_error_set(RS_ERR_MALFORMED, "the pattern \"%.200s\": character %zu: %s",
                        text, (size_t)at, (const char *)reason),
            out);
    }
    pattern->data = pcre2_match_data_create(1, NULL);
    if (pattern->data == NULL)
        RS_TRY_GOTO(rs_error_memory(64), out);
    *out = pattern;
    pattern = NULL;
out:
    pcre2_compile_context_free(context);
    rs_pattern_destroy(pattern);
    return status;
}

void rs_pattern_destroy(rs_pattern *pattern)
{
    if (pattern == NULL)
        return;
    pcre2_match_data_free(pattern->data);
    pcre2_match_context_free(pattern->limits);
    pcre2_code_free(pattern->code);
    free(pattern->text);
    free(pattern);
}

const char *rs_pattern_text(const rs_pattern *pattern)
{
    return pattern->text;
}

rs_status rs_pattern_match(const rs_pattern *pattern, const char *name, bool *matches)
{
    int code = pcre2_match(
        pattern->code, (PCRE2_SPTR)name, strlen(name), 0, 0, pattern->data, pattern->limits);
    if (code < 0 && code != PCRE2_ERROR_NOMATCH)
        return rs_error_set(RS_ERR_BUDGET, "the pattern \"%.200s\" takes too long on \"%.200s\"",
            pattern->text, name);
    *matches = code >= 0;
    return RS_OK;
}
