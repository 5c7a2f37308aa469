/* Rules files: what is understood, what is refused and why. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/rules.h"

static char path[] = "/tmp/reshard-rules-XXXXXX";

static rs_status read_text(rs_rules *rules, const char *text)
{
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
    *rules = (rs_rules){0};
    return rs_rules_add_file(rules, path);
}

static const rs_rule *find(rs_rules *rules, const char *name)
{
    const rs_rule *rule;
    assert_int_equal(rs_rules_find(rules, name, &rule), RS_OK);
    return rule;
}

static void test_own_rules(void **state)
{
    (void)state;
    rs_rules rules;
    assert_int_equal(
        read_text(&rules,
            "{\"rules\":[{\"match\":\"a\\\\d+\\\\.w\",\"split\":1},"
            "{\"match\":\"qkv\",\"split\":0,\"parts\":[4,2,2],\"comment\":\"fused\"},"
            "{\"match\":\"n\",\"replicated\":true},{\"match\":\"r\",\"averaged\":true},"
            "{\"match\":\"embed\",\"split\":0,\"vocabulary\":61},{\"match\":\"h\",\"tied\":\"e\"},"
            "{\"match\":\"v\",\"vocabulary\":7},{\"match\":\"few\",\"split\":0,"
            "\"parts\":[8,2,2],\"groups\":2,\"shared\":[1,2]},"
            "{\"match\":\"s\",\"replicated\":true,\"equal\":true},"
            "{\"match\":\"w[123]\",\"experts\":true}],\"otherwise\":{\"split\":2}}"),
        RS_OK);
    bool experts;
    assert_int_equal(rs_rules_experts(&rules, "w1.weight", &experts), RS_OK);
    assert_true(experts);
    assert_int_equal(rs_rules_experts(&rules, "few", &experts), RS_OK);
    assert_true(!experts);
    assert_int_equal(find(&rules, "few")->groups, 2);
    assert_true(!find(&rules, "few")->shared[0] && find(&rules, "few")->shared[2]);
    assert_true(find(&rules, "few")->equal && find(&rules, "s")->equal);
    assert_true(!find(&rules, "norm")->equal && find(&rules, "qkv")->shared == NULL);
    assert_int_equal(find(&rules, "a12.w")->dim, 1);
    assert_int_equal(find(&rules, "a12.w.more")->dim, 1); /* anchored at the start only */
    assert_int_equal(find(&rules, "ba12.w")->dim, 2);
    assert_int_equal(find(&rules, "qkv")->parts, 3);
    assert_int_equal(find(&rules, "qkv")->sizes[0], 4);
    assert_int_equal(find(&rules, "norm")->kind, RS_RULE_REPLICATED);
    assert_int_equal(find(&rules, "router")->kind, RS_RULE_AVERAGED);
    const rs_vocabulary *vocabulary;
    const char *tied;
    assert_int_equal(rs_rules_vocabulary(&rules, "embed.weight", &vocabulary), RS_OK);
    assert_int_equal(vocabulary->rows, 61);
    assert_int_equal(rs_rules_vocabulary(&rules, "wembed", &vocabulary), RS_OK);
    assert_null(vocabulary);
    assert_int_equal(rs_rules_tie(&rules, "head", &tied), RS_OK);
    assert_string_equal(tied, "e");
    rs_rules_fini(&rules);
}

