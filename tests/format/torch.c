/* Files of torch.save: every tensor and every value of the good fixtures, every hostile one
 * refused, nothing run, little memory. */
#include "truth.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "ckpt/torch.h"

static int good, bad, values;

/* One step of a truth's path: $['a'][0].b */
typedef struct step {
    char text[160]; /* as it stands: a key's repr, or an attribute's name */
    bool attribute;
} step;

static size_t parse_path(const char *path, step *steps)
{
    size_t count = 0;
    assert_int_equal(path[0], '$');
    for (const char *p = path + 1; *p != 0; count++) {
        const char *end;
        assert_true(count < 16);
        steps[count].attribute = *p == '.';
        if (*p == '.') {
            p++;
            end = p + strcspn(p, ".[");
        } else {
            bool quoted = *++p == '\'';
            end = quoted ? strstr(p, "']") + 1 : strchr(p, ']');
        }
        assert_true((size_t)(end - p) < sizeof steps[count].text);
        memcpy(steps[count].text, p, (size_t)(end - p));
        steps[count].text[end - p] = 0;
        p = steps[count].attribute ? end : end + 1;
    }
    return count;
}

/* The name that the file's tensor has in reshard. */
static void dotted(const char *path, char *out, size_t size)
{
    step steps[16];
    size_t count = parse_path(path, steps), used = 0;
    out[0] = 0;
    for (size_t i = 0; i < count; i++) {
        const char *text = steps[i].text;
        size_t length = strlen(text);
        if (!steps[i].attribute && text[0] == '\'') {
            text++;
            length -= 2;
        }
        used += (size_t)snprintf(
            out + used, size - used, "%s%.*s", i > 0 ? "." : "", (int)length, text);
    }
}

static const rs_value *child(const rs_value *value, const step *s)
{
    if (s->attribute)
        return rs_value_attribute(value, s->text);
    if (rs_value_is_sequence(value))
        return value->as.items[strtoul(s->text, NULL, 10)];
    assert_int_equal(value->kind, RS_VALUE_DICT);
    const rs_value *found = NULL;
    for (uint32_t i = 0; i < value->count; i++) {
        rs_text repr = {0};
        rs_value_append_repr(&repr, value->as.dict->pairs[2 * i]);
        if (strcmp(repr.data, s->text) == 0)
            found = value->as.dict->pairs[2 * i + 1];
        rs_text_fini(&repr);
    }
    return found;
}

static void assert_hex(const rs_value *value, const char *hex)
{
    const unsigned char *p = (const unsigned char *)value->as.text;
    for (size_t i = 0; hex[2 * i] != 0 && i < value->count; i++) {
        char two[3];
        snprintf(two, sizeof two, "%02x", p[i]);
        assert_memory_equal(two, hex + 2 * i, 2);
    }
}

/* Decimal digits of a big integer, by long division. */
static void assert_big(const rs_value *value, const char *decimal)
{
    unsigned char bytes[512];
    assert_true(value->count < sizeof bytes);
    memcpy(bytes, value->as.text, value->count);
    bool negative = bytes[value->count - 1] >= 0x80;
    unsigned carry = 1;
    for (uint32_t i = 0; i < value->count && negative; i++) {
        carry += (unsigned char)~bytes[i];
        bytes[i] = (unsigned char)carry;
        carry >>= 8;
    }
    char digits[2048];
    size_t at = sizeof digits - 1;
    digits[at] = 0;
    for (bool zero = false; !zero;) {
        unsigned rest = 0;
        zero = true;
        for (uint32_t i = value->count; i-- > 0;) {
            rest = rest << 8 | bytes[i];
            bytes[i] = (unsigned char)(rest / 10);
            rest %= 10;
            zero = zero && bytes[i] == 0;
        }
        digits[--at] = (char)('0' + rest);
    }
    if (negative)
        digits[--at] = '-';
    assert_string_equal(digits + at, decimal);
}

static void assert_members(const rs_value *value, const json_t *row)
{
    const json_t *keys = json_object_get(row, "keys");
    const rs_value *dict = value;
    if (value->kind == RS_VALUE_CALL)
        dict = value->as.call->state;
    assert_int_equal(dict->kind, RS_VALUE_DICT);
    assert_int_equal(dict->count, json_array_size(keys));
    for (uint32_t i = 0; i < dict->count; i++) {
        rs_text repr = {0};
        if (value->kind == RS_VALUE_CALL)
            rs_text_append(&repr, "%s", dict->as.dict->pairs[2 * i]->as.text);
        else
            rs_value_append_repr(&repr, dict->as.dict->pairs[2 * i]);
        assert_string_equal(repr.data, json_string_value(json_array_get(keys, i)));
        rs_text_fini(&repr);
    }
}

