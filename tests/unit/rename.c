/*
 * Checkpoints under other names, against tensors made from their definition: GPT-2's turned and
 * fused matrices, queries with their keys and values in groups, gates above ups; copies that
 * differ, tensors that lack, are too many, too long or unlike; steps.
 *
 * Every element of a source is a number that says what it is, so wrong rows show.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/memory.h"
#include "reshard/checkpoint.h"
#include "reshard/convert.h"
#include "reshard/dialect.h"
#include "reshard/model.h"

static char folder[64];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/reshard-rename-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* ---- a safetensors file ---- */

#define TENSORS 64

typedef struct row {
    char name[96];
    const char *dtype; /* "F32", "BF16" */
    int ndim;
    int64_t shape[3];
    float *data;
} row;

static row rows[TENSORS];
static int count;

static void begin(void)
{
    for (int i = 0; i < count; i++)
        free(rows[i].data);
    count = 0;
}

static int teardown(void **state)
{
    (void)state;
    begin();
    unlink(path_of("a.safetensors"));
    return rmdir(folder);
}

static int64_t volume(const row *r)
{
    int64_t v = 1;
    for (int d = 0; d < r->ndim; d++)
        v *= r->shape[d];
    return v;
}

/* Adds a float32 tensor; its elements are the caller's to fill. */
static float *add(const char *name, int ndim, int64_t a, int64_t b)
{
    assert_true(count < TENSORS);
    row *r = &rows[count++];
    *r = (row){.dtype = "F32", .ndim = ndim, .shape = {a, b}};
    snprintf(r->name, sizeof r->name, "%s", name);
    r->data = calloc((size_t)volume(r) + 1, sizeof *r->data);
    return r->data;
}

static rs_checkpoint *written(void)
{
    FILE *file = fopen(path_of("a.safetensors"), "w");
    char head[16384] = "{";
    size_t used = 1;
    int64_t at = 0;
    rs_checkpoint *checkpoint;
    for (int i = 0; i < count; i++) {
        int64_t size = strcmp(rows[i].dtype, "F32") == 0 ? 4 : 2;
        used += (size_t)snprintf(head + used, sizeof head - used,
            "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i > 0 ? "," : "", rows[i].name,
            rows[i].dtype);
        for (int d = 0; d < rows[i].ndim; d++)
            used += (size_t)snprintf(
                head + used, sizeof head - used, "%s%d", d > 0 ? "," : "", (int)rows[i].shape[d]);
        used += (size_t)snprintf(head + used, sizeof head - used, "],\"data_offsets\":[%d,%d]}",
            (int)at, (int)(at + size * volume(&rows[i])));
        at += size * volume(&rows[i]);
    }
    used += (size_t)snprintf(head + used, sizeof head - used, "}");
    uint64_t length = used;
    assert_non_null(file);
    assert_int_equal(fwrite(&length, 8, 1, file), 1);
    assert_int_equal(fwrite(head, 1, used, file), used);
    for (int i = 0; i < count; i++) {
        size_t size = strcmp(rows[i].dtype, "F32") == 0 ? 4 : 2;
        assert_int_equal(
            fwrite(rows[i].data, size, (size_t)volume(&rows[i]), file), volume(&rows[i]));
    }
    assert_int_equal(fclose(file), 0);
    if (rs_checkpoint_open(path_of("a.safetensors"), NULL, &checkpoint) != RS_OK)
        fail_msg("%s", rs_error_message());
    return checkpoint;
}

static rs_dialect *load(const char *name)
{
    rs_dialect *dialect;
    if (rs_dialect_load(name, &dialect) != RS_OK)
        fail_msg("%s", rs_error_message());
    return dialect;
}

static rs_dialect *parse(const char *text)
{
    rs_dialect *dialect;
    if (rs_dialect_parse(text, strlen(text), "own", &dialect) != RS_OK)
        fail_msg("%s", rs_error_message());
    return dialect;
}

static rs_space *space_of(const rs_model *model)
{
    rs_space *space;
    assert_int_equal(rs_model_space(model, RS_DTYPE_F32, &space), RS_OK);
    return space;
}

