/* Memory that is left, from files as kernels write them: both versions of control groups, limits on
 * any level, and what is absent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "move/room.h"

static char root[64];
static char proc[80];
static char groups[80];

/* Writes a file below the root, making its folders. */
static void put(const char *path, const char *text)
{
    char full[300];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        assert_true(mkdir(full, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

static int setup(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/rs-room-XXXXXX");
    if (mkdtemp(root) == NULL)
        return -1;
    snprintf(proc, sizeof proc, "%s/proc", root);
    snprintf(groups, sizeof groups, "%s/cgroup", root);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static int64_t room(void)
{
    return rs_room_memory(proc, groups);
}

static void nothing_limits_nothing(void **state)
{
    (void)state;
    assert_int_equal(room(), INT64_MAX);
    put("proc/meminfo", "garbage\n");
    put("proc/self/cgroup", "");
    assert_int_equal(room(), INT64_MAX);
}

static void the_machine_limits(void **state)
{
    (void)state;
    put("proc/meminfo", "MemTotal:  9000 kB\nMemFree: 10 kB\nMemAvailable:    5000 kB\n"
                        "SwapTotal: 70 kB\nSwapFree:   60 kB\n");
    assert_int_equal(room(), 5060 * 1024);
}

static void second_version(void **state)
{
    (void)state;
    put("proc/meminfo", "MemAvailable: 100000000 kB\n");
    put("proc/self/cgroup", "0::/job/rank\n");
    put("cgroup/job/rank/memory.max", "max\n");
    put("cgroup/job/memory.max", "1000000\n");
    put("cgroup/job/memory.current", "700000\n");
    assert_int_equal(room(), 300000);
    put("cgroup/job/memory.stat", "anon 5\nfile 9\ninactive_file 100000\n");
    assert_int_equal(room(), 400000);
    put("cgroup/job/rank/memory.max", "50000\n"); /* the inner one is tighter */
    put("cgroup/job/rank/memory.current", "20000\n");
    assert_int_equal(room(), 30000);
    put("cgroup/job/rank/memory.current", "60000\n"); /* over its limit already */
    assert_int_equal(room(), 0);
    put("cgroup/job/rank/memory.max", "max\n");
    put("cgroup/memory.max", "800000\n"); /* and a container's root */
    put("cgroup/memory.current", "790000\n");
    assert_int_equal(room(), 10000);
}

static void first_version(void **state)
{
    (void)state;
    put("proc/self/cgroup", "9:cpu:/x\n4:memory:/slurm/job_7\n");
    put("cgroup/memory/slurm/job_7/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(room(), 100000000ll * 1024);
    put("cgroup/memory/slurm/memory.limit_in_bytes", "4000\n");
    put("cgroup/memory/slurm/memory.usage_in_bytes", "3500\n");
    put("cgroup/memory/slurm/memory.stat", "inactive_file 77\ntotal_inactive_file 200\n");
    assert_int_equal(room(), 700);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_limits_nothing),
        cmocka_unit_test(the_machine_limits),
        cmocka_unit_test(second_version),
        cmocka_unit_test(first_version),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
