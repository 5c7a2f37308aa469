/*
 * Laying out a safetensors file: which tensor goes where, and the header that says so.
 *
 * Wide types come first, then names in byte order, as the reference writer has it: every tensor is
 * then aligned to its own element size, since the data begins at a multiple of 8. The layout
 * depends on nothing but the tensors and notes, so that the same content gives the same file.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/safetensors.h"

#define HEADER_MOST 100000000

typedef struct tag_row {
    rs_dtype dtype;
    const char *tag;
    int64_t together; /* logical elements in one of ours */
} tag_row;

/* In the order in which their tensors stand in a file. */
static const tag_row tags[] = {
    {RS_DTYPE_U64, "U64", 1},
    {RS_DTYPE_I64, "I64", 1},
    {RS_DTYPE_F64, "F64", 1},
    {RS_DTYPE_C64, "C64", 1},
    {RS_DTYPE_F32, "F32", 1},
    {RS_DTYPE_U32, "U32", 1},
    {RS_DTYPE_I32, "I32", 1},
    {RS_DTYPE_BF16, "BF16", 1},
    {RS_DTYPE_F16, "F16", 1},
    {RS_DTYPE_U16, "U16", 1},
    {RS_DTYPE_I16, "I16", 1},
    {RS_DTYPE_F8_E5M2FNUZ, "F8_E5M2FNUZ", 1},
    {RS_DTYPE_F8_E4M3FNUZ, "F8_E4M3FNUZ", 1},
    {RS_DTYPE_F8_E8M0, "F8_E8M0", 1},
    {RS_DTYPE_F8_E4M3, "F8_E4M3", 1},
    {RS_DTYPE_F8_E5M2, "F8_E5M2", 1},
    {RS_DTYPE_I8, "I8", 1},
    {RS_DTYPE_U8, "U8", 1},
    {RS_DTYPE_F6_E3M2X4, "F6_E3M2", 4},
    {RS_DTYPE_F6_E2M3X4, "F6_E2M3", 4},
    {RS_DTYPE_F4X2, "F4", 2},
    {RS_DTYPE_BOOL, "BOOL", 1},
};

static size_t rank_of(rs_dtype dtype)
{
    size_t i = 0;
    while (i < sizeof tags / sizeof *tags && tags[i].dtype != dtype)
        i++;
    return i;
}

static int by_rank(const void *a, const void *b)
{
    const rs_safetensors_tensor *x = a, *y = b;
    size_t p = rank_of(x->dtype), q = rank_of(y->dtype);
    return p != q ? (p < q ? -1 : 1) : strcmp(x->name, y->name);
}

static rs_status append_quoted(rs_text *text, const char *name)
{
    json_t *string = json_string(name);
    char *quoted = string != NULL ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    json_decref(string);
    if (quoted == NULL)
        return rs_error_set(RS_ERR_ARGUMENT, "\"%s\" is no UTF-8", name);
    rs_text_append(text, "%s", quoted);
    free(quoted);
    return text->status;
}

static rs_status place(rs_safetensors_tensor *t, int64_t *end)
{
    int64_t bytes = (int64_t)rs_dtype_size(t->dtype);
    if (rank_of(t->dtype) == sizeof tags / sizeof *tags)
        return rs_error_set(RS_ERR_UNSUPPORTED, "\"%s\": safetensors has no type for %s", t->name,
            rs_dtype_name(t->dtype));
    bool empty = false;
    for (int d = 0; d < t->ndim; d++)
        empty = empty || t->shape[d] == 0;
    for (int d = 0; d < t->ndim && !empty; d++)
        if (!rs_mul_fits(bytes, t->shape[d], &bytes))
            return rs_error_set(RS_ERR_OVERFLOW, "the sizes of \"%s\" overflow 64 bits", t->name);
    t->bytes = empty ? 0 : bytes;
    t->offset = *end;
    if (!rs_add_fits(*end, t->bytes, end))
        return rs_error_set(RS_ERR_OVERFLOW, "the file would overflow 64 bits");
    return RS_OK;
}