static float at(const rs_checkpoint *checkpoint, const char *name, int64_t i, int64_t j, int64_t k)
{
    int64_t index = rs_checkpoint_find(checkpoint, name, "param");
    if (index < 0)
        fail_msg("no %s", name);
    const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, (size_t)index);
    rs_box box = {.ndim = entry->ndim, .offset = {i, j, k}, .extent = {1, 1, 1}};
    float value;
    assert_int_equal(
        rs_checkpoint_read(checkpoint, (size_t)index, &box, &value, sizeof value), RS_OK);
    return value;
}

/* Everything that `a` has, `b` has with the same bytes, in the same shape, and else so many second
 * names alone. */
static void assert_same(const rs_checkpoint *a, const rs_checkpoint *b, size_t seconds)
{
    size_t found = 0;
    for (size_t i = 0; i < rs_checkpoint_count(b); i++)
        found += rs_checkpoint_entry_at(b, i)->alias_of != NULL;
    assert_int_equal(found, seconds);
    assert_int_equal(rs_checkpoint_count(a) + seconds, rs_checkpoint_count(b));
    for (size_t i = 0; i < rs_checkpoint_count(a); i++) {
        const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(a, i);
        char x[RS_CHECKPOINT_HASH], y[RS_CHECKPOINT_HASH];
        int64_t there = rs_checkpoint_find(b, entry->name, entry->role);
        if (there < 0)
            fail_msg("no %s", entry->name);
        const rs_checkpoint_entry *other = rs_checkpoint_entry_at(b, (size_t)there);
        assert_int_equal(entry->ndim, other->ndim);
        assert_memory_equal(entry->shape, other->shape, sizeof entry->shape);
        assert_int_equal(rs_checkpoint_hash(a, i, x), RS_OK);
        assert_int_equal(rs_checkpoint_hash(b, (size_t)there, y), RS_OK);
        assert_string_equal(x, y);
    }
}

/* ---- GPT-2 ---- */

enum { H = 6, F = 10, L = 2, V = 5, P = 4 };

static rs_model gpt2_model(void)
{
    return (rs_model){.name = "gpt2",
        .family = "gpt2",
        .layers = L,
        .hidden = H,
        .heads = 3,
        .kv_heads = 3,
        .head_dim = 2,
        .ffn = F,
        .vocab = V,
        .tied = true,
        .qkv_bias = true,
        .out_bias = true,
        .mlp_bias = true,
        .layer_norm = true,
        .plain_mlp = true,
        .positions = P};
}

/* Row i, column j of a canonical matrix of a layer. */
static float number(int tensor, int layer, int i, int j)
{
    return (float)(tensor * 100000 + layer * 10000 + i * 100 + j);
}

enum {
    EMBED = 1,
    POSITION,
    NORM1,
    NORM1B,
    Q,
    K,
    V_,
    QB,
    KB,
    VB,
    O,
    OB,
    NORM2,
    NORM2B,
    UP,
    UPB,
    DOWN,
    DOWNB,
    NORM,
    NORMB
};

static void add_rows(const char *name, int tensor, int layer, int rows_, int columns)
{
    float *data = add(name, columns > 0 ? 2 : 1, rows_, columns);
    for (int i = 0; i < rows_; i++)
        for (int j = 0; j < (columns > 0 ? columns : 1); j++)
            data[columns > 0 ? i * columns + j : i] = number(tensor, layer, i, j);
}

/* [in, out], as GPT-2 stores a matrix. */
static void add_turned(const char *name, int tensor, int layer, int out, int in)
{
    float *data = add(name, 2, in, out);
    for (int i = 0; i < out; i++)
        for (int j = 0; j < in; j++)
            data[j * out + i] = number(tensor, layer, i, j);
}

