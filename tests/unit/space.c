/* The space: what it takes, what it refuses, and what it answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/memory.h"
#include "reshard/space.h"

static rs_space *empty_space(void)
{
    rs_space *space;
    assert_int_equal(rs_space_create(&space), RS_OK);
    return space;
}

static void test_answers(void **state)
{
    (void)state;
    rs_space *space = empty_space();
    assert_int_equal(rs_space_layer_count(space), 0);
    assert_int_equal(rs_space_elements(space), 0);
    char role_name[] = "param";
    char name[] = "layers.q";
    rs_role roles[] = {
        {role_name, RS_DTYPE_BF16, RS_ROLE_MODEL}, {"master", RS_DTYPE_F32, RS_ROLE_OPTIMIZER}};
    rs_tensor tensors[] = {{.name = name,
                               .ndim = 3,
                               .shape = {3, 8, 5},
                               .axis = {RS_AXIS_LAYER, RS_AXIS_Q_HEAD, RS_AXIS_WHOLE},
                               .unit = {0, 2, 0}},
        {.name = "short", .ndim = 1, .shape = {2}, .axis = {RS_AXIS_LAYER}},
        {.name = "scalar", .ndim = 0, .decay = true},
        {.name = "empty", .ndim = 2, .shape = {0, INT64_MAX}}};
    int id = -1;
    for (int r = 0; r < 2; r++) {
        assert_int_equal(rs_space_add_role(space, &roles[r], &id), RS_OK);
        assert_int_equal(id, r);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(rs_space_add_tensor(space, &tensors[i], &id), RS_OK);
        assert_int_equal(id, i);
    }
    /* Names were copied. */
    memset(name, 'x', sizeof name - 1);
    memset(role_name, 'x', sizeof role_name - 1);
    assert_int_equal(rs_space_tensor_count(space), 4);
    assert_int_equal(rs_space_role_count(space), 2);
    assert_int_equal(rs_space_find_tensor(space, "layers.q"), 0);
    assert_int_equal(rs_space_find_tensor(space, "scalar"), 2);
    assert_int_equal(rs_space_find_tensor(space, "empty"), 3);
    assert_int_equal(rs_space_find_tensor(space, "layers"), -1);
    assert_int_equal(rs_space_find_role(space, "param"), 0);
    assert_int_equal(rs_space_find_role(space, "grad"), -1);
    assert_string_equal(rs_space_tensor(space, 0)->name, "layers.q");
    assert_int_equal(rs_space_tensor(space, 0)->unit[1], 2);
    assert_true(rs_space_tensor(space, 2)->decay);
    assert_int_equal(rs_space_role(space, 1)->role_class, RS_ROLE_OPTIMIZER);
    assert_int_equal(rs_space_layer_count(space), 3);
    assert_int_equal(rs_space_elements(space), 120 + 2 + 1);
    assert_int_equal(rs_space_bytes(space, 0), 2 * 123);
    assert_int_equal(rs_space_bytes(space, 1), 4 * 123);
    assert_int_equal(rs_space_bytes(space, -1), 6 * 123);
    rs_space_destroy(space);
    rs_space_destroy(NULL);
}