/* A value of any kind but tensors against its row. */
static void assert_value(const rs_value *value, const json_t *row)
{
    const char *kind = truth_text(row, "kind");
    const char *text = truth_text(row, "value");
    const json_t *number = json_object_get(row, "value");
    values++;
    if (json_object_get(row, "keys") != NULL) {
        assert_members(value, row);
    } else if (strcmp(kind, "int") == 0) {
        if (value->kind == RS_VALUE_BIG) {
            assert_big(value, text);
        } else {
            char digits[32];
            assert_int_equal(value->kind, RS_VALUE_INT);
            snprintf(digits, sizeof digits, "%" PRId64, value->as.integer);
            assert_string_equal(digits, text);
        }
    } else if (strcmp(kind, "float") == 0) {
        char hex[17];
        assert_int_equal(value->kind, RS_VALUE_FLOAT);
        for (int i = 0; i < 8; i++)
            snprintf(hex + 2 * i, 3, "%02x", ((const unsigned char *)&value->as.real)[i]);
        assert_string_equal(hex, truth_text(row, "hex"));
    } else if (strcmp(kind, "str") == 0) {
        assert_int_equal(value->kind, RS_VALUE_TEXT);
        assert_int_equal(value->count, json_string_length(number));
        assert_memory_equal(value->as.text, text, value->count);
    } else if (strcmp(kind, "bytes") == 0 || strcmp(kind, "bytearray") == 0) {
        assert_int_equal(value->kind, RS_VALUE_BYTES);
        assert_int_equal(value->count, json_integer_value(json_object_get(row, "len")));
        assert_hex(value, truth_text(row, "hex"));
    } else if (strcmp(kind, "bool") == 0) {
        assert_int_equal(value->kind, RS_VALUE_BOOL);
        assert_int_equal(value->as.boolean, json_is_true(number));
    } else if (strcmp(kind, "NoneType") == 0) {
        assert_int_equal(value->kind, RS_VALUE_NONE);
    } else if (strcmp(kind, "list") == 0 || strcmp(kind, "tuple") == 0) {
        assert_true(rs_value_is_sequence(value));
        assert_int_equal(value->count, json_integer_value(json_object_get(row, "len")));
    } else if (strcmp(kind, "Size") == 0) {
        assert_int_equal(value->form, RS_FORM_SIZE);
        assert_int_equal(value->count, json_array_size(number));
        for (uint32_t i = 0; i < value->count; i++)
            assert_int_equal(
                value->as.items[i]->as.integer, json_integer_value(json_array_get(number, i)));
    } else if (strcmp(kind, "dtype") == 0) {
        assert_string_equal(value->as.global->name, text);
    } else if (strcmp(kind, "device") == 0) {
        assert_true(rs_value_is_call(value, "torch", "device"));
    } else if (strcmp(kind, "complex") == 0) {
        assert_true(rs_value_is_call(value, "builtins", "complex"));
        for (size_t i = 0; i < 2; i++)
            assert_true(value->as.call->args->as.items[i]->as.real ==
                        json_number_value(json_array_get(number, i)));
    } else if (strcmp(kind, "set") == 0 || strcmp(kind, "frozenset") == 0) {
        assert_int_equal(value->kind, RS_VALUE_SET);
        assert_int_equal(value->form == RS_FORM_FROZEN, kind[0] == 'f');
        assert_int_equal(value->count, json_array_size(number));
    } else {
        fail_msg("a value of kind %s", kind);
    }
}

static void assert_tensor(const rs_checkpoint *checkpoint, const char *path, const json_t *row)
{
    char name[512];
    dotted(path, name, sizeof name);
    for (size_t i = 0; i < rs_checkpoint_count(checkpoint); i++) {
        const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, i);
        if (strcmp(entry->name, name) == 0) {
            assert_entry(checkpoint, name, entry->role, row);
            return;
        }
    }
    fail_msg("no tensor \"%s\"", name);
}

