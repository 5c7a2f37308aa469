/*
 * Layouts as text, and their arithmetic: who owns which layers, heads, rows and flat ranges.
 *
 * Everything here is a closed formula of one rank's coordinates; mesh.c makes a placement of it.
 *
 * Rules (docs/layouts.md has worked examples):
 * 1. A rank's coordinates are the digits of its number, the fastest axis of `order` first.
 * 2. Layers over stages: sizes differ by at most one, larger first.
 * 3. Heads, feed-forward rows and vocabulary rows over tp: ceil(n / tp) units each, in order, fewer
 * at the end, so that some ranks may be left with nothing.
 * 4. Key/value heads: exactly those that a rank's query heads use; neighbours may share one.
 * 5. ZeRO: shard d of dp is elements [d n, (d + 1) n) of the local concatenation, n = ceil(total /
 * dp) rounded up to RS_FLAT_ALIGN.
 *
 * Text errors name the key, what was given and what would fit. Keys that belong to the language of
 * layouts but not yet to this version are known, and taken where they say what holds anyway.
 */
#include "reshard/layout.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "layout/mesh.h"

static const char *const axis_names[RS_MESH_AXES] = {"tp", "dp", "pp"};
static const rs_mesh_axis default_order[RS_MESH_AXES] = {RS_MESH_TP, RS_MESH_DP, RS_MESH_PP};

/* ---- text ---- */

/* What a text has said so far; sizes are 0 where it has not. */
typedef struct parsed {
    rs_layout layout;
    int cp, ep, etp, vpp, shard;
    bool has_zero, has_order, has_sp, has_zero_cut;
} parsed;

#define KEY_LENGTH 16
#define VALUE_LENGTH 64

static rs_status parse_number(const char *key, const char *value, int lowest, int *out)
{
    char *end;
    long number = strtol(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || *end != '\0' || number < lowest || number > INT_MAX)
        return rs_error_set(RS_ERR_ARGUMENT, "layout: %s=%s: a whole number from %d on is wanted",
            key, value, lowest);
    *out = (int)number;
    return RS_OK;
}

static rs_status twice(const char *key)
{
    return rs_error_set(RS_ERR_ARGUMENT, "layout: %s is given twice", key);
}

static rs_status bad_order(const char *value)
{
    return rs_error_set(RS_ERR_ARGUMENT,
        "layout: order=%s: tp, dp and pp are wanted once each, joined by '-', fastest first "
        "(cp and ep may stand among them), as in order=tp-cp-ep-dp-pp",
        value);
}

static rs_status parse_order(const char *value, rs_layout *layout)
{
    /* The mesh axes first, then those whose size is always 1. */
    enum { NAMES = RS_MESH_AXES + 2 };
    const char *const names[NAMES] = {axis_names[0], axis_names[1], axis_names[2], "cp", "ep"};
    bool seen[NAMES] = {false};
    int count = 0;
    for (const char *at = value;; at++) {
        size_t length = strcspn(at, "-");
        int axis = 0;
        while (axis < NAMES && (length != 2 || strncmp(at, names[axis], 2) != 0))
            axis++;
        if (axis == NAMES || seen[axis])
            return bad_order(value);
        seen[axis] = true;
        if (axis < RS_MESH_AXES)
            layout->order[count++] = (rs_mesh_axis)axis;
        at += length;
        if (*at == '\0')
            break;
    }
    return count == RS_MESH_AXES ? RS_OK : bad_order(value);
}

static rs_status parse_sizes(const char *key, const char *value, parsed *out, bool *known)
{
    const struct {
        const char *key;
        int *size;
    } sizes[] = {{"tp", &out->layout.tp}, {"pp", &out->layout.pp}, {"dp", &out->layout.dp},
        {"cp", &out->cp}, {"ep", &out->ep}, {"etp", &out->etp}, {"vpp", &out->vpp},
        {"shard", &out->shard}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (strcmp(key, sizes[i].key) != 0)
            continue;
        *known = true;
        if (*sizes[i].size != 0)
            return twice(key);
        return parse_number(key, value, 1, sizes[i].size);
    }
    *known = false;
    return RS_OK;
}

