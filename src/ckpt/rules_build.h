/* Inside the rules: adding one. */
#ifndef RS_CKPT_RULES_BUILD_H
#define RS_CKPT_RULES_BUILD_H

#include "ckpt/rules.h"

/* A pattern of NULL matches every name. */
rs_status rs_rules_add(rs_rules *rules, const char *pattern, rs_rule rule) RS_MUST_CHECK;
rs_status rs_rules_add_vocabulary(rs_rules *rules, const char *pattern, int64_t rows) RS_MUST_CHECK;
rs_status rs_rules_add_pipeline(rs_rules *rules, const char *pattern) RS_MUST_CHECK;
rs_status rs_rules_add_experts(rs_rules *rules, const char *pattern) RS_MUST_CHECK;
rs_status rs_rules_add_tie(rs_rules *rules, const char *pattern, const char *target) RS_MUST_CHECK;

#endif