static void check_values(const char *path, const json_t *truth)
{
    rs_files *files;
    rs_torch torch;
    int file;
    size_t index;
    json_t *row;
    assert_int_equal(rs_files_create(&files), RS_OK);
    assert_int_equal(rs_files_add(files, path, &file), RS_OK);
    assert_int_equal(rs_torch_open(files, file, &torch), RS_OK);
    json_array_foreach(json_object_get(truth, "tensors"), index, row)
    {
        step steps[16];
        const rs_value *value = rs_torch_root(&torch);
        size_t count = parse_path(truth_text(row, "name"), steps);
        for (size_t i = 0; i < count; i++) {
            value = child(value, &steps[i]);
            if (value == NULL)
                fail_msg("no value %s", truth_text(row, "name"));
        }
        if (strcmp(truth_text(row, "kind"), "tensor") == 0)
            assert_int_equal(rs_torch_kind_of(value), RS_TORCH_DENSE);
        else
            assert_value(value, row);
    }
    rs_torch_fini(&torch);
    rs_files_destroy(files);
}

static void check_fixture(const char *folder, const char *name, const json_t *truth)
{
    const char *expect = truth_text(truth, "expect");
    char path[1024];
    snprintf(path, sizeof path, "%s", in_folder(folder, truth_text(truth, "file")));
    printf("  %s\n", name);
    if (strcmp(expect, "error") == 0) {
        assert_refused(path, NULL);
        assert_non_null(strstr(rs_error_message(), truth_text(truth, "file")));
        bad++;
        return;
    }
    rs_status status = read_everything(path, NULL);
    if (status != RS_OK && strcmp(expect, "ok") != 0) {
        printf("    %s: %s\n", rs_status_name(status), rs_error_message());
        assert_true(status != RS_ERR_IO && status != RS_ERR_NO_MEMORY);
        return;
    }
    if (status != RS_OK)
        fail_msg("%s", rs_error_message());
    rs_checkpoint *checkpoint;
    assert_int_equal(rs_checkpoint_open(path, NULL, &checkpoint), RS_OK);
    assert_string_equal(rs_checkpoint_format(checkpoint), "torch");
    size_t index, tensors = 0;
    json_t *row;
    json_array_foreach(json_object_get(truth, "tensors"), index, row)
    {
        if (strcmp(truth_text(row, "kind"), "tensor") != 0)
            continue;
        assert_tensor(checkpoint, truth_text(row, "name"), row);
        tensors++;
    }
    if (strcmp(expect, "ok") == 0)
        assert_int_equal(rs_checkpoint_count(checkpoint), tensors);
    rs_checkpoint_close(checkpoint);
    check_values(path, truth);
    good++;
}

static void test_fixtures(void **state)
{
    (void)state;
    for_fixtures("torchsave-1.13", check_fixture);
    for_fixtures("torchsave-2.6", check_fixture);
    printf("%d good, %d refused, %d values\n", good, bad, values);
    assert_true(good >= 30 && bad >= 60 && values > 300);
    assert_peak_below(300);
}

static rs_status attempt(const char *path)
{
    return read_everything(path, NULL);
}