/* Types of single tensors: they count in the bytes, in any order of additions. */
static void test_own_dtypes(void **state)
{
    (void)state;
    rs_space *space = empty_space();
    rs_role roles[] = {{"param", RS_DTYPE_BF16, RS_ROLE_MODEL},
        {"master", RS_DTYPE_F32, RS_ROLE_OPTIMIZER}, {"count", RS_DTYPE_I64, RS_ROLE_MODEL}};
    rs_tensor weight = {.name = "weight", .ndim = 2, .shape = {3, 5}};
    rs_tensor bias = {.name = "bias", .ndim = 1, .shape = {7}};
    rs_tensor empty = {.name = "empty", .ndim = 2, .shape = {INT64_MAX, 0}};
    assert_int_equal(rs_space_add_role(space, &roles[0], NULL), RS_OK);
    assert_int_equal(rs_space_add_tensor(space, &weight, NULL), RS_OK);
    assert_int_equal(rs_space_add_tensor(space, &bias, NULL), RS_OK);
    assert_int_equal(rs_space_add_tensor(space, &empty, NULL), RS_OK);
    assert_int_equal(rs_space_set_dtype(space, 1, 0, RS_DTYPE_F32), RS_OK);
    assert_int_equal(rs_space_add_role(space, &roles[1], NULL), RS_OK);
    assert_int_equal(rs_space_add_role(space, &roles[2], NULL), RS_OK);
    assert_int_equal(rs_space_set_dtype(space, 1, 1, RS_DTYPE_NONE), RS_OK);
    assert_int_equal(rs_space_set_dtype(space, 0, 2, RS_DTYPE_NONE), RS_OK);
    assert_int_equal(rs_space_dtype(space, 0, 0), RS_DTYPE_BF16);
    assert_int_equal(rs_space_dtype(space, 1, 0), RS_DTYPE_F32);
    assert_int_equal(rs_space_dtype(space, 0, 1), RS_DTYPE_F32);
    assert_int_equal(rs_space_dtype(space, 1, 1), RS_DTYPE_NONE);
    assert_int_equal(rs_space_dtype(space, 1, 2), RS_DTYPE_I64);
    assert_int_equal(rs_space_elements(space), 15 + 7);
    assert_int_equal(rs_space_bytes(space, 0), 15 * 2 + 7 * 4);
    assert_int_equal(rs_space_bytes(space, 1), 15 * 4);
    assert_int_equal(rs_space_bytes(space, 2), 7 * 8);
    assert_int_equal(rs_space_bytes(space, -1), 15 * 2 + 7 * 4 + 15 * 4 + 7 * 8);
    /* Back to what the role says. */
    assert_int_equal(rs_space_set_dtype(space, 1, 1, RS_DTYPE_F32), RS_OK);
    assert_int_equal(rs_space_bytes(space, 1), 22 * 4);
    assert_int_equal(rs_space_set_dtype(space, 3, 0, RS_DTYPE_F32), RS_ERR_ARGUMENT);
    assert_int_equal(rs_space_set_dtype(space, -1, 0, RS_DTYPE_F32), RS_ERR_ARGUMENT);
    assert_int_equal(rs_space_set_dtype(space, 0, 3, RS_DTYPE_F32), RS_ERR_ARGUMENT);
    assert_int_equal(rs_space_set_dtype(space, 0, -1, RS_DTYPE_F32), RS_ERR_ARGUMENT);
    assert_int_equal(rs_space_set_dtype(space, 0, 0, (rs_dtype)99), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "weight, role param: 99"));
    rs_space_destroy(space);
}

/* Layers that differ are tensors that begin with different layers. */
static void test_layers_and_experts(void **state)
{
    (void)state;
    rs_space *space = empty_space();
    rs_tensor dense = {.name = "dense", .ndim = 2, .shape = {3, 5}, .axis = {RS_AXIS_LAYER}};
    rs_tensor experts = {.name = "experts",
        .ndim = 3,
        .shape = {58, 7, 5},
        .axis = {RS_AXIS_LAYER, RS_AXIS_EXPERT, RS_AXIS_FFN},
        .layer_first = 3};
    rs_tensor nothing = {.name = "nothing", .ndim = 1, .axis = {RS_AXIS_LAYER}, .layer_first = 100};
    assert_int_equal(rs_space_add_tensor(space, &dense, NULL), RS_OK);
    assert_int_equal(rs_space_layer_count(space), 3);
    assert_int_equal(rs_space_expert_count(space), 0);
    assert_int_equal(rs_space_add_tensor(space, &experts, NULL), RS_OK);
    assert_int_equal(rs_space_layer_count(space), 61);
    assert_int_equal(rs_space_expert_count(space), 7);
    assert_int_equal(rs_space_add_tensor(space, &nothing, NULL), RS_OK);
    assert_int_equal(rs_space_layer_count(space), 61);
    assert_int_equal(rs_space_tensor(space, 1)->layer_first, 3);
    rs_space_destroy(space);
}

