/* Parameter groups of pipeline stages when names change: one list where the stages are alike, each
 * its own where they are not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <string.h>

#include "ckpt/groups.h"
#include "support/ok.h"

/* Two stages of two groups; the second stage's first group has the rate `lr`. */
static rs_catalog *make(double lr)
{
    rs_catalog *catalog;
    OK(rs_catalog_create("deepspeed", &catalog));
    json_t *groups = json_pack("[[{s:f,s:[s]},{s:f,s:[s]}],[{s:f,s:[s]},{s:f,s:[s]}]]", "lr", 1.0,
        RS_GROUP_NAMES, "0.w", "lr", 2.0, RS_GROUP_NAMES, "0.n", "lr", lr, RS_GROUP_NAMES, "1.w",
        "lr", 2.0, RS_GROUP_NAMES, "1.n");
    assert_non_null(groups);
    OK(rs_catalog_extra(catalog, RS_GROUPS, groups));
    return catalog;
}

/* Both layers become one tensor, "w" and "n"; and "late" is the second layer's alone. */
static void rename_all(const rs_catalog *from, rs_catalog *to)
{
    static const char *const names[] = {"w", "n", "late", "no"}; /* one is told by its address */
    static const struct {
        int name;
        const char *old;
    } rows[] = {{0, "0.w"}, {0, "1.w"}, {1, "0.n"}, {1, "1.n"}, {2, "1.n"}, {3, "2.x"}};
    rs_regroup r;
    OK(rs_regroup_begin(&r, from));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        OK(rs_regroup_is(&r, names[rows[i].name], rows[i].old));
    OK(rs_regroup_end(&r, to));
    rs_regroup_fini(&r);
}

static void expect(const rs_catalog *catalog, const char *wanted)
{
    json_t *found = json_object_get(catalog->extras, RS_GROUPS);
    json_t *all = json_loads(wanted, 0, NULL);
    assert_non_null(all);
    if (!json_equal(found, all))
        fail_msg("%s", json_dumps(found, JSON_SORT_KEYS));
    json_decref(all);
}

static void test_alike(void **state)
{
    (void)state;
    rs_catalog *from = make(1.0), *to = make(1.0);
    rename_all(from, to);
    expect(
        to, "[{\"lr\":1.0,\"param_names\":[\"w\"]},{\"lr\":2.0,\"param_names\":[\"n\",\"late\"]}]");
    assert_int_equal(to->warnings.count, 0);
    rs_catalog_destroy(from);
    rs_catalog_destroy(to);
}

static void test_unlike(void **state)
{
    (void)state;
    rs_catalog *from = make(1.5), *to = make(1.5);
    rename_all(from, to);
    expect(
        to, "[[{\"lr\":1.0},{\"lr\":2.0}],[{\"lr\":1.5},{\"lr\":2.0,\"param_names\":[\"late\"]}]]");
    assert_int_equal(to->warnings.count, 1);
    assert_non_null(strstr(to->warnings.items[0], "2 tensors are made of parameters of several"));
    rs_catalog_destroy(from);
    rs_catalog_destroy(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alike),
        cmocka_unit_test(test_unlike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