static void add_gpt2(const char *prefix)
{
    char name[96];
#define NAME(rest) (snprintf(name, sizeof name, "%s" rest, prefix), name)
    add_rows(NAME("wte.weight"), EMBED, 0, V, H);
    add_rows(NAME("wpe.weight"), POSITION, 0, P, H);
    for (int l = 0; l < L; l++) {
#define LAYER(rest) (snprintf(name, sizeof name, "%sh.%d." rest, prefix, l), name)
        add_rows(LAYER("ln_1.weight"), NORM1, l, H, 0);
        add_rows(LAYER("ln_1.bias"), NORM1B, l, H, 0);
        float *w = add(LAYER("attn.c_attn.weight"), 2, H, 3 * H);
        float *b = add(LAYER("attn.c_attn.bias"), 1, 3 * H, 0);
        for (int p = 0; p < 3; p++)
            for (int i = 0; i < H; i++) {
                b[p * H + i] = number(QB + p, l, i, 0);
                for (int j = 0; j < H; j++)
                    w[j * 3 * H + p * H + i] = number(Q + p, l, i, j);
            }
        add_turned(LAYER("attn.c_proj.weight"), O, l, H, H);
        add_rows(LAYER("attn.c_proj.bias"), OB, l, H, 0);
        add_rows(LAYER("ln_2.weight"), NORM2, l, H, 0);
        add_rows(LAYER("ln_2.bias"), NORM2B, l, H, 0);
        add_turned(LAYER("mlp.c_fc.weight"), UP, l, F, H);
        add_rows(LAYER("mlp.c_fc.bias"), UPB, l, F, 0);
        add_turned(LAYER("mlp.c_proj.weight"), DOWN, l, H, F);
        add_rows(LAYER("mlp.c_proj.bias"), DOWNB, l, H, 0);
    }
    add_rows(NAME("ln_f.weight"), NORM, 0, H, 0);
    add_rows(NAME("ln_f.bias"), NORMB, 0, H, 0);
}

static void check_canonical(const rs_checkpoint *own)
{
    static const struct {
        const char *name;
        int tensor, layers, rows, columns;
    } tensors[] = {{"embed.weight", EMBED, 0, V, H}, {"position.weight", POSITION, 0, P, H},
        {"layers.attn_norm.weight", NORM1, L, H, 0}, {"layers.attn_norm.bias", NORM1B, L, H, 0},
        {"layers.attn.q.weight", Q, L, H, H}, {"layers.attn.k.weight", K, L, H, H},
        {"layers.attn.v.weight", V_, L, H, H}, {"layers.attn.q.bias", QB, L, H, 0},
        {"layers.attn.k.bias", KB, L, H, 0}, {"layers.attn.v.bias", VB, L, H, 0},
        {"layers.attn.o.weight", O, L, H, H}, {"layers.attn.o.bias", OB, L, H, 0},
        {"layers.mlp_norm.weight", NORM2, L, H, 0}, {"layers.mlp_norm.bias", NORM2B, L, H, 0},
        {"layers.mlp.up.weight", UP, L, F, H}, {"layers.mlp.up.bias", UPB, L, F, 0},
        {"layers.mlp.down.weight", DOWN, L, H, F}, {"layers.mlp.down.bias", DOWNB, L, H, 0},
        {"norm.weight", NORM, 0, H, 0}, {"norm.bias", NORMB, 0, H, 0}};
    assert_int_equal(rs_checkpoint_count(own), 20);
    for (size_t t = 0; t < 20; t++)
        for (int l = 0; l < (tensors[t].layers > 0 ? L : 1); l++)
            for (int i = 0; i < tensors[t].rows; i++)
                for (int j = 0; j < (tensors[t].columns > 0 ? tensors[t].columns : 1); j++) {
                    float found = tensors[t].layers > 0 ? at(own, tensors[t].name, l, i, j)
                                                        : at(own, tensors[t].name, i, j, 0);
                    if (found != number(tensors[t].tensor, l, i, j))
                        fail_msg("%s [%d,%d,%d]: %g", tensors[t].name, l, i, j, (double)found);
                }
}

/* Read, with and without the prefix, beside masks that mean nothing and the tied output layer; and
 * written again as it was. */
static void test_gpt2(void **state)
{
    (void)state;
    rs_model model = gpt2_model();
    rs_space *space = space_of(&model);
    rs_dialect *hub = load("hf");
    rs_checkpoint *source, *own, *back;
    rs_rename_options in = {.space = space}, out = {.to = hub, .space = space};
    begin();
    add_gpt2("");
    add("h.0.attn.bias", 2, P, P);
    add("h.1.attn.masked_bias", 0, 0, 0);
    memcpy(add("lm_head.weight", 2, V, H), rows[0].data, sizeof(float) * V * H);
    source = written();
    if (rs_checkpoint_rename(source, &in, &own) != RS_OK)
        fail_msg("%s", rs_error_message());
    check_canonical(own);
    rs_checkpoint_close(own);
    rs_checkpoint_close(source);
    begin();
    add_gpt2("transformer.");
    source = written();
    assert_int_equal(rs_checkpoint_rename(source, &in, &own), RS_OK);
    check_canonical(own);
    assert_true(rs_checkpoint_is_canonical(own));
    /* From the foreign names, and from the canonical ones with what they tell of the model. */
    assert_int_equal(rs_checkpoint_rename(source, &out, &back), RS_OK);
    assert_same(source, back, 1);
    rs_checkpoint_close(back);
    out.space = NULL;
    assert_int_equal(rs_checkpoint_rename(own, &out, &back), RS_OK);
    assert_same(source, back, 1);
    /* C09: what is called twice in a tied model. */
    int64_t head = rs_checkpoint_find(back, "lm_head.weight", "param");
    assert_true(head >= 0);
    assert_string_equal(
        rs_checkpoint_entry_at(back, (size_t)head)->alias_of, "transformer.wte.weight");
    rs_checkpoint_close(back);
    rs_checkpoint_close(own);
    /* Without a model nothing says where q ends. */
    assert_int_equal(rs_checkpoint_rename(source, &out, &back), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "name the model"));
    rs_checkpoint_close(source);
    rs_dialect_destroy(hub);
    rs_space_destroy(space);
}