/* H01: files cut at any length, and with flipped bytes. */
static void test_damaged(void **state)
{
    (void)state;
    static const char *const cases[] = {"torchsave-2.6/nested-objects", "torchsave-2.6/dtypes-zip",
        "torchsave-1.13/deflated-entries", "torchsave-1.13/nested-objects-legacy",
        "torchsave-2.6/dtypes-zip-proto4"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        damaged_twins(in_folder(fixture_family(cases[i]), "data.pt"), 40, 250, 17 + i, attempt);
    assert_peak_below(300);
}

/* A legacy file: four pickles, a list of keys, and what follows. */
static const char *legacy(
    const char *object, size_t object_bytes, const char *tail, size_t tail_bytes)
{
    static const char head[] = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
                               "\x80\x02M\xe9\x03."
                               "\x80\x02}X\x0d\0\0\0little_endian\x88s.";
    char bytes[4096];
    size_t length = sizeof head - 1;
    memcpy(bytes, head, length);
    assert_true(length + object_bytes + tail_bytes < sizeof bytes);
    memcpy(bytes + length, object, object_bytes);
    memcpy(bytes + length + object_bytes, tail, tail_bytes);
    return scratch_file("legacy.pt", bytes, length + object_bytes + tail_bytes);
}

#define EMPTY_KEYS "\x80\x02]."

/* H08 and its kind: what a hostile pickle may try, each with the reason it is refused for. */
static void test_hostile_pickles(void **state)
{
    (void)state;
#define P(text) text, sizeof(text) - 1
    static const struct {
        const char *pickle;
        size_t bytes;
        const char *reason; /* NULL: good */
    } cases[] = {
        {P("\x80\x02}."), NULL},
        {P("\x80\x02]K\x01K\x02s."), "sets items on what is no dict"},
        {P("\x80\x02](K\x01K\x02u."), "sets items on what is no dict"},
        {P("\x80\x02}K\x01"
           "a."),
            "appends to what is no list"},
        {P("\x80\x02}K\x01K\x02\x86(K\x03"
           "e."),
            "appends to what is no list"},
        {P("\x80\x02h\x05."), "memo slot 5 is read, 0 are set"},
        {P("\x80\x02]r\xff\xff\xff\xff."), "memo slot 4294967295 is set while 0 are in use"},
        {P("\x80\x02]r\x05\0\0\0."), "memo slot 5 is set while 0 are in use"},
        {P("\x80\x02."), "ends with 0 values"},
        {P("\x80\x02]]."), "ends with 2 values"},
        {P("\x80\x02(]."), "1 open marks"},
        {P("\x80\x02]K\x01\x85R."), "no named function or class"},
        {P("\x80\x02X\xff\xff\xff\x7f"
           "abc."),
            "a string of 2147483647 bytes"},
        {P("\x80\x02U\xff"
           "abc."),
            "a string of 255 bytes"},
        {P("\x80\x06]."), "pickle protocol 6"},
        {P("\x80\x02"
           "cos\nsystem\n."),
            "names os.system"},
        {P("\x80\x02"
           "c__builtin__\neval\n."),
            "names builtins.eval"},
        {P("\x80\x02"
           "c__builtin__\ngetattr\ncos\nfoo\n\x86R."),
            "names os.foo"},
        {P("\x80\x02"
           "c__builtin__\ngetattr\ncmy.mod\nColour\nX\x03\0\0\0RED\x86R."),
            NULL},
        {P("\x80\x02"
           "c__builtin__\ngetattr\ncmy.mod\nColour\nX\x09\0\0\0__class__\x86R."),
            "would call builtins.getattr"},
        /* An unknown name as a value, or as the class of a plain instance, is data. */
        {P("\x80\x02"
           "cmy.mod\nThing\n."),
            NULL},
        {P("\x80\x02"
           "cmy.mod\nThing\n)\x81}X\x01\0\0\0aK\x01sb."),
            NULL},
        {P("\x80\x02"
           "cmy.mod\nThing\nK\x01\x85R."),
            "would call my.mod.Thing"},
        {P("\x80\x02"
           "ctorch\nsave\nK\x01\x85R."),
            "would call torch.save"},
        {P("\x80\x02"
           "ctorch._utils\n_import_dotted_name\n."),
            "names torch._utils"},
        {P("\x80\x02"
           "ctorch.storage\n_load_from_bytes\n."),
            "names torch.storage._load"},
        {P("\x80\x02"
           "ccollections\nOrderedDict\n)R}X\x09\0\0\0__class__K\x01sb."),
            "attribute __class__"},
        {P("\x80\x02]}b."), "sets the state of what has none"},
        {P("\x80\x02(i__main__\nX\n."), "pickle opcode 69"},
        {P("\x80\x02\x82\x01."), "pickle opcode 82"},
        {P("\x80\x02]]\x8f."), "ends with 3 values"},
        {P("\x80\x04\x8f(\x90]."), "2 values"},
        {P("\x80\x02}]K\x01s."), "as a key"},
        {P("\x80\x02K\x01K\x02K\x03Q."), "no tuple"},
        {P("\x80\x02X\x03\0\0\0abc)\x86Q."), "no storage"},
        {P("\x80\x02I99999999999999999999\n."), "no integer of 64 bits"},
        {P("\x80\x02\x8b\xff\xff\xff\xff."), "negative length"},
        {P("\x80\x02L12L\n."), NULL},
        {P("\x80\x02"
           "F1.5\n."),
            NULL},
        {P("\x80\x02(I01\nI00\ntp0\n0g0\n."), NULL},
        {P("\x80\x02"
           "c_codecs\nencode\nX\x03\0\0\0a\xe2\x98X\x06\0\0\0latin1\x86R."),
            "do not fit"},
        {P("\x80\x02\x95\xff\xff\0\0\0\0\0\0]."), "a frame of 65535 bytes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = legacy(cases[i].pickle, cases[i].bytes, P(EMPTY_KEYS));
        rs_status status = read_everything(path, NULL);
        if ((status == RS_OK) != (cases[i].reason == NULL))
            fail_msg("case %zu: %s", i, status == RS_OK ? "was read" : rs_error_message());
        if (cases[i].reason != NULL && strstr(rs_error_message(), cases[i].reason) == NULL)
            fail_msg(
                "case %zu: \"%s\" does not say \"%s\"", i, rs_error_message(), cases[i].reason);
    }
#undef P
}

/* Bombs: small files that would take a careless reader's memory, stack or time. */
static void test_bombs(void **state)
{
    (void)state;
    size_t bytes = 40 << 20;
    char *bomb = malloc(bytes);
    static const char head[] = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
                               "\x80\x02M\xe9\x03.\x80\x02}X\x0d\0\0\0little_endian\x88s.";
    static const struct {
        const char *fill; /* two opcodes, over and over */
        const char *reason;
    } cases[] = {
        {"((", "nest more than"},
        {"]]", "wait on the pickle's stack"},
        {"NN", "wait on the pickle's stack"},
        {"]0", "needs more than 160 MiB"},
        {"}0", "needs more than 160 MiB"},
        {"\x94\x94", "empty stack"},
        {"22", "empty stack"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t k = 0; k < bytes; k++)
            bomb[k] = cases[i].fill[(k + sizeof head - 1) % 2];
        memcpy(bomb, head, sizeof head - 1);
        const char *path = scratch_file("bomb.pt", bomb, bytes);
        assert_int_not_equal(read_everything(path, NULL), RS_OK);
        if (strstr(rs_error_message(), cases[i].reason) == NULL)
            fail_msg(
                "case %zu: \"%s\" does not say \"%s\"", i, rs_error_message(), cases[i].reason);
    }
    /* One value, memoized without end. */
    memset(bomb, '\x94', bytes);
    memcpy(bomb, head, sizeof head - 1);
    bomb[sizeof head - 1] = 'N';
    assert_int_not_equal(read_everything(scratch_file("bomb.pt", bomb, bytes), NULL), RS_OK);
    assert_non_null(strstr(rs_error_message(), "memo slots"));
    free(bomb);
    assert_peak_below(300);
}

/* Two names that come out equal are told apart by brackets; dots inside keys stay. */
static void test_names(void **state)
{
    (void)state;
#define STORAGE                                                                                    \
    "(X\x07\0\0\0storage"                                                                          \
    "ctorch\nFloatStorage\nX\x01\0\0\0"                                                            \
    "7X\x03\0\0\0cpuK\x02NtQ"
#define TENSOR(first)                                                                              \
    "ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE "K" first "K\x01\x85K\x01\x85\x89"              \
    "ccollections\nOrderedDict\n)RtR"
    static const char object[] = "\x80\x02}(X\x03\0\0\0a.b" TENSOR(
        "\x00") "X\x01\0\0\0a"
                "}X\x01\0\0\0b" TENSOR("\x01") "s"
                                               "K\x05]" TENSOR("\x00") "au.";
    static const char tail[] = "\x80\x02]X\x01\0\0\0"
                               "7a."
                               "\2\0\0\0\0\0\0\0"
                               "\0\0\x80\x3f\0\0\0\x40";
    const char *path = legacy(object, sizeof object - 1, tail, sizeof tail - 1);
    rs_checkpoint *checkpoint;
    if (rs_checkpoint_open(path, NULL, &checkpoint) != RS_OK)
        fail_msg("%s", rs_error_message());
    static const struct {
        const char *name;
        float value;
    } wanted[] = {{"['a.b']", 1}, {"['a']['b']", 2}, {"5.0", 1}};
    assert_int_equal(rs_checkpoint_count(checkpoint), 3);
    for (size_t i = 0; i < 3; i++) {
        float value = 0;
        rs_box box = {.ndim = 1, .extent = {1}};
        int64_t index = rs_checkpoint_find(checkpoint, wanted[i].name, "param");
        if (index < 0)
            fail_msg("no %s", wanted[i].name);
        assert_int_equal(
            rs_checkpoint_read(checkpoint, (size_t)index, &box, &value, sizeof value), RS_OK);
        assert_true(value == wanted[i].value);
    }
    assert_string_equal(rs_checkpoint_entry_at(checkpoint, 2)->alias_of, "['a.b']");
    rs_checkpoint_close(checkpoint);
}

int main(void)
{
    fixture_family("torchsave-2.6");
    forbid_execution();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_hostile_pickles),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_bombs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
