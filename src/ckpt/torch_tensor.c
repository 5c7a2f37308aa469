/*
 * Tensors in files of torch.save: the records of torch._utils' rebuild functions, read as data.
 *
 * A tensor is a view: first element, sizes and strides in a storage. Nothing of that is trusted:
 * the last element that the view reaches must lie inside the storage, with every sum and product
 * checked. Parameters and tensor subclasses are looked through; requires_grad, hooks and Python
 * attributes are not state and are left out.
 *
 * A view may repeat elements (stride 0), so that a small file can describe a tensor of any size.
 * Above EXPANDED_MOST bytes such a view is refused: nothing that trains has one.
 *
 * Specification: docs/formats/torch.md.
 */
#include <inttypes.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "ckpt/torch.h"
#include "ckpt/torch_storage.h"

#define UNWRAP_MOST 16
#define EXPANDED_MOST ((int64_t)1 << 30)

static const rs_storage_class classes[] = {
    {"DoubleStorage", RS_DTYPE_F64, 8, false},
    {"FloatStorage", RS_DTYPE_F32, 4, false},
    {"HalfStorage", RS_DTYPE_F16, 2, false},
    {"BFloat16Storage", RS_DTYPE_BF16, 2, false},
    {"LongStorage", RS_DTYPE_I64, 8, false},
    {"IntStorage", RS_DTYPE_I32, 4, false},
    {"ShortStorage", RS_DTYPE_I16, 2, false},
    {"CharStorage", RS_DTYPE_I8, 1, false},
    {"ByteStorage", RS_DTYPE_U8, 1, false},
    {"BoolStorage", RS_DTYPE_BOOL, 1, false},
    {"ComplexDoubleStorage", RS_DTYPE_C128, 16, false},
    {"ComplexFloatStorage", RS_DTYPE_C64, 8, false},
    {"QInt8Storage", RS_DTYPE_I8, 1, true},
    {"QUInt8Storage", RS_DTYPE_U8, 1, true},
    {"QInt32Storage", RS_DTYPE_I32, 4, true},
    {"UntypedStorage", RS_DTYPE_NONE, 1, false},
    {"_UntypedStorage", RS_DTYPE_NONE, 1, false},
};

const rs_storage_class *rs_storage_class_of(const rs_global *global)
{
    if (strcmp(global->module, "torch") != 0 && strcmp(global->module, "torch.cuda") != 0 &&
        strcmp(global->module, "torch.storage") != 0)
        return NULL;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strcmp(classes[i].name, global->name) == 0)
            return &classes[i];
    return NULL;
}

const rs_storage_class *rs_storage_class_for(rs_dtype dtype)
{
    bool known =
        rs_dtype_size(dtype) > 0 && dtype != RS_DTYPE_F6_E2M3X4 && dtype != RS_DTYPE_F6_E3M2X4;
    for (size_t i = 0; i < sizeof classes / sizeof *classes && known; i++)
        if (classes[i].dtype == dtype || classes[i].dtype == RS_DTYPE_NONE)
            return &classes[i];
    return NULL;
}

rs_dtype rs_torch_dtype_of(const rs_value *value)
{
    static const struct {
        const char *name;
        const char *canonical;
    } aliases[] = {
        {"float", "float32"},
        {"double", "float64"},
        {"half", "float16"},
        {"short", "int16"},
        {"int", "int32"},
        {"long", "int64"},
        {"chalf", "complex32"},
        {"cfloat", "complex64"},
        {"cdouble", "complex128"},
    };
    if (!rs_value_is(value, RS_VALUE_GLOBAL) || strcmp(value->as.global->module, "torch") != 0)
        return RS_DTYPE_NONE;
    const char *name = value->as.global->name;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(aliases[i].name, name) == 0)
            name = aliases[i].canonical;
    rs_dtype dtype = rs_dtype_parse(name);
    return dtype != RS_DTYPE_NONE && strcmp(rs_dtype_name(dtype), name) == 0 ? dtype
                                                                             : RS_DTYPE_NONE;
}

/* A call as function and arguments; a tensor subclass holds the real one in its arguments. */
typedef struct rebuild {
    const rs_global *callee;
    const rs_value *args;
    int64_t at;
} rebuild;

static const rs_value *arg(const rebuild *r, uint32_t i)
{
    return i < r->args->count ? r->args->as.items[i] : NULL;
}

static bool utils(const rebuild *r, const char *name)
{
    return rs_global_is(r->callee, "torch._utils", name);
}