/* Layers that do not follow each other are listed, in the space's own copy. */
static void test_listed_layers(void **state)
{
    (void)state;
    rs_space *space = empty_space();
    int64_t layers[] = {1, 4, 5};
    rs_tensor some = {.name = "some",
        .ndim = 2,
        .shape = {3, 5},
        .axis = {RS_AXIS_LAYER},
        .layer_first = 1,
        .layers = layers};
    assert_int_equal(rs_space_add_tensor(space, &some, NULL), RS_OK);
    some.name = "row";
    some.layer_first = layers[0] = 3;
    assert_int_equal(rs_space_add_tensor(space, &some, NULL), RS_OK);
    const rs_tensor *t = rs_space_tensor(space, 0);
    static const int64_t before[] = {0, 0, 1, 1, 1, 2, 3, 3};
    for (int64_t layer = 0; layer < 8; layer++)
        assert_int_equal(rs_tensor_layers_before(t, layer), before[layer]);
    assert_true(rs_tensor_layer(t, 0) == 1 && rs_tensor_layer(t, 2) == 5);
    assert_int_equal(rs_tensor_layer_end(t), 6);
    assert_int_equal(rs_space_layer_count(space), 6);
    t = rs_space_tensor(space, 1);
    assert_true(t->layers == NULL && rs_tensor_layer(t, 2) == 5 && rs_tensor_layer_end(t) == 6);
    assert_true(rs_tensor_layers_before(t, 0) == 0 && rs_tensor_layers_before(t, 9) == 3);
    rs_space_destroy(space);
}

static void refuse(rs_space *space, const rs_tensor *tensor, rs_status wanted, const char *word)
{
    int before = rs_space_tensor_count(space);
    int64_t elements = rs_space_elements(space);
    assert_int_equal(rs_space_add_tensor(space, tensor, NULL), wanted);
    if (strstr(rs_error_message(), word) == NULL)
        fail_msg("\"%s\" is not in: %s", word, rs_error_message());
    assert_int_equal(rs_space_tensor_count(space), before);
    assert_int_equal(rs_space_elements(space), elements);
}

static void test_refusals(void **state)
{
    (void)state;
    rs_space *space = empty_space();
    rs_tensor good = {.name = "t", .ndim = 2, .shape = {4, 6}};
    rs_tensor bad = good;
    assert_int_equal(rs_space_add_tensor(space, &good, NULL), RS_OK);
    refuse(space, &bad, RS_ERR_ARGUMENT, "t is in the space already");
    bad.name = NULL;
    refuse(space, &bad, RS_ERR_ARGUMENT, "name");
    bad = good;
    bad.name = "u";
    bad.ndim = RS_MAX_DIMS + 1;
    refuse(space, &bad, RS_ERR_ARGUMENT, "9 dimensions");
    bad.ndim = -1;
    refuse(space, &bad, RS_ERR_ARGUMENT, "-1 dimensions");
    bad.ndim = 2;
    bad.shape[1] = -6;
    refuse(space, &bad, RS_ERR_ARGUMENT, "dimension 1");
    bad.shape[1] = 6;
    bad.unit[1] = 4;
    refuse(space, &bad, RS_ERR_ARGUMENT, "no multiple of its unit 4");
    bad.unit[1] = -1;
    refuse(space, &bad, RS_ERR_ARGUMENT, "unit -1");
    bad.unit[1] = 0;
    bad.axis[1] = RS_AXIS_LAYER;
    refuse(space, &bad, RS_ERR_ARGUMENT, "layer axis");
    bad.axis[1] = RS_AXIS_KV_HEAD;
    bad.kv_group = -1;
    refuse(space, &bad, RS_ERR_ARGUMENT, "query heads");
    bad.kv_group = INT64_MAX / 4;
    refuse(space, &bad, RS_ERR_OVERFLOW, "query heads");
    bad.kv_group = 0;
    bad.axis[1] = RS_AXIS_FFN;
    static const int64_t falling[] = {3, 3}, late[] = {4, 6};
    bad.layer_first = 3;
    refuse(space, &bad, RS_ERR_ARGUMENT, "begin with layer 3");
    bad.axis[0] = RS_AXIS_LAYER;
    bad.layer_first = -1;
    refuse(space, &bad, RS_ERR_ARGUMENT, "begin with layer -1");
    bad.layer_first = INT64_MAX;
    refuse(space, &bad, RS_ERR_ARGUMENT, "begin with layer");
    bad.layer_first = 3;
    bad.shape[0] = 2;
    bad.layers = late;
    refuse(space, &bad, RS_ERR_ARGUMENT, "do not begin with layer 3");
    bad.layers = falling;
    refuse(space, &bad, RS_ERR_ARGUMENT, "layer 3 is listed behind layer 3");
    bad.layers = NULL;
    bad.layer_first = 0;
    bad.axis[0] = bad.axis[1] = RS_AXIS_EXPERT;
    refuse(space, &bad, RS_ERR_ARGUMENT, "more than one expert axis");
    bad.axis[0] = bad.axis[1] = RS_AXIS_WHOLE;
    bad.shape[0] = INT64_MAX / 2;
    refuse(space, &bad, RS_ERR_OVERFLOW, "u");
    /* One that fits alone but whose bytes, with all roles of the widest type, do not. */
    bad.shape[0] = 1;
    bad.shape[1] = INT64_MAX / 64;
    refuse(space, &bad, RS_ERR_OVERFLOW, "space's bytes");
    rs_space_destroy(space);
}