/* ---- fused, in groups ---- */

/* B02 and B04: row r of a fused tensor is r; unfused, each has the rows that the definition says.
 * Fused again, the same. */
static void test_fused(void **state)
{
    (void)state;
    static const char text[] =
        "{\"dialect\":\"own\",\"tensors\":["
        "{\"name\":\"l.{0}.qkv\",\"groups\":\"kv_heads\",\"of\":[\"layers.attn.q.weight\","
        "\"layers.attn.k.weight\",\"layers.attn.v.weight\"]},"
        "{\"name\":\"l.{0}.gate_up\",\"of\":[\"layers.mlp.gate.weight\",\"layers.mlp.up.weight\"]},"
        "{\"name\":\"*\",\"of\":\"*\"}]}";
    static const int q[] = {0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15, 16, 17, 18, 19};
    static const int k[] = {8, 9, 20, 21}, v[] = {10, 11, 22, 23};
    rs_model model = {.name = "fused",
        .family = "llama",
        .layers = 1,
        .hidden = 4,
        .heads = 8,
        .kv_heads = 2,
        .head_dim = 2,
        .ffn = 8,
        .vocab = 3,
        .tied = true};
    rs_space *space = space_of(&model);
    rs_dialect *dialect = parse(text);
    rs_checkpoint *source, *own, *back;
    rs_rename_options in = {.from = dialect, .space = space};
    rs_rename_options out = {.from = dialect, .to = dialect, .space = space};
    begin();
    float *qkv = add("l.0.qkv", 2, 24, 4), *gate_up = add("l.0.gate_up", 2, 16, 4);
    for (int i = 0; i < 96; i++)
        qkv[i] = (float)(i / 4);
    for (int i = 0; i < 64; i++)
        gate_up[i] = (float)(i / 4 < 8 ? i / 4 : 100 + i / 4 - 8);
    add("embed.weight", 2, 3, 4);
    add("norm.weight", 1, 4, 0);
    static const char *const stacked[] = {"layers.attn_norm.weight", "layers.mlp_norm.weight"};
    for (int i = 0; i < 2; i++)
        add(stacked[i], 2, 1, 4);
    add("layers.attn.o.weight", 3, 1, 4);
    rows[count - 1].shape[2] = 16;
    rows[count - 1].data = realloc(rows[count - 1].data, 64 * sizeof(float));
    add("layers.mlp.down.weight", 3, 1, 4);
    rows[count - 1].shape[2] = 8;
    rows[count - 1].data = realloc(rows[count - 1].data, 32 * sizeof(float));
    for (int i = count - 2; i < count; i++)
        memset(rows[i].data, 0, sizeof(float) * (size_t)volume(&rows[i]));
    source = written();
    if (rs_checkpoint_rename(source, &in, &own) != RS_OK)
        fail_msg("%s", rs_error_message());
    for (int j = 0; j < 4; j++) {
        for (int i = 0; i < 16; i++)
            assert_true(at(own, "layers.attn.q.weight", 0, i, j) == (float)q[i]);
        for (int i = 0; i < 4; i++) {
            assert_true(at(own, "layers.attn.k.weight", 0, i, j) == (float)k[i]);
            assert_true(at(own, "layers.attn.v.weight", 0, i, j) == (float)v[i]);
        }
        for (int i = 0; i < 8; i++) {
            assert_true(at(own, "layers.mlp.gate.weight", 0, i, j) == (float)i);
            assert_true(at(own, "layers.mlp.up.weight", 0, i, j) == (float)(100 + i));
        }
    }
    assert_int_equal(rs_checkpoint_rename(source, &out, &back), RS_OK);
    assert_same(source, back, 0);
    rs_checkpoint_close(back);
    rs_checkpoint_close(own);
    rs_checkpoint_close(source);
    rs_dialect_destroy(dialect);
    rs_space_destroy(space);
}