/* Looks through what wraps a tensor; false if `value` is no record of a call. */
static bool unwrap(const rs_value *value, rebuild *r)
{
    for (int i = 0; i < UNWRAP_MOST; i++) {
        if (!rs_value_is(value, RS_VALUE_CALL) || value->as.call->args == NULL)
            return false;
        *r = (rebuild){value->as.call->callee, value->as.call->args, value->as.call->at};
        bool from_type = rs_global_is(r->callee, "torch._tensor", "_rebuild_from_type_v2") ||
                         rs_global_is(r->callee, "torch._tensor", "_rebuild_from_type") ||
                         rs_global_is(r->callee, "torch.tensor", "_rebuild_from_type");
        if (from_type) {
            if (!rs_value_is(arg(r, 0), RS_VALUE_GLOBAL) || !rs_value_is(arg(r, 2), RS_VALUE_TUPLE))
                return false;
            r->callee = arg(r, 0)->as.global;
            r->args = arg(r, 2);
        }
        if (!utils(r, "_rebuild_parameter") && !utils(r, "_rebuild_parameter_with_state") &&
            !utils(r, "_rebuild_device_tensor_from_cpu_tensor") &&
            !rs_global_is(r->callee, "torch.nn.parameter", "Parameter") &&
            !rs_global_is(r->callee, "torch.nn.parameter", "Buffer"))
            return true;
        value = arg(r, 0);
    }
    return false;
}

static bool is_dense(const rebuild *r)
{
    return utils(r, "_rebuild_tensor") || utils(r, "_rebuild_tensor_v2") ||
           utils(r, "_rebuild_tensor_v3") || utils(r, "_rebuild_qtensor");
}

rs_torch_kind rs_torch_kind_of(const rs_value *value)
{
    rebuild r;
    if (!unwrap(value, &r))
        return RS_TORCH_NO_TENSOR;
    if (is_dense(&r))
        return RS_TORCH_DENSE;
    if (utils(&r, "_rebuild_sparse_tensor") || utils(&r, "_rebuild_sparse_csr_tensor"))
        return RS_TORCH_SPARSE;
    if (utils(&r, "_rebuild_meta_tensor_no_storage") || utils(&r, "_rebuild_wrapper_subclass"))
        return RS_TORCH_EMPTY;
    return strcmp(r.callee->module, "torch._utils") == 0 ? RS_TORCH_OTHER : RS_TORCH_NO_TENSOR;
}

rs_status rs_torch_sizes(const rs_value *value, int *ndim, int64_t *sizes)
{
    if (!rs_value_is_sequence(value))
        return RS_ERR_MALFORMED;
    if (value->count > RS_MAX_DIMS)
        return RS_ERR_UNSUPPORTED;
    for (uint32_t i = 0; i < value->count; i++)
        if (value->as.items[i]->kind != RS_VALUE_INT ||
            (sizes[i] = value->as.items[i]->as.integer) < 0)
            return RS_ERR_MALFORMED;
    *ndim = (int)value->count;
    return RS_OK;
}

#define FAIL(torch, r, ...)                                                                        \
    do {                                                                                           \
        (void)rs_files_malformed((torch)->files, (torch)->file, (r)->at, __VA_ARGS__);             \
        return RS_ERR_MALFORMED;                                                                   \
    } while (0)

static rs_status read_sizes(const rs_torch *torch, const rebuild *r, uint32_t at, const char *what,
    int *ndim, int64_t *sizes)
{
    rs_status status = rs_torch_sizes(arg(r, at), ndim, sizes);
    if (status == RS_ERR_UNSUPPORTED)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "%s: byte %" PRId64 ": a tensor of %u dimensions; at most %d are read",
            rs_files_path(torch->files, torch->file), r->at, arg(r, at)->count, RS_MAX_DIMS);
    if (status != RS_OK)
        FAIL(torch, r, "the %s of a tensor are no sequence of numbers that are not negative", what);
    return RS_OK;
}