static rs_status unsupported(const char *key, const char *value, const char *instead)
{
    return rs_error_set(RS_ERR_UNSUPPORTED,
        "layout: %s=%s: this version knows the key but cannot do it; %s would do", key, value,
        instead);
}

static rs_status parse_sp(const char *value)
{
    if (strcmp(value, "off") == 0)
        return RS_OK;
    if (strcmp(value, "on") == 0)
        return unsupported("sp", value, "sp=off");
    if (value[0] >= '0' && value[0] <= '9')
        return rs_error_set(RS_ERR_ARGUMENT,
            "layout: sp=%s: sp is on or off; use cp=%s to cut the "
            "sequence over ranks",
            value, value);
    return rs_error_set(RS_ERR_ARGUMENT, "layout: sp=%s: on or off is wanted", value);
}

static rs_status parse_zero_cut(const char *value)
{
    if (strcmp(value, "concat") == 0)
        return RS_OK;
    if (strcmp(value, "param") == 0 || strcmp(value, "dim0") == 0)
        return unsupported("zero_cut", value, "zero_cut=concat");
    return rs_error_set(
        RS_ERR_ARGUMENT, "layout: zero_cut=%s: concat, param or dim0 is wanted", value);
}

static rs_status parse_pair(const char *key, const char *value, parsed *out)
{
    bool known;
    RS_TRY(parse_sizes(key, value, out, &known));
    if (known)
        return RS_OK;
    bool *seen = strcmp(key, "zero") == 0       ? &out->has_zero
                 : strcmp(key, "order") == 0    ? &out->has_order
                 : strcmp(key, "sp") == 0       ? &out->has_sp
                 : strcmp(key, "zero_cut") == 0 ? &out->has_zero_cut
                                                : NULL;
    if (strcmp(key, "stages") == 0)
        return unsupported(key, value, "pp=N, which deals the layers evenly,");
    if (seen == NULL)
        return rs_error_set(RS_ERR_ARGUMENT,
            "layout: unknown key %s (with value %s); the keys are tp, pp, dp, zero, order, and "
            "cp, ep, etp, vpp, sp, stages, shard, zero_cut",
            key, value);
    if (*seen)
        return twice(key);
    *seen = true;
    if (seen == &out->has_order)
        return parse_order(value, &out->layout);
    if (seen == &out->has_sp)
        return parse_sp(value);
    if (seen == &out->has_zero_cut)
        return parse_zero_cut(value);
    RS_TRY(parse_number(key, value, 0, &out->layout.zero));
    if (out->layout.zero > 3)
        return rs_error_set(RS_ERR_ARGUMENT, "layout: zero=%s: 0, 1, 2 or 3 is wanted", value);
    return RS_OK;
}

static void default_to_one(int *size)
{
    if (*size == 0)
        *size = 1;
}

/* What the keys say together: absent ones mean their default, unsupported ones must. */
static rs_status settle(parsed *all)
{
    default_to_one(&all->layout.tp);
    default_to_one(&all->layout.pp);
    default_to_one(&all->layout.dp);
    if (!all->has_order)
        memcpy(all->layout.order, default_order, sizeof default_order);
    const struct {
        const char *key;
        int value;
    } ones[] = {{"cp", all->cp}, {"ep", all->ep}, {"vpp", all->vpp}};
    char text[VALUE_LENGTH];
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++) {
        if (ones[i].value <= 1)
            continue;
        snprintf(text, sizeof text, "%d", ones[i].value);
        char instead[VALUE_LENGTH];
        snprintf(instead, sizeof instead, "%s=1", ones[i].key);
        return unsupported(ones[i].key, text, instead);
    }
    /* Without experts, etp says nothing; 1 and its default, tp, are taken. */
    if (all->etp > 1 && all->etp != all->layout.tp) {
        snprintf(text, sizeof text, "%d", all->etp);
        return unsupported("etp", text, "leaving it out");
    }
    if (all->shard != 0 && all->shard != all->layout.dp) {
        snprintf(text, sizeof text, "%d", all->shard);
        char instead[VALUE_LENGTH];
        snprintf(instead, sizeof instead, "shard=%d (dp x cp)", all->layout.dp);
        return unsupported("shard", text, instead);
    }
    return rs_layout_check(&all->layout);
}

