/*
 * A checkpoint's space knows names and shapes; a layout cuts by what axes mean (heads, rows of the
 * feed-forward layer, vocabulary, layers). That is a model's to say: one that is given, or the one
 * that canonical names and facts are of.
 *
 * Where neither knows a weight, only layouts that divide flat ranges (dp, cp, zero) can be made of
 * it; to cut it by its shape would be to guess.
 */
#include "ckpt/axes.h"

#include <string.h>

#include "base/error.h"
#include "reshard/model.h"

static rs_status add_roles(const rs_space *plain, rs_space *out)
{
    for (int r = 0; r < rs_space_role_count(plain); r++)
        RS_TRY(rs_space_add_role(out, rs_space_role(plain, r), NULL));
    return RS_OK;
}

/* Adds tensor `t` of the plain space, with the axes of `like` (NULL: whole). */
static rs_status add_tensor(const rs_space *plain, int t, const rs_tensor *like, rs_space *out)
{
    rs_tensor tensor = *rs_space_tensor(plain, t);
    int id;
    if (like != NULL) {
        char wanted[256], found[256];
        rs_box a = rs_box_whole(like->ndim, like->shape);
        rs_box b = rs_box_whole(tensor.ndim, tensor.shape);
        if (!rs_box_equal(&a, &b))
            return rs_error_set(RS_ERR_MISMATCH, "\"%s\": the model wants %s, it has %s",
                tensor.name, rs_box_format(&a, wanted, sizeof wanted),
                rs_box_format(&b, found, sizeof found));
        tensor = *like;
    }
    RS_TRY(rs_space_add_tensor(out, &tensor, &id));
    for (int r = 0; r < rs_space_role_count(plain); r++)
        RS_TRY(rs_space_set_dtype(out, id, r, rs_space_dtype(plain, t, r)));
    return RS_OK;
}

static bool is_weight(const rs_space *plain, int t)
{
    int param = rs_space_find_role(plain, "param");
    return param >= 0 && rs_space_dtype(plain, t, param) != RS_DTYPE_NONE;
}

static rs_status add_tensors(
    const rs_space *plain, const rs_space *model, const rs_layout *layout, rs_space *out)
{
    for (int m = 0; model != NULL && m < rs_space_tensor_count(model); m++) {
        const rs_tensor *like = rs_space_tensor(model, m);
        int t = rs_space_find_tensor(plain, like->name);
        if (t >= 0)
            RS_TRY(add_tensor(plain, t, like, out));
    }
    bool cuts = layout->tp > 1 || layout->pp > 1 || layout->vpp > 1 || layout->ep > 1;
    for (int t = 0; t < rs_space_tensor_count(plain); t++) {
        const char *name = rs_space_tensor(plain, t)->name;
        if (rs_space_find_tensor(out, name) >= 0)
            continue;
        char text[RS_LAYOUT_TEXT];
        if (cuts && is_weight(plain, t))
            return rs_error_set(RS_ERR_UNSUPPORTED,
                "\"%s\": nothing says how %s cuts it: it is none of the trainer's names, whose "
                "axes are known (--dialect reshard brings it under these)",
                name, rs_layout_format(layout, text));
        RS_TRY(add_tensor(plain, t, NULL, out));
    }
    for (int f = 0; f < rs_space_fact_count(plain); f++) {
        const char *key = rs_space_fact_key(plain, f);
        RS_TRY(rs_space_set_fact(out, key, rs_space_fact(plain, key)));
    }
    return RS_OK;
}

rs_status rs_axes_give(
    const rs_space *plain, const rs_space *model, const rs_layout *layout, rs_space **out)
{
    rs_space *space = NULL, *own = NULL;
    rs_status status;
    if (model == NULL && rs_space_find_tensor(plain, RS_CANONICAL_EMBED) >= 0 &&
        rs_space_find_tensor(plain, RS_CANONICAL_NORM) >= 0) {
        rs_model told;
        RS_TRY(rs_model_of_space(plain, &told));
        RS_TRY(rs_model_space(&told, RS_DTYPE_F32, &own));
        model = own;
    }
    RS_TRY_GOTO(rs_space_create(&space), out);
    RS_TRY_GOTO(add_roles(plain, space), out);
    RS_TRY_GOTO(add_tensors(plain, model, layout, space), out);
    *out = space;
    space = NULL;
out:
    rs_space_destroy(space);
    rs_space_destroy(own);
    return status;
}