/* Where the view ends, in elements, and how many it shows. */
static rs_status check_reach(const rs_torch *torch, const rebuild *r, const rs_torch_tensor *t)
{
    int64_t size = (int64_t)rs_dtype_size(t->dtype);
    int64_t elements = 1, bytes = 0, last = t->first;
    bool empty = false, repeats = false;
    for (int d = 0; d < t->ndim; d++)
        empty = empty || t->shape[d] == 0;
    for (int d = 0; d < t->ndim && !empty; d++) {
        int64_t reach;
        repeats = repeats || (t->stride[d] == 0 && t->shape[d] > 1);
        if (!rs_mul_fits(elements, t->shape[d], &elements) ||
            !rs_mul_fits(t->shape[d] - 1, t->stride[d], &reach) || !rs_add_fits(last, reach, &last))
            FAIL(torch, r, "the sizes of a tensor overflow 64 bits");
    }
    if (empty)
        return RS_OK;
    int64_t end;
    if (!rs_mul_fits(elements, size, &bytes) || !rs_add_fits(last, 1, &end) ||
        !rs_mul_fits(end, size, &end))
        FAIL(torch, r, "the sizes of a tensor overflow 64 bits");
    if (end > t->storage->bytes)
        FAIL(torch, r, "a tensor reaches to byte %" PRId64 " of storage %s, which has %" PRId64,
            end, t->storage->key, t->storage->bytes);
    if (bytes > t->storage->bytes && bytes > EXPANDED_MOST)
        return rs_error_set(RS_ERR_BUDGET,
            "%s: byte %" PRId64 ": a tensor of %" PRId64 " bytes shows a storage of %" PRId64
            " again and again%s",
            rs_files_path(torch->files, torch->file), r->at, bytes, t->storage->bytes,
            repeats ? " (stride 0)" : "");
    return RS_OK;
}

/* {'conj': True} or {'neg': True}: the storage holds the values before that. */
static rs_status read_bits(
    const rs_torch *torch, const rebuild *r, const rs_value *bits, rs_torch_tensor *t)
{
    if (bits == NULL || bits->kind == RS_VALUE_NONE)
        return RS_OK;
    if (bits->kind != RS_VALUE_DICT)
        FAIL(torch, r, "the metadata of a tensor is no dict");
    for (uint32_t i = 0; i < bits->count; i++) {
        const char *key = rs_value_string(bits->as.dict->pairs[2 * (size_t)i]);
        const rs_value *on = bits->as.dict->pairs[2 * (size_t)i + 1];
        if (rs_value_is(on, RS_VALUE_BOOL) && !on->as.boolean)
            continue;
        if (key != NULL && strcmp(key, "conj") == 0)
            t->conjugated = true;
        else if (key != NULL && strcmp(key, "neg") == 0)
            t->negated = true;
        else
            return rs_error_set(RS_ERR_UNSUPPORTED,
                "%s: byte %" PRId64 ": a tensor with the metadata \"%s\"",
                rs_files_path(torch->files, torch->file), r->at, key != NULL ? key : "?");
    }
    bool complex =
        t->dtype == RS_DTYPE_C32 || t->dtype == RS_DTYPE_C64 || t->dtype == RS_DTYPE_C128;
    bool real = t->dtype == RS_DTYPE_F64 || t->dtype == RS_DTYPE_F32 || t->dtype == RS_DTYPE_F16 ||
                t->dtype == RS_DTYPE_BF16;
    if ((t->conjugated && !complex) || (t->negated && !complex && !real))
        FAIL(
            torch, r, "a tensor of %s is marked as conjugated or negated", rs_dtype_name(t->dtype));
    return RS_OK;
}

/* The storage behind a persistent value, and where a view of it (older container) begins. */
static rs_status storage_of(const rs_torch *torch, const rebuild *r, const rs_value *value,
    const rs_torch_storage **out, const rs_storage_class **class, int64_t *shift)
{
    if (!rs_value_is(value, RS_VALUE_PERSISTENT))
        FAIL(torch, r, "a tensor without a storage");
    const rs_value *id = value->as.id;
    const char *key = id->count > 2 ? rs_value_string(id->as.items[2]) : NULL;
    int number = key != NULL ? rs_names_find(&torch->storage_names, key) : -1;
    if (number < 0)
        FAIL(torch, r, "a tensor whose storage is none");
    *out = &torch->storages[number];
    *class = rs_storage_class_of(id->as.items[1]->as.global);
    *shift = 0;
    const rs_value *view = torch->legacy && id->count > 5 ? id->as.items[5] : NULL;
    if (view == NULL || view->kind == RS_VALUE_NONE)
        return RS_OK;
    if (!rs_value_is_sequence(view) || view->count != 3 ||
        !rs_value_is(view->as.items[1], RS_VALUE_INT) || view->as.items[1]->as.integer < 0)
        FAIL(torch, r, "a view of a storage that does not say where");
    *shift = view->as.items[1]->as.integer;
    return RS_OK;
}