/* ---- what is refused ---- */

/* Renames what was added and expects this message; NULL: it is fine. `lenient`: a number of
 * warnings is wanted instead. */
static void expect(const char *why, bool lenient, size_t warnings)
{
    rs_model model = gpt2_model();
    rs_space *space = space_of(&model);
    rs_checkpoint *source = written(), *own = NULL;
    rs_rename_options in = {.space = space, .lenient = lenient};
    rs_status status = rs_checkpoint_rename(source, &in, &own);
    if (why == NULL ? status != RS_OK : strstr(rs_error_message(), why) == NULL)
        fail_msg("wanted %s, found %s", why != NULL ? why : "none", rs_error_message());
    assert_int_equal(status != RS_OK, why != NULL);
    if (why == NULL)
        assert_int_equal(rs_checkpoint_warning_count(own), warnings);
    rs_checkpoint_close(own);
    rs_checkpoint_close(source);
    rs_space_destroy(space);
}

static row *find(const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    fail_msg("no %s", name);
    return NULL;
}

static void drop(const char *name)
{
    row *r = find(name);
    free(r->data);
    *r = rows[--count];
}

static void test_refused(void **state)
{
    (void)state;
    /* C07, C11: two copies of a tied embedding, equal, then not. */
    begin();
    add_gpt2("transformer.");
    float *head = add("lm_head.weight", 2, V, H);
    memcpy(head, rows[0].data, sizeof(float) * V * H);
    expect(NULL, false, 0);
    head[2 * H + 1] = 7.5f;
    expect("\"transformer.wte.weight\" and of \"lm_head.weight\" are one tensor, but differ: at "
           "[2:3,1:2] they have 100201 and 7.5",
        false, 0);
    /* F01: two names that are one without wrappers. */
    begin();
    add_gpt2("transformer.");
    memcpy(add("module.transformer._orig_mod.ln_f.weight", 1, H, 0),
        find("transformer.ln_f.weight")->data, sizeof(float) * H);
    expect(NULL, false, 0);
    rows[count - 1].data[5] = 0;
    expect("are one tensor, but differ: at [5:6]", false, 0);
    /* What is there twice, fused and apart. */
    begin();
    add_gpt2("");
    add("model.layers.1.self_attn.k_proj.bias", 1, H, 0);
    expect("\"layers.attn.k.bias\" is held twice", false, 0);
    /* A layer, and a whole tensor, that lack; also where others may. */
    begin();
    add_gpt2("");
    drop("h.1.mlp.c_fc.bias");
    expect("\"layers.mlp.up.bias\": no file holds its elements", false, 0);
    expect("no file holds its elements", true, 0);
    drop("ln_f.bias");
    drop("h.0.mlp.c_fc.bias");
    expect("has nothing of the model's \"layers.mlp.up.bias\"", false, 0);
    expect(NULL, true, 0);
    /* One too many: refused, or left out with a warning. */
    begin();
    add_gpt2("");
    add("h.2.ln_1.weight", 1, H, 0);
    add("score.weight", 2, 2, H);
    expect("index 2 of dimension 0, but layers.attn_norm.weight has 2", false, 0);
    expect(NULL, true, 2);
    drop("h.2.ln_1.weight");
    expect("tensor score.weight is none of the model's", false, 0);
    /* H10: another shape; rows that may be padding. */
    begin();
    add_gpt2("");
    find("h.0.mlp.c_fc.weight")->shape[0]--;
    expect("\"h.0.mlp.c_fc.weight\": the model wants [0:6,0:10], the checkpoint has [0:5,0:10]",
        false, 0);
    /* A17: it has as many elements as a flat shard of it has. */
    begin();
    add_gpt2("");
    find("h.0.mlp.c_fc.weight")->ndim = 1;
    find("h.0.mlp.c_fc.weight")->shape[0] = 8;
    expect(
        "the checkpoint has [0:8]; 60/8 elements are 8: one may be a rank's flat shard", false, 0);
    begin();
    add_gpt2("");
    row *embed = find("wte.weight");
    embed->shape[0] = V + 1;
    embed->data = realloc(embed->data, sizeof(float) * (V + 1) * H);
    memset(embed->data + V * H, 0, sizeof(float) * H);
    expect("a rules file can say so", false, 0);
    /* Layers of unlike types. */
    begin();
    add_gpt2("");
    find("h.1.ln_2.bias")->dtype = "BF16";
    expect("have unlike types", false, 0);
    /* None of the names at all. */
    begin();
    add("a", 1, 3, 0);
    expect("none of the built-in dialects", false, 0);
}