static void test_info(void **state)
{
    (void)state;
    rs_rules rules;
    assert_int_equal(
        read_text(&rules,
            "{\"original_vocab_size\":5,\"vocabulary_parameter_patterns\":[\".*emb\"],"
            "\"tp_replicated_parameter_patterns\":[\"x\"],\"parameter_to_average_patterns\":[\"y\"]"
            ","
            "\"parameter_with_row_parallelism_patterns\":[\"z\",\"x\"],"
            "\"parameter_with_2_sub_params_cat_dim_0\":[\"gate_up\"],"
            "\"parameter_with_sub_params\":[{\"patterns\":[\"q\"],\"shape\":[[6,2,2],-1],"
            "\"partition_dim\":0},{\"patterns\":[\"old\"],\"shape\":[3,-1],\"partition_dim\":0}],"
            "\"sub_param_shard_widths\":{\"q\":[[4,2],[1,1],[1,1]]}}"),
        RS_OK);
    assert_int_equal(find(&rules, "x")->kind, RS_RULE_REPLICATED); /* lists in order */
    assert_int_equal(find(&rules, "y")->kind, RS_RULE_AVERAGED);
    assert_int_equal(find(&rules, "z")->dim, 1);
    assert_int_equal(find(&rules, "gate_up")->parts, 2);
    assert_int_equal(find(&rules, "q")->parts, 3);
    assert_int_equal(find(&rules, "q")->widths[1], 2);
    assert_int_equal(find(&rules, "q")->view_ndim, 2);
    assert_true(find(&rules, "old")->bare);
    assert_int_equal(find(&rules, "old")->parts, 3);
    assert_int_equal(find(&rules, "anything")->dim, 0); /* the format's own last rule */
    rs_rules_fini(&rules);
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "line 1"},
        {"[]", "an object with a list"},
        {"{}", "has no rules"},
        {"{\"rules\":[{\"split\":0}]}", "rule 1: \"match\" is missing"},
        {"{\"rules\":[{\"match\":\"a\"}]}", "rule 1: one of \"split\""},
        {"{\"rules\":[{\"match\":\"a\",\"split\":-1}]}", "rule 1: one of \"split\""},
        {"{\"rules\":[{\"match\":\"a\",\"split\":0},{\"match\":\"(\",\"split\":0}]}",
            "rule 2: the pattern \"(\": character 1"},
        {"{\"rules\":[{\"match\":\"a\",\"split\":0,\"parts\":0}]}", "\"parts\""},
        {"{\"rules\":[{\"match\":\"a\",\"split\":0,\"parts\":[1,-2]}]}", "no whole number"},
        {"{\"rules\":[{\"match\":\"a\",\"splitt\":0}]}", "unknown key \"splitt\""},
        {"{\"rules\":[{\"match\":\"a\",\"split\":0,\"parts\":[4,2],\"groups\":2}]}",
            "\"groups\" needs \"shared\""},
        {"{\"rules\":[{\"match\":\"a\",\"split\":0,\"parts\":2,\"shared\":[1]}]}",
            "must be a list of sizes"},
        {"{\"rules\":[{\"match\":\"a\",\"split\":0,\"parts\":[4,2],\"shared\":[2]}]}",
            "no number of a part"},
        {"{\"rules\":[{\"match\":\"a\",\"split\":0,\"parts\":[4,2],\"shared\":[-1]}]}",
            "no number of a part"},
        {"{\"rules\":[{\"match\":\"a\",\"split\":0,\"parts\":[4,2],\"shared\":[0,1]}]}",
            "has all parts"},
        {"{\"rules\":[{\"match\":\"a\",\"split\":0,\"parts\":[4,2],\"shared\":[1],\"groups\":0}]}",
            "\"groups\" must be a number"},
        {"{\"rules\":[{\"match\":\"a\",\"split\":0,\"parts\":[4,3],\"shared\":[1],\"groups\":2}]}",
            "that divides the size of every part"},
        {"{\"rules\":[{\"match\":\"a\",\"split\":0,\"parts\":[9223372036854775807,1],"
         "\"shared\":[1]}]}",
            "overflow"},
        {"{\"rules\":[{\"match\":\"a\",\"split\":0,\"equal\":true}]}", "what is \"replicated\""},
        {"{\"rules\":[{\"match\":\"a\",\"vocabulary\":0}]}", "true number of rows"},
        {"{\"otherwise\":{\"tied\":\"x\"}}", "\"tied\" needs \"match\""},
        {"{\"otherwise\":{\"experts\":true}}", "\"experts\" needs \"match\""},
        {"{\"universal_checkpoint_info\":{\"tp_replicated_parameter_patterns\":[1]}}",
            "\"tp_replicated_parameter_patterns\" is not understood"},
        {"{\"universal_checkpoint_info\":{\"autotp_unsupported_parameter_patterns\":"
         "{\"moe.w\":\"why\"}}}",
            "not described"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rs_rules rules;
        rs_status status = read_text(&rules, cases[i][0]);
        if (status == RS_OK || strstr(rs_error_message(), cases[i][1]) == NULL)
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i,
                status == RS_OK ? "" : rs_error_message(), cases[i][1]);
        assert_true(strstr(rs_error_message(), path) != NULL);
        rs_rules_fini(&rules);
    }
}

/* A pattern that would take a regular-expression engine for ever. */
static void test_hostile_pattern(void **state)
{
    (void)state;
    rs_rules rules;
    const rs_rule *rule;
    assert_int_equal(
        read_text(&rules, "{\"rules\":[{\"match\":\"(a|aa)+$\",\"split\":0}]}"), RS_OK);
    assert_int_equal(
        rs_rules_find(&rules, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", &rule),
        RS_ERR_BUDGET);
    rs_rules_fini(&rules);
}

int main(void)
{
    int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_rules),
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_hostile_pattern),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
