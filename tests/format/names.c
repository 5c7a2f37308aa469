/*
 * Every DeepSpeed fixture of one model under other names and back: layers stacked, matrices turned.
 * What was cut by ZeRO, rounded from a master, held in copies or in the pickle itself must have the
 * same bytes as before, and each turned element must be the one that it was.
 */
#include "truth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/dialect.h"

static int checked;

/* "layers.0.REST": the rest; NULL for other names. */
static const char *of_layer(const char *name)
{
    return strncmp(name, "layers.0.", 9) == 0 ? name + 9 : NULL;
}

/* The space with one tensor for all layers, its matrices turned, and the dialect that says so. */
static void describe(const rs_checkpoint *checkpoint, rs_space **space, rs_dialect **dialect)
{
    json_t *rules = json_array();
    int64_t layers = 0;
    assert_int_equal(rs_space_create(space), RS_OK);
    for (int64_t l = 0; l < 4; l++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%d.ln1.weight", (int)l);
        layers += rs_checkpoint_find(checkpoint, name, "param") >= 0;
    }
    for (size_t i = 0; i < rs_checkpoint_count(checkpoint); i++) {
        const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, i);
        const char *rest = of_layer(entry->name);
        char name[128], pattern[128];
        rs_tensor tensor = {.name = entry->name, .ndim = entry->ndim};
        if (strcmp(entry->role, "param") != 0 || entry->alias_of != NULL ||
            (rest == NULL && strncmp(entry->name, "layers.", 7) == 0))
            continue;
        memcpy(tensor.shape, entry->shape, sizeof tensor.shape);
        snprintf(name, sizeof name, "stack.%s", rest != NULL ? rest : "");
        snprintf(pattern, sizeof pattern, "layers.{0}.%s", rest != NULL ? rest : "");
        if (rest != NULL) {
            tensor.name = name;
            tensor.ndim++;
            tensor.shape[0] = layers;
            for (int d = 0; d < entry->ndim; d++)
                tensor.shape[1 + d] = entry->shape[entry->ndim - 1 - d];
            json_array_append_new(rules, json_pack("{s:s,s:s,s:b}", "name", pattern, "of", name,
                                             "transposed", entry->ndim > 1));
        }
        assert_int_equal(rs_space_add_tensor(*space, &tensor, NULL), RS_OK);
    }
    json_array_append_new(rules, json_pack("{s:s,s:s}", "name", "*", "of", "*"));
    json_t *root = json_pack("{s:s,s:o}", "dialect", "turned", "tensors", rules);
    char *text = json_dumps(root, 0);
    if (rs_dialect_parse(text, strlen(text), "turned", dialect) != RS_OK)
        fail_msg("%s", rs_error_message());
    free(text);
    json_decref(root);
}

static void *read_all(const rs_checkpoint *checkpoint, size_t index)
{
    const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, index);
    size_t bytes = (size_t)rs_checkpoint_entry_bytes(entry);
    rs_box whole = rs_box_whole(entry->ndim, entry->shape);
    void *data = calloc(bytes + 1, 1);
    assert_int_equal(rs_checkpoint_read(checkpoint, index, &whole, data, bytes), RS_OK);
    return data;
}

/* A layer's matrix against the turned one in the stack. */
static void check_turned(const rs_checkpoint *plain, size_t index, const rs_checkpoint *stacked)
{
    const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(plain, index);
    char name[128];
    int layer, end = 0;
    if (entry->ndim != 2 || sscanf(entry->name, "layers.%d.%n", &layer, &end) != 1 || end == 0)
        return;
    snprintf(name, sizeof name, "stack.%s", entry->name + end);
    int64_t other = rs_checkpoint_find(stacked, name, entry->role);
    assert_true(other >= 0);
    const rs_checkpoint_entry *stack = rs_checkpoint_entry_at(stacked, (size_t)other);
    int64_t rows = entry->shape[0], columns = entry->shape[1];
    assert_true(stack->ndim == 3 && stack->shape[1] == columns && stack->shape[2] == rows);
    assert_int_equal(stack->stored, entry->stored);
    size_t size = rs_dtype_size(entry->dtype);
    char *a = read_all(plain, index), *b = read_all(stacked, (size_t)other);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            assert_memory_equal(a + (size_t)(i * columns + j) * size,
                b + (size_t)((layer * columns + j) * rows + i) * size, size);
    free(a);
    free(b);
    checked++;
}

static void check_fixture(const char *folder, const char *name, const json_t *truth)
{
    rs_checkpoint *plain, *stacked, *back;
    rs_space *space;
    rs_dialect *dialect;
    if (strstr(name, "moe") != NULL || strncmp(truth_text(truth, "expect"), "ref", 3) == 0)
        return;
    assert_int_equal(rs_checkpoint_open(in_folder(folder, "checkpoint"), NULL, &plain), RS_OK);
    describe(plain, &space, &dialect);
    rs_rename_options in = {.from = dialect, .space = space};
    rs_rename_options out = {.from = dialect, .to = dialect, .space = space};
    if (rs_checkpoint_rename(plain, &in, &stacked) != RS_OK ||
        rs_checkpoint_rename(plain, &out, &back) != RS_OK)
        fail_msg("%s: %s", name, rs_error_message());
    for (size_t i = 0; i < rs_checkpoint_count(plain); i++) {
        const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(plain, i);
        char own[RS_CHECKPOINT_HASH], other[RS_CHECKPOINT_HASH];
        if (entry->alias_of != NULL)
            continue;
        int64_t there = rs_checkpoint_find(back, entry->name, entry->role);
        if (there < 0)
            fail_msg("%s: %s of %s is gone", name, entry->role, entry->name);
        const rs_checkpoint_entry *twin = rs_checkpoint_entry_at(back, (size_t)there);
        assert_int_equal(twin->stored, entry->stored);
        assert_true((twin->derived_from != NULL) == (entry->derived_from != NULL));
        assert_int_equal(rs_checkpoint_hash(plain, i, own), RS_OK);
        assert_int_equal(rs_checkpoint_hash(back, (size_t)there, other), RS_OK);
        assert_string_equal(own, other);
        check_turned(plain, i, stacked);
    }
    assert_int_equal(rs_checkpoint_check(back), RS_OK);
    rs_checkpoint_close(back);
    rs_checkpoint_close(stacked);
    rs_checkpoint_close(plain);
    rs_dialect_destroy(dialect);
    rs_space_destroy(space);
}

static void test_fixtures(void **state)
{
    (void)state;
    for_fixtures("deepspeed", check_fixture);
    printf("%d turned matrices\n", checked);
    assert_true(checked > 600);
}

int main(void)
{
    fixture_family("deepspeed");
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fixtures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