/* `last`: the second of two layers, of which the first is number 3. */
static void check_layers(int64_t last)
{
    int64_t layers[] = {3, last};
    char name[16];
    snprintf(name, sizeof name, "b%d.up", (int)last);
    static const char text[] = "{\"dialect\":\"own\",\"tensors\":[{\"name\":\"b{0}.up\","
                               "\"of\":\"late\"},{\"name\":\"*\",\"of\":\"*\"}]}";
    rs_tensor late = {
        .name = "late", .ndim = 2, .shape = {2, 4}, .axis = {RS_AXIS_LAYER}, .layer_first = 3};
    late.layers = layers;
    rs_tensor embed = {.name = "embed.weight", .ndim = 2, .shape = {3, 4}};
    rs_tensor norm = {.name = "layers.attn_norm.weight", .ndim = 2, .shape = {2, 4}};
    rs_dialect *dialect = parse(text);
    rs_checkpoint *own, *back;
    rs_space *space;
    assert_int_equal(rs_space_create(&space), RS_OK);
    assert_int_equal(rs_space_add_tensor(space, &late, NULL), RS_OK);
    assert_int_equal(rs_space_add_tensor(space, &embed, NULL), RS_OK);
    assert_int_equal(rs_space_add_tensor(space, &norm, NULL), RS_OK);
    begin();
    add("b3.up", 1, 4, 0)[1] = 31;
    add(name, 1, 4, 0)[1] = 41;
    add("embed.weight", 2, 3, 4);
    add("layers.attn_norm.weight", 2, 2, 4);
    rs_checkpoint *source = written();
    rs_rename_options in = {.from = dialect, .space = space}, out = {.to = dialect};
    assert_int_equal(rs_checkpoint_rename(source, &in, &own), RS_OK);
    assert_true(at(own, "late", 0, 1, 0) == 31 && at(own, "late", 1, 1, 0) == 41);
    if (rs_checkpoint_rename(own, &out, &back) != RS_OK)
        fail_msg("%s", rs_error_message());
    assert_same(source, back, 0);
    rs_checkpoint_close(back);
    rs_checkpoint_close(own);
    rs_checkpoint_close(source);
    rs_space_destroy(space);
    rs_dialect_destroy(dialect);
}

/* Layers that do not begin with the first, or do not follow each other: what a checkpoint tells of
 * itself says which they are. */
static void test_first_layer(void **state)
{
    (void)state;
    check_layers(4);
    check_layers(9);
}

/* The N-th allocation fails, N = 1, 2, ...: the call says so and nothing is left (run under asan).
 */
static void test_allocation_failures(void **state)
{
    (void)state;
    rs_model model = gpt2_model();
    rs_space *space = space_of(&model);
    rs_dialect *hub = load("hf");
    rs_rename_options out = {.to = hub, .space = space};
    rs_status status = RS_ERR_NO_MEMORY;
    size_t n = 0;
    begin();
    add_gpt2("");
    memcpy(add("lm_head.weight", 2, V, H), rows[0].data, sizeof(float) * V * H);
    rs_checkpoint *source = written();
    while (status != RS_OK) {
        rs_checkpoint *back = NULL;
        rs_alloc_fail_at(++n);
        status = rs_checkpoint_rename(source, &out, &back);
        size_t made = rs_alloc_fail_at(0);
        assert_true(status != RS_OK || made < n); /* none that failed was passed over */
        if (status != RS_OK && status != RS_ERR_NO_MEMORY)
            fail_msg("%s", rs_error_message());
        assert_true(n < 20000);
        rs_checkpoint_close(back);
    }
    assert_true(n > 100);
    rs_checkpoint_close(source);
    rs_dialect_destroy(hub);
    rs_space_destroy(space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_first_layer),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
