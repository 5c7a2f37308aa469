/*
 * Layouts as text: `tp=2,pp=4,dp=8,zero=1`.
 *
 * One table row per key that is a number; the other keys have a reader of their own. What keys mean
 * together (an order that leaves out an axis, as many stages as pp x vpp) is looked at once all are
 * read, and rs_layout_check has the last word.
 *
 * The canonical text leaves out what says nothing: defaults, how ZeRO cuts where it does not, the
 * place of an axis of size 1 that is on one mesh only. Equal layouts have equal texts.
 *
 * Errors name the key, what was given and what would fit.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "layout/mesh.h"

static const char *const axis_names[RS_MESH_AXES] = {"tp", "cp", "ep", "dp", "pp"};
static const char *const cut_names[] = {"concat", "param", "dim0"};

/* ---- reading ---- */

/* Keys that are numbers: where they go, what they are where absent, and the least that can be
 * given. In the order of the canonical text; those of zero_cut and sp stand behind. */
static const struct {
    const char *key;
    size_t offset;
    int absent;
    int least;
} numbers[] = {
    {"tp", offsetof(rs_layout, tp), 1, 1},
    {"pp", offsetof(rs_layout, pp), 1, 1},
    {"dp", offsetof(rs_layout, dp), 1, 1},
    {"cp", offsetof(rs_layout, cp), 1, 1},
    {"ep", offsetof(rs_layout, ep), 1, 1},
    {"etp", offsetof(rs_layout, etp), 0, 1},
    {"vpp", offsetof(rs_layout, vpp), 1, 1},
    {"zero", offsetof(rs_layout, zero), 0, 0},
    {"shard", offsetof(rs_layout, shard), 0, 1},
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

/* Keys with a reader of their own. */
enum { ZERO_CUT, SP, STAGES, ORDER, OTHERS };
static const char *const others[OTHERS] = {"zero_cut", "sp", "stages", "order"};

#define KEY_LENGTH 16

/* What a text has said so far. */
typedef struct parsed {
    rs_layout layout;
    bool has_number[NUMBERS];
    bool has_other[OTHERS];
    bool has_axis[RS_MESH_AXES];
    int axes;
} parsed;

static int *number_of(rs_layout *layout, int which)
{
    return (int *)((char *)layout + numbers[which].offset);
}

/* Reads digits; false if there are none, or more than an int takes. */
static bool read_digits(const char **at, int *out)
{
    int64_t value = 0;
    const char *start = *at;
    for (; **at >= '0' && **at <= '9'; (*at)++) {
        value = value * 10 + (**at - '0');
        if (value > INT_MAX)
            return false;
    }
    *out = (int)value;
    return *at > start;
}

static rs_status parse_number(const char *value, int which, rs_layout *layout)
{
    int number = 0;
    const char *at = value;
    if (!read_digits(&at, &number) || *at != '\0' || number < numbers[which].least)
        return rs_error_set(RS_ERR_ARGUMENT, "layout: %s=%s: a whole number from %d on is wanted",
            numbers[which].key, value, numbers[which].least);
    *number_of(layout, which) = number;
    return RS_OK;
}

static rs_status bad_order(const char *value)
{
    return rs_error_set(RS_ERR_ARGUMENT,
        "layout: order=%s: tp, dp and pp are wanted once each, joined by '-', fastest first (and "
        "cp and ep, if their size is not 1), as in order=tp-cp-ep-dp-pp",
        value);
}

static rs_status parse_order(const char *value, parsed *out)
{
    for (const char *at = value;; at++) {
        size_t length = strcspn(at, "-");
        int axis = 0;
        while (axis < RS_MESH_AXES && (length != 2 || strncmp(at, axis_names[axis], 2) != 0))
            axis++;
        if (axis == RS_MESH_AXES || out->has_axis[axis])
            return bad_order(value);
        out->has_axis[axis] = true;
        out->layout.order[out->axes++] = (rs_mesh_axis)axis;
        at += length;
        if (*at == '\0')
            break;
    }
    bool complete =
        out->has_axis[RS_MESH_TP] && out->has_axis[RS_MESH_DP] && out->has_axis[RS_MESH_PP];
    return complete ? RS_OK : bad_order(value);
}

static rs_status parse_sp(const char *value, rs_layout *layout)
{
    layout->sp = strcmp(value, "on") == 0;
    if (layout->sp || strcmp(value, "off") == 0)
        return RS_OK;
    if (value[0] >= '0' && value[0] <= '9')
        return rs_error_set(RS_ERR_ARGUMENT,
            "layout: sp=%s: sp is on or off; use cp=%s to cut the sequence over ranks", value,
            value);
    return rs_error_set(RS_ERR_ARGUMENT, "layout: sp=%s: on or off is wanted", value);
}

static rs_status parse_zero_cut(const char *value, rs_layout *layout)
{
    for (int cut = RS_CUT_CONCAT; cut <= RS_CUT_DIM0; cut++) {
        if (strcmp(value, cut_names[cut]) != 0)
            continue;
        layout->zero_cut = (rs_zero_cut)cut;
        return RS_OK;
    }
    return rs_error_set(
        RS_ERR_ARGUMENT, "layout: zero_cut=%s: concat, param or dim0 is wanted", value);
}

/* "5-9", "5" or "-"; leaves `*at` behind it. Output: where the stage ends. */
static bool read_stage(const char **at, int begin, int *end)
{
    int first = 0;
    if ((*at)[0] == '-') {
        (*at)++;
        *end = begin;
        return true;
    }
    if (!read_digits(at, &first) || first != begin)
        return false;
    int last = first;
    if (**at == '-') {
        (*at)++;
        if (!read_digits(at, &last))
            return false;
    }
    /* So many digits fit the canonical text. */
    if (last < first || last > 9999)
        return false;
    *end = last + 1;
    return true;
}

static rs_status parse_stages(const char *value, rs_layout *layout)
{
    int begin = 0;
    for (const char *at = value;; at++) {
        const char *entry = at;
        if (layout->stage_count == RS_LAYOUT_STAGES)
            return rs_error_set(RS_ERR_ARGUMENT,
                "layout: stages=%s: %d stages at most can be listed", value, RS_LAYOUT_STAGES);
        int *end = &layout->stage_end[layout->stage_count];
        if (!read_stage(&at, begin, end) || (*at != '/' && *at != '\0'))
            return rs_error_set(RS_ERR_ARGUMENT,
                "layout: stages=%s: stage %d is \"%.*s\"; the layers from %d on are wanted, as in "
                "0-5/6-10, or \"-\" for none",
                value, layout->stage_count, (int)strcspn(entry, "/"), entry, begin);
        begin = *end;
        layout->stage_count++;
        if (*at == '\0')
            break;
    }
    return RS_OK;
}

static rs_status parse_other(const char *value, int which, parsed *out)
{
    switch (which) {
    case ZERO_CUT:
        return parse_zero_cut(value, &out->layout);
    case SP:
        return parse_sp(value, &out->layout);
    case STAGES:
        return parse_stages(value, &out->layout);
    default:
        return parse_order(value, out);
    }
}

static rs_status parse_pair(const char *key, const char *value, parsed *out)
{
    bool *seen = NULL;
    int number = 0;
    while (number < NUMBERS && strcmp(numbers[number].key, key) != 0)
        number++;
    int other = 0;
    while (other < OTHERS && strcmp(others[other], key) != 0)
        other++;
    if (number < NUMBERS)
        seen = &out->has_number[number];
    else if (other < OTHERS)
        seen = &out->has_other[other];
    else
        return rs_error_set(RS_ERR_ARGUMENT,
            "layout: unknown key %s (with value %s); the keys are tp, pp, dp, zero, order, and "
            "cp, ep, etp, vpp, sp, stages, shard, zero_cut",
            key, value);
    if (*seen)
        return rs_error_set(RS_ERR_ARGUMENT, "layout: %s is given twice", key);
    *seen = true;
    return number < NUMBERS ? parse_number(value, number, &out->layout)
                            : parse_other(value, other, out);
}

/* Completes the order; an axis that it leaves out must have size 1. */
static rs_status settle_order(parsed *all)
{
    static const rs_mesh_axis optional[] = {RS_MESH_CP, RS_MESH_EP};
    rs_layout *layout = &all->layout;
    rs_layout placed = *layout; /* axes that the order leaves out have size 1 here */
    int missing = -1;
    if (all->axes == 0)
        for (int i = 0; i < RS_MESH_AXES; i++)
            placed.order[all->axes++] = (rs_mesh_axis)i;
    for (int i = 0; all->axes < RS_MESH_AXES && i < 2; i++) {
        int *size = optional[i] == RS_MESH_CP ? &placed.cp : &placed.ep;
        if (all->has_axis[optional[i]])
            continue;
        if (*size > 1 && missing < 0)
            missing = i;
        *size = 1;
        placed.order[all->axes++] = optional[i];
    }
    rs_layout_canonical_order(&placed, layout->order);
    if (missing < 0)
        return RS_OK;
    char nearest[RS_LAYOUT_TEXT];
    return rs_error_set(RS_ERR_ARGUMENT,
        "layout: the order leaves out %s, whose size is %d; the nearest that fits is %s",
        axis_names[optional[missing]], optional[missing] == RS_MESH_CP ? layout->cp : layout->ep,
        rs_layout_format(layout, nearest));
}

static rs_status settle(parsed *all)
{
    rs_layout *layout = &all->layout;
    for (int i = 0; i < NUMBERS; i++)
        if (!all->has_number[i])
            *number_of(layout, i) = numbers[i].absent;
    RS_TRY(settle_order(all));
    RS_TRY(rs_layout_check(layout));
    if (layout->etp == layout->tp)
        layout->etp = 0;
    if (layout->zero == 0)
        layout->zero_cut = RS_CUT_CONCAT;
    if (layout->zero == 0 || layout->shard == layout->cp * layout->dp)
        layout->shard = 0;
    return RS_OK;
}

/* Copies a part of the text, `what` of it, to a buffer of `size`. */
static rs_status take_part(const char *what, const char *from, size_t length, char *to, size_t size)
{
    if (length == 0 || length >= size)
        return rs_error_set(RS_ERR_ARGUMENT,
            "layout: the %s \"%.*s\" has %zu characters, 1 to %zu are possible; a layout looks "
            "like tp=2,pp=4,dp=8,zero=1",
            what, (int)(length < KEY_LENGTH ? length : KEY_LENGTH), from, length, size - 1);
    memcpy(to, from, length);
    to[length] = '\0';
    return RS_OK;
}

rs_status rs_layout_parse(const char *text, rs_layout *out)
{
    parsed all = {0};
    for (const char *at = text;; at++) {
        char key[KEY_LENGTH];
        char value[RS_LAYOUT_TEXT];
        size_t length = strcspn(at, ",");
        size_t key_length = strcspn(at, "=,");
        if (key_length == length)
            return rs_error_set(RS_ERR_ARGUMENT,
                "layout: \"%.*s\" in \"%.80s\" is not key=value; a layout looks like "
                "tp=2,pp=4,dp=8,zero=1",
                (int)rs_min64((int64_t)length, 64), at, text);
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

/* ---- writing ---- */

void rs_layout_canonical_order(const rs_layout *layout, rs_mesh_axis *order)
{
    int count = 0;
    for (int i = 0; i < RS_MESH_AXES; i++) {
        rs_mesh_axis axis = layout->order[i];
        if ((axis == RS_MESH_CP && layout->cp == 1) || (axis == RS_MESH_EP && layout->ep == 1))
            continue;
        order[count++] = axis;
    }
    /* What was left out goes behind tp, then behind cp, as in the default order. */
    const struct {
        rs_mesh_axis axis;
        int size;
        rs_mesh_axis behind;
    } idle[] = {{RS_MESH_CP, layout->cp, RS_MESH_TP}, {RS_MESH_EP, layout->ep, RS_MESH_CP}};
    for (int k = 0; k < 2; k++) {
        if (idle[k].size != 1)
            continue;
        int at = count++;
        for (; order[at - 1] != idle[k].behind; at--)
            order[at] = order[at - 1];
        order[at] = idle[k].axis;
    }
}

/* The text so far, which the buffer always has room for. */
typedef struct writer {
    char *text;
    int used;
} writer;

static void put(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(writer *w, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length =
        vsnprintf(w->text + w->used, (size_t)(RS_LAYOUT_TEXT - w->used), format, arguments);
    va_end(arguments);
    w->used = (int)rs_min64(w->used + length, RS_LAYOUT_TEXT - 1);
}

static void put_key(writer *w, const char *key)
{
    put(w, "%s%s=", w->used > 0 ? "," : "", key);
}

static void put_stages(writer *w, const rs_layout *layout)
{
    put_key(w, others[STAGES]);
    for (int stage = 0; stage < layout->stage_count; stage++) {
        int begin = stage > 0 ? layout->stage_end[stage - 1] : 0;
        int last = layout->stage_end[stage] - 1;
        if (stage > 0)
            put(w, "/");
        if (last < begin)
            put(w, "-");
        else if (last == begin)
            put(w, "%d", begin);
        else
            put(w, "%d-%d", begin, last);
    }
}

static void put_order(writer *w, const rs_layout *layout)
{
    rs_mesh_axis order[RS_MESH_AXES];
    bool is_default = true;
    rs_layout_canonical_order(layout, order);
    for (int i = 0; i < RS_MESH_AXES; i++)
        is_default = is_default && order[i] == (rs_mesh_axis)i;
    if (is_default)
        return;
    put_key(w, others[ORDER]);
    bool first = true;
    for (int i = 0; i < RS_MESH_AXES; i++) {
        if ((order[i] == RS_MESH_CP && layout->cp == 1) ||
            (order[i] == RS_MESH_EP && layout->ep == 1))
            continue;
        put(w, "%s%s", first ? "" : "-", axis_names[order[i]]);
        first = false;
    }
}

char *rs_layout_format(const rs_layout *layout, char *text)
{
    rs_layout shown = *layout;
    writer w = {.text = text};
    text[0] = '\0';
    if (shown.etp == shown.tp)
        shown.etp = 0;
    if (shown.zero == 0 || shown.shard == shown.cp * shown.dp)
        shown.shard = 0;
    for (int i = 0; i < NUMBERS; i++) {
        int value = *number_of(&shown, i);
        if (value == numbers[i].absent)
            continue;
        put_key(&w, numbers[i].key);
        put(&w, "%d", value);
    }
    if (shown.zero > 0 && shown.zero_cut != RS_CUT_CONCAT) {
        put_key(&w, others[ZERO_CUT]);
        put(&w, "%s", cut_names[shown.zero_cut]);
    }
    if (shown.sp) {
        put_key(&w, others[SP]);
        put(&w, "on");
    }
    if (shown.stage_count > 0)
        put_stages(&w, &shown);
    put_order(&w, &shown);
    if (w.used == 0)
        put(&w, "dp=1");
    return text;
}

static char *describe(const rs_layout *layout, bool experts, char *text)
{
    writer w = {.text = text};
    put(&w, "world %d = tp%d cp%d dp%d pp%d", rs_layout_world(layout), layout->tp, layout->cp,
        layout->dp, layout->pp);
    if (experts || layout->ep > 1 || rs_layout_etp(layout) != layout->tp)
        put(&w, "; experts per stage: etp%d ep%d edp%d", rs_layout_etp(layout), layout->ep,
            rs_layout_edp(layout));
    return text;
}

char *rs_layout_describe(const rs_layout *layout, char *text)
{
    return describe(layout, false, text);
}

char *rs_layout_describe_for(const rs_layout *layout, const rs_space *space, char *text)
{
    return describe(layout, rs_space_expert_count(space) > 0, text);
}

bool rs_layout_equal(const rs_layout *a, const rs_layout *b)
{
    char one[RS_LAYOUT_TEXT];
    char other[RS_LAYOUT_TEXT];
    return strcmp(rs_layout_format(a, one), rs_layout_format(b, other)) == 0;
}