/* Copies a part of the text, `what` of it, to a buffer of `size`. */
static rs_status take_part(const char *what, const char *from, size_t length, char *to, size_t size)
{
    if (length == 0 || length >= size)
        return rs_error_set(RS_ERR_ARGUMENT,
            "layout: the %s \"%.*s\" has %zu characters, 1 to %zu are possible; a layout looks "
            "like "
            "tp=2,pp=4,dp=8,zero=1",
            what, (int)(length < size ? length : size), from, length, size - 1);
    memcpy(to, from, length);
    to[length] = '\0';
    return RS_OK;
}

rs_status rs_layout_parse(const char *text, rs_layout *out)
{
    parsed all = {0};
    for (const char *at = text;; at++) {
        char key[KEY_LENGTH];
        char value[VALUE_LENGTH];
        size_t length = strcspn(at, ",");
        size_t key_length = strcspn(at, "=,");
        if (key_length == length)
            return rs_error_set(RS_ERR_ARGUMENT,
                "layout: \"%.*s\" in \"%.80s\" is not key=value; a layout looks like "
                "tp=2,pp=4,dp=8,zero=1",
                (int)rs_min64((int64_t)length, VALUE_LENGTH), at, text);
        RS_TRY(take_part("key", at, key_length, key, sizeof key));
        RS_TRY(
            take_part("value", at + key_length + 1, length - key_length - 1, value, sizeof value));
        RS_TRY(parse_pair(key, value, &all));
        at += length;
        if (*at == '\0')
            break;
    }
    RS_TRY(settle(&all));
    *out = all.layout;
    return RS_OK;
}

static bool has_default_order(const rs_layout *layout)
{
    return memcmp(layout->order, default_order, sizeof default_order) == 0;
}

char *rs_layout_format(const rs_layout *layout, char *text)
{
    const struct {
        const char *key;
        int value;
        int absent;
    } keys[] = {{"tp", layout->tp, 1}, {"pp", layout->pp, 1}, {"dp", layout->dp, 1},
        {"zero", layout->zero, 0}};
    int used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].value != keys[i].absent)
            used += snprintf(text + used, (size_t)(RS_LAYOUT_TEXT - used), "%s%s=%d",
                used > 0 ? "," : "", keys[i].key, keys[i].value);
    if (!has_default_order(layout))
        used += snprintf(text + used, (size_t)(RS_LAYOUT_TEXT - used), "%sorder=%s-%s-%s",
            used > 0 ? "," : "", axis_names[layout->order[0]], axis_names[layout->order[1]],
            axis_names[layout->order[2]]);
    if (used == 0)
        snprintf(text, RS_LAYOUT_TEXT, "dp=1");
    return text;
}

char *rs_layout_describe(const rs_layout *layout, char *text)
{
    snprintf(text, RS_LAYOUT_TEXT, "world %d = tp%d cp1 dp%d pp%d", rs_layout_world(layout),
        layout->tp, layout->dp, layout->pp);
    return text;
}

bool rs_layout_equal(const rs_layout *a, const rs_layout *b)
{
    return a->tp == b->tp && a->pp == b->pp && a->dp == b->dp && a->zero == b->zero &&
           memcmp(a->order, b->order, sizeof a->order) == 0;
}

