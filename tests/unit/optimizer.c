/* Which roles the tensors of a job have, by its optimizer and by what is frozen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "reshard/layout.h"
#include "reshard/optimizer.h"

static rs_space *space_of(rs_dtype dtype, const char *optimizer, const char *frozen)
{
    rs_model model;
    rs_space *space = NULL;
    assert_int_equal(rs_model_load("llama-tiny", &model), RS_OK);
    if (rs_training_space(&model, dtype, &(rs_training){optimizer, frozen}, &space) != RS_OK)
        fail_msg("%s, frozen \"%s\": %s", optimizer, frozen, rs_error_message());
    return space;
}

/* "param,exp_avg": the roles of a tensor. */
static const char *roles_of(const rs_space *space, const char *tensor)
{
    static char text[128];
    int t = rs_space_find_tensor(space, tensor);
    text[0] = '\0';
    assert_true(t >= 0);
    for (int r = 0; r < rs_space_role_count(space); r++) {
        size_t used = strlen(text);
        if (rs_space_dtype(space, t, r) != RS_DTYPE_NONE)
            snprintf(text + used, sizeof text - used, "%s%s", used > 0 ? "," : "",
                rs_space_role(space, r)->name);
    }
    return text;
}

static void tensors_have_the_roles_of_their_optimizer(void **state)
{
    static const struct {
        rs_dtype dtype;
        const char *optimizer, *frozen, *tensor, *roles;
    } rows[] = {
        {RS_DTYPE_F32, "", NULL, "embed.weight", "param,exp_avg,exp_avg_sq"},
        {RS_DTYPE_BF16, "adamw", "", "norm.weight", "param,master,exp_avg,exp_avg_sq"},
        {RS_DTYPE_F32, "sgd", NULL, "layers.attn.q.weight", "param,momentum"},
        {RS_DTYPE_BF16, "sgd", NULL, "embed.weight", "param,master,momentum"},
        {RS_DTYPE_F32, "muon", NULL, "layers.attn.q.weight", "param,momentum"},
        {RS_DTYPE_F32, "muon", NULL, "layers.attn_norm.weight", "param,exp_avg,exp_avg_sq"},
        {RS_DTYPE_F32, "muon", NULL, "embed.weight", "param,exp_avg,exp_avg_sq"},
        {RS_DTYPE_BF16, "adamw", "embed.*", "embed.weight", "param"},
        {RS_DTYPE_BF16, "adamw", "embed.*", "norm.weight", "param,master,exp_avg,exp_avg_sq"},
        {RS_DTYPE_BF16, "muon", "norm.weight,layers.attn.*", "layers.attn.k.weight", "param"},
        {RS_DTYPE_F32, "muon", "norm.weight,layers.attn.*", "layers.mlp.up.weight",
            "param,momentum"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rs_space *space = space_of(rows[i].dtype, rows[i].optimizer, rows[i].frozen);
        assert_string_equal(roles_of(space, rows[i].tensor), rows[i].roles);
        rs_space_destroy(space);
    }
}

static void what_cannot_be_is_refused(void **state)
{
    static const struct {
        const char *optimizer, *frozen, *words;
    } rows[] = {
        {"lion", NULL, "wanted adamw, sgd or muon"},
        {"adamw", "norm.weight,nrom.*", "\"nrom.*\" fits none; there are: embed.weight, "},
        {"adamw", "*", "nothing is trained"},
        {"adamw", "norm.weight,", "\"\" fits none"},
    };
    (void)state;
    rs_model model;
    assert_int_equal(rs_model_load("llama-tiny", &model), RS_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rs_space *space = NULL;
        const rs_training training = {rows[i].optimizer, rows[i].frozen};
        assert_int_equal(
            rs_training_space(&model, RS_DTYPE_F32, &training, &space), RS_ERR_ARGUMENT);
        if (strstr(rs_error_message(), rows[i].words) == NULL)
            fail_msg("\"%s\" is not in: %s", rows[i].words, rs_error_message());
    }
}

/* Whoever updates an element must have all its roles. */
static void cuts_that_part_roles_are_refused(void **state)
{
    static const struct {
        rs_dtype dtype;
        const char *optimizer, *frozen, *layout, *fits;
    } rows[] = {
        {RS_DTYPE_F32, "adamw", "embed.weight", "dp=2,zero=2", NULL},
        {RS_DTYPE_F32, "adamw", "embed.weight", "dp=2,zero=3", "dp=2,zero=3,zero_cut=param"},
        {RS_DTYPE_BF16, "adamw", "embed.weight", "dp=2,zero=2", NULL},
        {RS_DTYPE_BF16, "adamw", "embed.weight", "dp=2,zero=3,zero_cut=dim0", NULL},
        {RS_DTYPE_F32, "muon", NULL, "dp=2", NULL},
        {RS_DTYPE_F32, "muon", NULL, "tp=2,zero=3", NULL},
        {RS_DTYPE_F32, "muon", NULL, "dp=2,zero=1", "dp=2,zero=1,zero_cut=param"},
        {RS_DTYPE_BF16, "sgd", NULL, "dp=2,zero=3", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rs_layout layout;
        rs_space *space = space_of(rows[i].dtype, rows[i].optimizer, rows[i].frozen);
        assert_int_equal(rs_layout_parse(rows[i].layout, &layout), RS_OK);
        rs_status status = rs_layout_check_trainable(&layout, space);
        if (status != (rows[i].fits != NULL ? RS_ERR_ARGUMENT : RS_OK))
            fail_msg("%s with %s: %s", rows[i].layout, rows[i].optimizer, rs_error_message());
        if (rows[i].fits != NULL && strstr(rs_error_message(), rows[i].fits) == NULL)
            fail_msg("\"%s\" is not in: %s", rows[i].fits, rs_error_message());
        rs_space_destroy(space);
    }
}

static void all_are_listed(void **state)
{
    const char *const *names = rs_optimizer_names();
    rs_model model;
    rs_space *space = NULL;
    (void)state;
    assert_null(rs_optimizer_find("adam"));
    assert_int_equal(rs_model_load("llama-tiny", &model), RS_OK);
    assert_int_equal(rs_training_space(&model, RS_DTYPE_F32, &(rs_training){"adam", NULL}, &space),
        RS_ERR_ARGUMENT);
    for (size_t i = 0; i < 3; i++) {
        assert_non_null(names[i]);
        assert_string_equal(rs_optimizer_find(names[i])->name, names[i]);
        assert_non_null(strstr(rs_error_message(), names[i]));
    }
    assert_null(names[3]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_are_listed),
        cmocka_unit_test(tensors_have_the_roles_of_their_optimizer),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(cuts_that_part_roles_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
