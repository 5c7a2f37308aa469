/* Dialect files, on a space with layers, experts and heads: what is listed tiles the space, and
 * what a name is lies inside the tensors. */
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "reshard/dialect.h"
#include "reshard/model.h"

static const rs_space *space(void)
{
    static rs_space *made;
    rs_model model;
    if (made == NULL && (rs_model_load("deepseek-tiny", &model) != RS_OK ||
                            rs_model_space(&model, RS_DTYPE_F32, &made) != RS_OK))
        abort();
    return made;
}

/* The parts lie inside their tensors and fill the foreign one. */
static int64_t check(const rs_foreign *foreign)
{
    int64_t parts = 0, whole = 1;
    for (int d = 0; d < foreign->ndim; d++)
        whole *= foreign->shape[d];
    for (size_t p = 0; p < foreign->count; p++) {
        const rs_foreign_part *part = &foreign->parts[p];
        const rs_tensor *tensor = rs_space_tensor(space(), part->tensor);
        if (rs_box_check(&part->box, tensor->ndim, tensor->shape) != RS_OK)
            abort();
        for (int d = 0; d < foreign->ndim; d++)
            if (part->along[d] < 0 || part->along[d] >= tensor->ndim || part->offset[d] < 0 ||
                part->offset[d] + part->box.extent[part->along[d]] > foreign->shape[d])
                abort();
        parts += rs_box_volume(&part->box);
    }
    if (parts != whole)
        abort();
    return whole;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"", "embed.weight", "module.model.layers.1.mlp.gate.weight",
        "h.2.qkv", "model.layers.3.mlp.experts.15.up_proj.weight", "0", "a.b.1"};
    rs_dialect *dialect;
    rs_foreign_list list = {0};
    if (rs_dialect_parse((const char *)data, size, "input", &dialect) != RS_OK)
        return 0;
    if (rs_dialect_list(dialect, space(), &list) == RS_OK) {
        int64_t elements = 0;
        for (size_t i = 0; i < list.count; i++)
            elements += check(&list.items[i]);
        if (elements != rs_space_elements(space()))
            abort();
    }
    for (size_t i = 0; i < list.count + sizeof names / sizeof *names; i++) {
        rs_foreign found;
        const char *name = i < list.count ? list.items[i].name : names[i - list.count];
        if (rs_dialect_lookup(dialect, space(), name, &found) == RS_OK) {
            check(&found);
            rs_foreign_fini(&found);
        } else if (i < list.count) {
            abort();
        }
        rs_dialect_ignores(dialect, name);
    }
    rs_foreign_list_fini(&list);
    rs_dialect_destroy(dialect);
    return 0;
}