rs_status rs_layout_check(const rs_layout *layout)
{
    int64_t world = 1;
    if (layout->tp < 1 || layout->pp < 1 || layout->dp < 1)
        return rs_error_set(RS_ERR_ARGUMENT, "layout: tp=%d,pp=%d,dp=%d: each must be at least 1",
            layout->tp, layout->pp, layout->dp);
    if (layout->zero < 0 || layout->zero > 3)
        return rs_error_set(
            RS_ERR_ARGUMENT, "layout: zero=%d: 0, 1, 2 or 3 is wanted", layout->zero);
    unsigned seen = 0;
    for (int i = 0; i < RS_MESH_AXES; i++)
        seen |= layout->order[i] < RS_MESH_AXES ? 1U << layout->order[i] : 0;
    if (seen != (1U << RS_MESH_AXES) - 1)
        return rs_error_set(
            RS_ERR_ARGUMENT, "layout: the order must have each of tp, dp and pp once");
    if (!rs_mul_fits(layout->tp, layout->pp, &world) || !rs_mul_fits(world, layout->dp, &world) ||
        world > INT_MAX)
        return rs_error_set(RS_ERR_ARGUMENT,
            "layout: tp=%d,pp=%d,dp=%d: the product, the number of ranks, may be %d at most",
            layout->tp, layout->pp, layout->dp, INT_MAX);
    return RS_OK;
}

/* ---- ranks ---- */

int rs_layout_world(const rs_layout *layout)
{
    return layout->tp * layout->pp * layout->dp;
}

static void axis_table(
    const rs_layout *layout, rs_coords *coords, int *size[], int *digit[], rs_layout *sizes)
{
    *sizes = *layout;
    int *all_sizes[RS_MESH_AXES] = {
        [RS_MESH_TP] = &sizes->tp, [RS_MESH_DP] = &sizes->dp, [RS_MESH_PP] = &sizes->pp};
    int *all_digits[RS_MESH_AXES] = {
        [RS_MESH_TP] = &coords->tp, [RS_MESH_DP] = &coords->dp, [RS_MESH_PP] = &coords->pp};
    for (int i = 0; i < RS_MESH_AXES; i++) {
        size[i] = all_sizes[layout->order[i]];
        digit[i] = all_digits[layout->order[i]];
    }
}

rs_coords rs_layout_coords(const rs_layout *layout, int rank)
{
    rs_coords coords;
    rs_layout sizes;
    int *size[RS_MESH_AXES];
    int *digit[RS_MESH_AXES];
    axis_table(layout, &coords, size, digit, &sizes);
    for (int i = 0; i < RS_MESH_AXES; i++) {
        *digit[i] = rank % *size[i];
        rank /= *size[i];
    }
    return coords;
}

int rs_layout_rank(const rs_layout *layout, rs_coords coords)
{
    rs_layout sizes;
    int *size[RS_MESH_AXES];
    int *digit[RS_MESH_AXES];
    axis_table(layout, &coords, size, digit, &sizes);
    int rank = 0;
    for (int i = RS_MESH_AXES - 1; i >= 0; i--)
        rank = rank * *size[i] + *digit[i];
    return rank;
}

rs_status rs_layout_check_trainable(const rs_layout *layout, const rs_space *space)
{
    int64_t layers = rs_space_layer_count(space);
    rs_layout fits = *layout;
    fits.pp = (int)rs_min64(layout->pp, rs_max64(layers, 1));
    fits.zero = layout->zero > 1 ? 1 : layout->zero;
    char text[RS_LAYOUT_TEXT];
    char nearest[RS_LAYOUT_TEXT];
    rs_layout_format(layout, text);
    rs_layout_format(&fits, nearest);
    if (fits.pp != layout->pp)
        return rs_error_set(RS_ERR_ARGUMENT,
            "layout %s: pp=%d, but the model has %" PRId64
            " layers and every pipeline stage needs one; the nearest that fits is %s",
            text, layout->pp, layers, nearest);
    if (fits.zero != layout->zero)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "layout %s: the trainer has zero=0 and zero=1; the nearest that fits is %s", text,
            nearest);
    return RS_OK;
}