rs_status rs_torch_tensor_of(const rs_torch *torch, const rs_value *value, rs_torch_tensor *out)
{
    rebuild r = {.at = value->kind == RS_VALUE_CALL ? value->as.call->at : 0};
    rs_torch_tensor t = {0};
    const rs_storage_class *class = NULL;
    int64_t shift = 0;
    int strides = 0;
    if (!unwrap(value, &r) || !is_dense(&r))
        FAIL(torch, &r, "a dense tensor is wanted, this is something else");
    RS_TRY(storage_of(torch, &r, arg(&r, 0), &t.storage, &class, &shift));
    t.dtype = class->dtype;
    t.quantized = class->quantized;
    bool third = utils(&r, "_rebuild_tensor_v3");
    if (third)
        t.dtype = rs_torch_dtype_of(arg(&r, 6));
    else if (t.dtype == RS_DTYPE_NONE)
        t.dtype = RS_DTYPE_U8;
    if (t.dtype == RS_DTYPE_NONE)
        return rs_error_set(RS_ERR_UNSUPPORTED, "%s: byte %" PRId64 ": a tensor of unknown dtype",
            rs_files_path(torch->files, torch->file), r.at);
    if (!rs_value_is(arg(&r, 1), RS_VALUE_INT) || arg(&r, 1)->as.integer < 0)
        FAIL(torch, &r, "a tensor whose first element is no number, or negative");
    if (!rs_add_fits(arg(&r, 1)->as.integer, shift, &t.first))
        FAIL(torch, &r, "the first element of a tensor overflows 64 bits");
    RS_TRY(read_sizes(torch, &r, 2, "sizes", &t.ndim, t.shape));
    RS_TRY(read_sizes(torch, &r, 3, "strides", &strides, t.stride));
    if (strides != t.ndim)
        FAIL(torch, &r, "a tensor with %d sizes and %d strides", t.ndim, strides);
    RS_TRY(check_reach(torch, &r, &t));
    if (!utils(&r, "_rebuild_qtensor"))
        RS_TRY(read_bits(torch, &r, arg(&r, third ? 7 : 6), &t));
    *out = t;
    return RS_OK;
}

/* _rebuild_sparse_tensor(layout, data): data differs with the layout. */
int rs_torch_sparse_parts(const rs_value *value, const char *names[4], const rs_value *parts[4])
{
    static const char *const of_coo[] = {"indices", "values"};
    static const char *const of_rows[] = {"compressed_indices", "plain_indices", "values"};
    rebuild r;
    if (!unwrap(value, &r) || !rs_value_is_sequence(arg(&r, 1)))
        return 0;
    const rs_value *data = arg(&r, 1);
    uint32_t count = 0;
    while (count < data->count && count < 3 &&
           rs_torch_kind_of(data->as.items[count]) == RS_TORCH_DENSE)
        count++;
    for (uint32_t i = 0; i < count; i++) {
        names[i] = count == 2 ? of_coo[i] : of_rows[i];
        parts[i] = data->as.items[i];
    }
    return (int)count;
}

int64_t rs_torch_elements(const rs_torch_tensor *tensor)
{
    int64_t elements = 1;
    for (int d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] == 0)
            return 0;
    for (int d = 0; d < tensor->ndim; d++)
        elements *= tensor->shape[d];
    return elements;
}

bool rs_torch_is_contiguous(const rs_torch_tensor *tensor)
{
    int64_t step = 1;
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        if (tensor->shape[d] > 1 && tensor->stride[d] != step)
            return rs_torch_elements(tensor) == 0;
        step *= rs_max64(tensor->shape[d], 1);
    }
    return true;
}

rs_status rs_torch_scalar(const rs_torch *torch, const rs_value *value, double *out)
{
    rs_torch_tensor t;
    unsigned char bytes[16] = {0};
    RS_TRY(rs_torch_tensor_of(torch, value, &t));
    size_t size = rs_dtype_size(t.dtype);
    if (rs_torch_elements(&t) != 1 || torch->big_endian)
        return rs_error_set(RS_ERR_UNSUPPORTED, "%s: a number is wanted, this is a tensor",
            rs_files_path(torch->files, torch->file));
    RS_TRY(rs_files_read(
        torch->files, t.storage->file, t.storage->offset + t.first * (int64_t)size, bytes, size));
    float single;
    int32_t word;
    switch (t.dtype) {
    case RS_DTYPE_F32:
        memcpy(&single, bytes, sizeof single);
        *out = single;
        return RS_OK;
    case RS_DTYPE_F64:
        memcpy(out, bytes, sizeof *out);
        return RS_OK;
    case RS_DTYPE_I64:
        *out = (double)(int64_t)rs_le64(bytes);
        return RS_OK;
    case RS_DTYPE_I32:
        memcpy(&word, bytes, sizeof word);
        *out = word;
        return RS_OK;
    default:
        return rs_error_set(RS_ERR_UNSUPPORTED, "%s: a number of dtype %s",
            rs_files_path(torch->files, torch->file), rs_dtype_name(t.dtype));
    }
}