static rs_status append_tensor(rs_text *text, const rs_safetensors_tensor *t)
{
    const tag_row *tag = &tags[rank_of(t->dtype)];
    RS_TRY(append_quoted(text, t->name));
    rs_text_append(text, ":{\"dtype\":\"%s\",\"shape\":[", tag->tag);
    for (int d = 0; d < t->ndim; d++)
        rs_text_append(text, "%s%" PRId64, d > 0 ? "," : "",
            d == t->ndim - 1 ? t->shape[d] * tag->together : t->shape[d]);
    rs_text_append(
        text, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", t->offset, t->offset + t->bytes);
    return text->status;
}

static rs_status write_header(const rs_safetensors_tensor *tensors, size_t count,
    const rs_safetensors_note *notes, size_t note_count, rs_text *text)
{
    rs_text_append(text, "{");
    if (note_count > 0) {
        rs_text_append(text, "\"__metadata__\":{");
        for (size_t i = 0; i < note_count; i++) {
            rs_text_append(text, "%s", i > 0 ? "," : "");
            RS_TRY(append_quoted(text, notes[i].key));
            rs_text_append(text, ":");
            RS_TRY(append_quoted(text, notes[i].value));
        }
        rs_text_append(text, "}%s", count > 0 ? "," : "");
    }
    for (size_t i = 0; i < count; i++) {
        rs_text_append(text, "%s", i > 0 ? "," : "");
        RS_TRY(append_tensor(text, &tensors[i]));
        if (text->length > HEADER_MOST)
            return rs_error_set(RS_ERR_BUDGET,
                "the header would have more than %d bytes; spread the tensors over files",
                HEADER_MOST);
    }
    rs_text_append(text, "}");
    while (text->status == RS_OK && text->length % 8 != 0)
        rs_text_append(text, " ");
    return text->status;
}

static rs_status check_names(const rs_safetensors_tensor *tensors, size_t count)
{
    rs_names names = {0};
    rs_status status = RS_OK;
    for (size_t i = 0; i < count && status == RS_OK; i++) {
        int found;
        status = rs_names_add(&names, tensors[i].name, 0, &found);
        if (status == RS_OK && (found >= 0 || strcmp(tensors[i].name, "__metadata__") == 0))
            status = rs_error_set(RS_ERR_ARGUMENT,
                found >= 0 ? "two tensors are named \"%s\"" : "a tensor cannot be named \"%s\"",
                tensors[i].name);
    }
    rs_names_fini(&names);
    return status;
}

rs_status rs_safetensors_layout(rs_safetensors_tensor *tensors, size_t count,
    const rs_safetensors_note *notes, size_t note_count, char **head, size_t *head_bytes,
    int64_t *file_bytes)
{
    rs_text text = {0};
    rs_status status = RS_OK;
    int64_t end = 0;
    RS_TRY(check_names(tensors, count));
    if (count > 0)
        qsort(tensors, count, sizeof *tensors, by_rank);
    for (size_t i = 0; i < count; i++)
        RS_TRY(place(&tensors[i], &end));
    RS_TRY_GOTO(write_header(tensors, count, notes, note_count, &text), out);
    int64_t data = (int64_t)text.length + 8;
    char *bytes = rs_calloc((size_t)data, 1);
    if (bytes == NULL)
        RS_TRY_GOTO(rs_error_memory((size_t)data), out);
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)((uint64_t)text.length >> (8 * i));
    memcpy(bytes + 8, text.data, text.length);
    for (size_t i = 0; i < count; i++)
        tensors[i].offset += data;
    *head = bytes;
    *head_bytes = (size_t)data;
    *file_bytes = data + end;
out:
    rs_text_fini(&text);
    return status;
}

rs_status rs_safetensors_output(rs_output *output, const rs_logical *const *tensors,
    const char *const *names, size_t count, const rs_safetensors_note *notes, size_t note_count,
    unsigned sums, size_t *parts)
{
    size_t head_bytes = 0;
    char *head = NULL;
    int64_t file_bytes;
    rs_names index = {0};
    rs_status status = RS_OK;
    rs_safetensors_tensor *rows = rs_calloc(count, sizeof *rows);
    if (rows == NULL)
        return rs_error_memory(count * sizeof *rows);
    for (size_t i = 0; i < count; i++) {
        int found;
        rows[i] = (rs_safetensors_tensor){
            .name = names[i], .dtype = tensors[i]->dtype, .ndim = tensors[i]->ndim};
        memcpy(rows[i].shape, tensors[i]->shape, sizeof rows[i].shape);
        RS_TRY_GOTO(rs_names_add(&index, names[i], (int)i, &found), out);
    }
    RS_TRY_GOTO(
        rs_safetensors_layout(rows, count, notes, note_count, &head, &head_bytes, &file_bytes),
        out);
    RS_TRY_GOTO(rs_output_bytes(output, head, head_bytes, NULL), out);
    for (size_t i = 0; i < count; i++) {
        size_t number = (size_t)rs_names_find(&index, rows[i].name), part;
        RS_TRY_GOTO(rs_output_tensor(output, tensors[number], sums, &part), out);
        if (parts != NULL)
            parts[number] = part;
    }
out:
    rs_names_fini(&index);
    free(head);
    free(rows);
    return status;
}