/* ---- layers over stages ---- */

void rs_layout_stage_layers(
    const rs_layout *layout, int64_t layers, int stage, int64_t *begin, int64_t *end)
{
    int64_t each = layers / layout->pp;
    int64_t larger = layers % layout->pp;
    *begin = stage * each + rs_min64(stage, larger);
    *end = *begin + each + (stage < larger ? 1 : 0);
}

int rs_layout_stage_of_layer(const rs_layout *layout, int64_t layers, int64_t layer)
{
    int64_t each = layers / layout->pp;
    int64_t larger = layers % layout->pp;
    int64_t in_larger = larger * (each + 1);
    return (int)(layer < in_larger ? layer / (each + 1) : larger + (layer - in_larger) / each);
}

bool rs_layout_stage_has(const rs_layout *layout, const rs_tensor *tensor, int stage, bool tail)
{
    bool last = stage == layout->pp - 1;
    if (rs_tensor_has_layers(tensor))
        return false;
    switch (tensor->stage) {
    case RS_STAGE_BY_LAYER:
        return !tail;
    case RS_STAGE_FIRST:
        return !tail && stage == 0;
    case RS_STAGE_LAST:
        return tail && last;
    case RS_STAGE_FIRST_AND_LAST:
        return tail ? last && layout->pp > 1 : stage == 0;
    }
    return false;
}

/* ---- heads and rows over tp ---- */

int rs_tensor_cut_dim(const rs_tensor *tensor)
{
    for (int d = 0; d < tensor->ndim; d++)
        if (tensor->axis[d] != RS_AXIS_WHOLE && tensor->axis[d] != RS_AXIS_LAYER)
            return d;
    return -1;
}

/* What is dealt over tp along a dimension: `dealt` units by the ceil rule; for key/value heads
 * these are query heads, `group` to a head, else group is 1. `unit` elements of the dimension per
 * unit or head. */
typedef struct dealing {
    int64_t dealt;
    int64_t group;
    int64_t unit;
    int64_t each; /* units per rank, ceil(dealt / tp) */
} dealing;

static dealing dealing_of(const rs_layout *layout, const rs_tensor *tensor, int dim)
{
    dealing deal = {.unit = rs_max64(tensor->unit[dim], 1), .group = 1};
    if (tensor->axis[dim] == RS_AXIS_KV_HEAD)
        deal.group = rs_max64(tensor->kv_group, 1);
    deal.dealt = tensor->shape[dim] / deal.unit * deal.group;
    deal.each = rs_ceil_div(deal.dealt, layout->tp);
    return deal;
}

void rs_layout_tp_range(
    const rs_layout *layout, const rs_tensor *tensor, int dim, int tp, int64_t *begin, int64_t *end)
{
    if (tensor->axis[dim] == RS_AXIS_WHOLE || tensor->axis[dim] == RS_AXIS_LAYER) {
        *begin = 0;
        *end = tensor->shape[dim];
        return;
    }
    dealing deal = dealing_of(layout, tensor, dim);
    int64_t first = rs_min64(tp * deal.each, deal.dealt);
    int64_t last = rs_min64(first + deal.each, deal.dealt);
    /* An empty range of query heads uses no key/value head; both ends of it round up alike. */
    int64_t low = last > first ? first / deal.group : rs_ceil_div(first, deal.group);
    *begin = low * deal.unit;
    *end = rs_ceil_div(last, deal.group) * deal.unit;
}

void rs_layout_tp_owners(const rs_layout *layout, const rs_tensor *tensor, int dim, int64_t low,
    int64_t high, int *begin, int *end)
{
    dealing deal = dealing_of(layout, tensor, dim);
    int64_t first = low / deal.unit * deal.group;
    int64_t last = rs_ceil_div(high, deal.unit) * deal.group - 1;
    *begin = (int)(first / deal.each);
    *end = (int)(last / deal.each) + 1;
}