static void test_role_refusals(void **state)
{
    (void)state;
    rs_space *space = empty_space();
    rs_role role = {"", RS_DTYPE_F32, RS_ROLE_MODEL};
    assert_int_equal(rs_space_add_role(space, &role, NULL), RS_ERR_ARGUMENT);
    role.name = NULL;
    assert_int_equal(rs_space_add_role(space, &role, NULL), RS_ERR_ARGUMENT);
    role = (rs_role){"r", RS_DTYPE_NONE, RS_ROLE_MODEL};
    assert_int_equal(rs_space_add_role(space, &role, NULL), RS_ERR_ARGUMENT);
    char name[8];
    for (int r = 0; r < RS_MAX_ROLES; r++) {
        snprintf(name, sizeof name, "r%d", r);
        role = (rs_role){name, RS_DTYPE_F32, RS_ROLE_MODEL};
        assert_int_equal(rs_space_add_role(space, &role, NULL), RS_OK);
    }
    assert_int_equal(rs_space_add_role(space, &role, NULL), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "already"));
    role.name = "one more";
    assert_int_equal(rs_space_add_role(space, &role, NULL), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "16 roles"));
    rs_space_destroy(space);
}

/* Names arrive in any order and are all found. */
static void test_many_names(void **state)
{
    (void)state;
    enum { COUNT = 5000 };
    rs_space *space = empty_space();
    char name[32];
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "tensor.%d", i * 1237 % COUNT);
        rs_tensor tensor = {.name = name, .ndim = 1, .shape = {1}};
        assert_int_equal(rs_space_add_tensor(space, &tensor, NULL), RS_OK);
    }
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "tensor.%d", i * 1237 % COUNT);
        assert_int_equal(rs_space_find_tensor(space, name), i);
    }
    assert_int_equal(rs_space_find_tensor(space, "tensor.5000"), -1);
    rs_space_destroy(space);
}

/* The N-th allocation fails, N = 1, 2, ...: the space stays as it was. */
static void test_allocation_failures(void **state)
{
    (void)state;
    size_t n = 0;
    bool done = false;
    while (!done) {
        rs_space *space = NULL;
        rs_role role = {"param", RS_DTYPE_F32, RS_ROLE_MODEL};
        rs_tensor tensor = {.name = "t", .ndim = 1, .shape = {3}};
        rs_alloc_fail_at(++n);
        rs_status status = rs_space_create(&space);
        if (status == RS_OK)
            status = rs_space_add_role(space, &role, NULL);
        if (status == RS_OK)
            status = rs_space_add_tensor(space, &tensor, NULL);
        rs_alloc_fail_at(0);
        done = status == RS_OK;
        assert_true(done || status == RS_ERR_NO_MEMORY);
        assert_true(n < 20);
        if (!done && space != NULL)
            assert_int_equal(rs_space_find_tensor(space, "t"), -1);
        rs_space_destroy(space);
    }
    assert_true(n > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_own_dtypes),
        cmocka_unit_test(test_layers_and_experts),
        cmocka_unit_test(test_listed_layers),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_role_refusals),
        cmocka_unit_test(test_many_names),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
