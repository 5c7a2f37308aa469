/* The file of hosts: what launchers write is read alike, what is wrong is named, ranks are dealt.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "elastic/hosts.h"

static void three_styles(void **state)
{
    (void)state;
    rs_hosts h;
    assert_int_equal(rs_hosts_parse("# all\n"
                                    "node1 slots=4 max_slots=8\n"
                                    "\n"
                                    "node2:3   # the second\n"
                                    "\tnode3\r\n"
                                    "node3.cluster\n"
                                    "node4.a slots=2\n"
                                    "node4.b",
                         "f", &h),
        RS_OK);
    assert_int_equal(h.count, 5);
    assert_string_equal(h.items[0].name, "node1");
    assert_int_equal(h.items[0].slots, 4);
    assert_int_equal(h.items[1].slots, 3);
    assert_string_equal(h.items[2].name, "node3");
    assert_int_equal(h.items[2].slots, 2);
    assert_string_equal(h.items[4].name, "node4.b");
    assert_int_equal(rs_hosts_slots(&h), 12);
}

static void wrong(const char *text, const char *why)
{
    rs_hosts h = {.count = 77};
    assert_int_equal(rs_hosts_parse(text, "the-file", &h), RS_ERR_MALFORMED);
    if (strstr(rs_error_message(), why) == NULL)
        fail_msg("'%s' is not in: %s", why, rs_error_message());
    assert_int_equal(h.count, 77);
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    wrong("", "the-file: it names no host");
    wrong("# none\n\n", "it names no host");
    wrong("a\nb slots=-1\n", "line 2");
    wrong("a slots=x", "line 1");
    wrong("a:", "line 1");
    wrong("a slots=99999999999999", "line 1");
    wrong("a cores=4", "cores=4");
    wrong("-oProxyCommand=x", "-oProxyCommand");
    wrong("-v", "found '-v'");
    wrong("a;rm", "a;rm");
    wrong("$(x)", "$(x)");
    char many[RS_HOSTS * 8 + 64] = "";
    for (int h = 0; h <= RS_HOSTS; h++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "h%d\n", h);
    wrong(many, "more than");
}

static void this_host_is_known(void **state)
{
    (void)state;
    char own[RS_HOST_NAME] = "";
    assert_int_equal(gethostname(own, sizeof own - 1), 0);
    assert_true(rs_host_is_here(own));
    assert_true(rs_host_is_here("localhost"));
    assert_false(rs_host_is_here("no-such-host-of-ours"));
}

static void files(void **state)
{
    (void)state;
    rs_hosts h;
    char path[40];
    assert_int_equal(rs_hosts_read("/proc/self/no-such-file", &h), RS_ERR_NOT_FOUND);
    int fd = memfd_create("hosts", MFD_CLOEXEC); /* in no folder: nothing is left of it */
    assert_true(fd >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    assert_int_equal(write(fd, "a slots=2\nb\n", 12), 12);
    assert_int_equal(rs_hosts_read(path, &h), RS_OK);
    assert_int_equal(rs_hosts_slots(&h), 3);
    assert_int_equal(write(fd, "\0c\n", 3), 3);
    assert_int_equal(rs_hosts_read(path, &h), RS_ERR_MALFORMED);
    close(fd);
}

static void ranks_are_dealt_in_order(void **state)
{
    (void)state;
    rs_hosts h;
    int at[8];
    assert_int_equal(rs_hosts_parse("a slots=2\nb slots=3\nc\n", "f", &h), RS_OK);
    const int plain[] = {0, 0, 1, 1, 1, 2};
    assert_int_equal(rs_hosts_place(&h, 4, NULL, at), RS_OK);
    assert_memory_equal(at, plain, 4 * sizeof *at);
    assert_int_equal(rs_hosts_place(&h, 6, NULL, at), RS_OK);
    assert_memory_equal(at, plain, sizeof plain);
    assert_int_equal(rs_hosts_place(&h, 7, NULL, at), RS_ERR_BUDGET);
}

/* Ranks stay where their memory is, as far as there is room; the others fill what is left. */
static void ranks_stay_where_they_were(void **state)
{
    (void)state;
    rs_hosts h;
    int at[8];
    assert_int_equal(rs_hosts_parse("a slots=2\nb slots=3\nc\nd slots=0", "f", &h), RS_OK);
    const int near[] = {1, 1, -1, 2, 2, 0}, wanted[] = {1, 1, 0, 2, 1, 0};
    assert_int_equal(rs_hosts_place(&h, 6, near, at), RS_OK);
    assert_memory_equal(at, wanted, sizeof wanted);
    const int gone[] = {3, 3, 0, 0}, moved[] = {1, 1, 0, 0};
    assert_int_equal(rs_hosts_place(&h, 4, gone, at), RS_OK);
    assert_memory_equal(at, moved, sizeof moved);
}

static void names(void **state)
{
    (void)state;
    assert_true(rs_host_is("node1", "node1"));
    assert_true(rs_host_is("node1", "node1.cluster"));
    assert_true(rs_host_is("node1.cluster", "node1"));
    assert_false(rs_host_is("node1", "node10"));
    assert_false(rs_host_is("node1.a", "node1.b"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_styles),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(this_host_is_known),
        cmocka_unit_test(files),
        cmocka_unit_test(ranks_are_dealt_in_order),
        cmocka_unit_test(ranks_stay_where_they_were),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