int64_t rs_layout_slice_elements(const rs_layout *layout, const rs_tensor *tensor, int tp)
{
    int64_t elements = 1;
    for (int d = rs_tensor_has_layers(tensor) ? 1 : 0; d < tensor->ndim; d++) {
        int64_t begin;
        int64_t end;
        rs_layout_tp_range(layout, tensor, d, tp, &begin, &end);
        elements *= end - begin;
    }
    return elements;
}

/* ---- the local concatenation ---- */

int rs_layout_block_count(const rs_space *space)
{
    return (int)rs_space_layer_count(space) + 2;
}

int rs_layout_segment(const rs_space *space, int role, int block)
{
    return role * rs_layout_block_count(space) + block;
}

/* Elements that `rank` has in blocks before `block`, of the tensors that have `role` (-1: of all).
 */
static int64_t elements_before(
    const rs_space *space, const rs_layout *layout, rs_coords at, int role, int64_t block)
{
    int64_t layers = rs_space_layer_count(space);
    int64_t first;
    int64_t end;
    rs_layout_stage_layers(layout, layers, at.pp, &first, &end);
    end = rs_min64(end, block - 1);
    int64_t elements = 0;
    for (int i = 0; i < rs_space_tensor_count(space); i++) {
        const rs_tensor *tensor = rs_space_tensor(space, i);
        int64_t times = 0;
        if (role >= 0 && rs_space_dtype(space, i, role) == RS_DTYPE_NONE)
            continue;
        if (rs_tensor_has_layers(tensor))
            times = rs_max64(rs_min64(end, tensor->shape[0]) - first, 0);
        else
            times = (block > 0 && rs_layout_stage_has(layout, tensor, at.pp, false)) +
                    (block > layers + 1 && rs_layout_stage_has(layout, tensor, at.pp, true));
        elements += times > 0 ? times * rs_layout_slice_elements(layout, tensor, at.tp) : 0;
    }
    return elements;
}

void rs_layout_block_range(const rs_space *space, const rs_layout *layout, int rank, int block,
    int64_t *begin, int64_t *end)
{
    rs_coords at = rs_layout_coords(layout, rank);
    *begin = elements_before(space, layout, at, -1, block);
    *end = elements_before(space, layout, at, -1, (int64_t)block + 1);
}

int64_t rs_layout_local_elements(const rs_space *space, const rs_layout *layout, int rank)
{
    return elements_before(
        space, layout, rs_layout_coords(layout, rank), -1, rs_layout_block_count(space));
}

bool rs_layout_shards_class(const rs_layout *layout, rs_role_class role_class)
{
    switch (role_class) {
    case RS_ROLE_OPTIMIZER:
        return layout->zero >= 1;
    case RS_ROLE_GRADIENT:
        return layout->zero >= 2;
    case RS_ROLE_MODEL:
        return layout->zero >= 3;
    }
    return false;
}

void rs_layout_flat_shard(
    const rs_layout *layout, int64_t total, int dp, int64_t *begin, int64_t *end)
{
    int64_t each = rs_round_up(rs_ceil_div(total, layout->dp), RS_FLAT_ALIGN);
    *begin = rs_min64(dp * each, total);
    *end = rs_min64(*begin + each, total);
}

void rs_layout_flat_range(const rs_space *space, const rs_layout *layout, int rank, int role,
    int64_t *begin, int64_t *end)
{
    int64_t total = elements_before(
        space, layout, rs_layout_coords(layout, rank), role, rs_layout_block_count(space));
    *begin = 0;
    *end = total;
    if (rs_layout_shards_class(layout, rs_space_role(space, role)->role_class))
        rs_layout_flat_shard(layout, total, rs_layout_coords(layout, rank).dp, begin, end);
}
