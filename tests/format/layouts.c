/*
 * Real DeepSpeed checkpoints loaded under 32 odd layouts (primes, uneven, more ranks than layers,
 * heads or rows, ranks with nothing), and saved from one of them and loaded under all again: every
 * element of every shard against the whole tensor, whose hash is that of the fixture's truth.
 *
 * A11, A18, B01, B12, K03.
 */
#include "truth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/publish.h"
#include "reshard/dialect.h"
#include "reshard/layout.h"
#include "reshard/model.h"
#include "reshard/native.h"
#include "support/save.h"

/* The model of the fixtures. */
static const rs_model model = {.name = "fixture",
    .family = "fixture",
    .layers = 2,
    .hidden = 24,
    .heads = 6,
    .kv_heads = 2,
    .head_dim = 4,
    .ffn = 40,
    .vocab = 61,
    .tied = true,
    .qkv_bias = true,
    .mlp_bias = true,
    .layer_norm = true,
    .plain_mlp = true,
    .positions = 13};

static const char names[] =
    "{\"dialect\":\"fixture\",\"tensors\":["
    "{\"name\":\"embed.weight\",\"of\":\"embed.weight\"},"
    "{\"name\":\"pos.weight\",\"of\":\"position.weight\"},"
    "{\"name\":\"layers.{0}.ln1.weight\",\"of\":\"layers.attn_norm.weight\"},"
    "{\"name\":\"layers.{0}.ln1.bias\",\"of\":\"layers.attn_norm.bias\"},"
    "{\"name\":\"layers.{0}.attn.q_proj.weight\",\"of\":\"layers.attn.q.weight\"},"
    "{\"name\":\"layers.{0}.attn.k_proj.weight\",\"of\":\"layers.attn.k.weight\"},"
    "{\"name\":\"layers.{0}.attn.v_proj.weight\",\"of\":\"layers.attn.v.weight\"},"
    "{\"name\":\"layers.{0}.attn.q_proj.bias\",\"of\":\"layers.attn.q.bias\"},"
    "{\"name\":\"layers.{0}.attn.k_proj.bias\",\"of\":\"layers.attn.k.bias\"},"
    "{\"name\":\"layers.{0}.attn.v_proj.bias\",\"of\":\"layers.attn.v.bias\"},"
    "{\"name\":\"layers.{0}.attn.o_proj.weight\",\"of\":\"layers.attn.o.weight\"},"
    "{\"name\":\"layers.{0}.ln2.weight\",\"of\":\"layers.mlp_norm.weight\"},"
    "{\"name\":\"layers.{0}.ln2.bias\",\"of\":\"layers.mlp_norm.bias\"},"
    "{\"name\":\"layers.{0}.up.weight\",\"of\":\"layers.mlp.up.weight\"},"
    "{\"name\":\"layers.{0}.up.bias\",\"of\":\"layers.mlp.up.bias\"},"
    "{\"name\":\"layers.{0}.down.weight\",\"of\":\"layers.mlp.down.weight\"},"
    "{\"name\":\"layers.{0}.down.bias\",\"of\":\"layers.mlp.down.bias\"},"
    "{\"name\":\"ln_f.weight\",\"of\":\"norm.weight\"},"
    "{\"name\":\"ln_f.bias\",\"of\":\"norm.bias\"}]}";

static const char *const layouts[] = {"dp=1", "tp=3", "tp=5", "tp=7", "tp=11", "tp=61", "tp=64",
    "dp=3,zero=1", "dp=5,zero=1", "dp=7,zero=2", "dp=13,zero=3", "dp=29,zero=3",
    "dp=11,zero=3,zero_cut=param", "dp=5,zero=3,zero_cut=dim0", "dp=7,zero=1,zero_cut=param",
    "pp=2", "pp=3", "pp=5", "tp=2,pp=3", "tp=7,pp=2", "tp=3,pp=2,dp=2,zero=1", "tp=3,dp=5,zero=1",
    "tp=5,dp=3,zero=3", "cp=3", "cp=2,dp=3,zero=2", "tp=3,cp=2,dp=2,zero=3,zero_cut=dim0",
    "pp=2,vpp=2", "pp=3,stages=0/-/1", "dp=6,zero=1,shard=3", "dp=6,zero=3,shard=2,zero_cut=param",
    "tp=2,dp=7,zero=1,order=dp-tp-cp-ep-pp", "tp=3,pp=2,dp=3,zero=2,order=pp-tp-cp-ep-dp"};

#define LAYOUTS (sizeof layouts / sizeof *layouts)

static int64_t elements, ranks;

/* The space of a run: what is frozen has a value and no more; a fp32 run has no masters. */
static rs_space *space_of(const rs_checkpoint *checkpoint, rs_dtype dtype)
{
    rs_space *space;
    OK(rs_model_space(&model, dtype, &space));
    for (int t = 0; t < rs_space_tensor_count(space); t++)
        for (int r = 0; r < rs_space_role_count(space); r++)
            if (rs_checkpoint_find(
                    checkpoint, rs_space_tensor(space, t)->name, rs_space_role(space, r)->name) < 0)
                OK(rs_space_set_dtype(space, t, r, RS_DTYPE_NONE));
    return space;
}

/* Whole tensors by [role][tensor]. */
typedef struct wholes {
    char *data[4][32];
} wholes;

static void read_wholes(const rs_checkpoint *checkpoint, const rs_space *space, wholes *out)
{
    memset(out, 0, sizeof *out);
    for (int t = 0; t < rs_space_tensor_count(space); t++)
        for (int r = 0; r < rs_space_role_count(space); r++) {
            const rs_tensor *tensor = rs_space_tensor(space, t);
            rs_box whole = rs_box_whole(tensor->ndim, tensor->shape);
            rs_dtype dtype = rs_space_dtype(space, t, r);
            size_t bytes = (size_t)rs_box_volume(&whole) * rs_dtype_size(dtype);
            if (dtype == RS_DTYPE_NONE)
                continue;
            out->data[r][t] = malloc(bytes);
            OK(rs_checkpoint_read(checkpoint,
                (size_t)rs_checkpoint_find(checkpoint, tensor->name, rs_space_role(space, r)->name),
                &whole, out->data[r][t], bytes));
        }
}

static void free_wholes(wholes *w)
{
    for (int r = 0; r < 4; r++)
        for (int t = 0; t < 32; t++)
            free(w->data[r][t]);
}

/* Each element of a shard is the whole tensor's at its index. */
static void check_shard(
    const rs_space *space, const wholes *w, const rs_shard *shard, const char *data)
{
    const rs_tensor *tensor = rs_space_tensor(space, shard->tensor);
    size_t size = rs_dtype_size(shard->dtype);
    const char *whole = w->data[shard->role][shard->tensor];
    assert_non_null(whole);
    for (int64_t e = 0; e < rs_box_volume(&shard->box); e++) {
        int64_t rest = e, index = 0, step = 1, at = 0;
        for (int d = tensor->ndim - 1; d >= 0; d--) {
            int64_t here = rest % shard->box.extent[d];
            rest /= shard->box.extent[d];
            index += (shard->box.offset[d] + here) * step;
            step *= tensor->shape[d];
            at += here * shard->stride[d];
        }
        if (memcmp(data + at, whole + (size_t)index * size, size) != 0)
            fail_msg("%s, element %d", tensor->name, (int)index);
        elements++;
    }
}

typedef rs_status (*loader)(const void *from, const rs_placement *placement, int rank,
    const rs_memory *memory, int64_t *bytes);

static rs_status load_any(const void *from, const rs_placement *placement, int rank,
    const rs_memory *memory, int64_t *bytes)
{
    return rs_checkpoint_load(from, placement, rank, memory, bytes);
}

static rs_status load_native(const void *from, const rs_placement *placement, int rank,
    const rs_memory *memory, int64_t *bytes)
{
    return rs_native_load(from, placement, rank, memory, bytes);
}

/* All ranks of all layouts; K03: they read as many bytes as their shards have. */
static void check_layouts(const rs_space *space, const wholes *w, loader load, const void *from)
{
    for (size_t i = 0; i < LAYOUTS; i++) {
        rs_layout layout;
        rs_placement *placement;
        OK(rs_layout_parse(layouts[i], &layout));
        OK(rs_layout_placement(space, &layout, &placement));
        for (int r = 0; r < rs_layout_world(&layout); r++) {
            rs_memory memory = {0};
            rs_shard_list shards = {0};
            int64_t read = -1, wanted = 0;
            OK(rs_memory_allocate(placement, r, &memory));
            for (size_t k = 0; k < memory.count; k++)
                memset(memory.regions[k].data, 0xA5, (size_t)memory.regions[k].bytes);
            OK(load(from, placement, r, &memory, &read));
            OK(rs_placement_shards(placement, r, -1, &shards));
            for (size_t k = 0; k < shards.count; k++) {
                check_shard(space, w, &shards.items[k], rs_memory_shard(&memory, &shards.items[k]));
                wanted += rs_box_volume(&shards.items[k].box) *
                          (int64_t)rs_dtype_size(shards.items[k].dtype);
            }
            assert_int_equal(read, wanted);
            rs_shard_list_fini(&shards);
            rs_memory_free(&memory);
            ranks++;
        }
        rs_placement_destroy(placement);
    }
}

static rs_status load_rank(
    void *checkpoint, const rs_placement *placement, int rank, const rs_memory *memory)
{
    return rs_checkpoint_load(checkpoint, placement, rank, memory, NULL);
}

/* Saves what a checkpoint has from all ranks of a layout, as a native one. */
static void save_under(
    rs_checkpoint *checkpoint, const rs_space *space, const char *text, const char *path)
{
    rs_save_name name = {path, 3, "test"};
    OK(save_all(&name, space, text, load_rank, checkpoint));
}

static void check_fixture(const char *fixture, rs_dtype dtype, const char *saved_under)
{
    char path[1200], saved[600];
    rs_checkpoint *foreign, *own, *again;
    rs_native *native;
    rs_dialect *dialect;
    rs_space *plain;
    wholes w;
    printf("  %s\n", fixture);
    snprintf(path, sizeof path, "%s/checkpoint", fixture_family(fixture));
    snprintf(saved, sizeof saved, "%s/native", scratch_folder());
    OK(rs_checkpoint_open(path, NULL, &foreign));
    OK(rs_dialect_parse(names, sizeof names - 1, "fixture", &dialect));
    OK(rs_model_space(&model, dtype, &plain));
    /* What the model has not (a scale of the logits) is left out. */
    rs_rename_options how = {.from = dialect, .space = plain, .lenient = true};
    OK(rs_checkpoint_rename(foreign, &how, &own));
    rs_space *space = space_of(own, dtype);
    read_wholes(own, space, &w);
    check_layouts(space, &w, load_any, own);
    save_under(own, space, saved_under, saved);
    OK(rs_native_open_step(saved, 3, &native));
    OK(rs_native_fits(native, space, 0, 1));
    check_layouts(space, &w, load_native, native);
    rs_native_close(native);
    OK(rs_checkpoint_open(saved, NULL, &again));
    check_layouts(space, &w, load_any, again);
    OK(rs_checkpoint_check(again));
    assert_int_equal(rs_checkpoint_warning_count(again), 0);
    rs_checkpoint_close(again);
    OK(rs_remove_folder(saved));
    free_wholes(&w);
    rs_space_destroy(space);
    rs_space_destroy(plain);
    rs_dialect_destroy(dialect);
    rs_checkpoint_close(own);
    rs_checkpoint_close(foreign);
}

static void test_fixtures(void **state)
{
    (void)state;
    check_fixture("deepspeed/z1-fp32-w2", RS_DTYPE_F32, "tp=3,pp=2,dp=2,zero=1");
    check_fixture("deepspeed/z2-bf16-w4", RS_DTYPE_BF16, "dp=7,zero=3");
    check_fixture("deepspeed/z3-bf16-w4", RS_DTYPE_BF16, "tp=5");
    check_fixture("deepspeed/z3-fp32-w3-sub", RS_DTYPE_F32, "dp=5,zero=3,zero_cut=dim0");
    printf("%d ranks, %d elements\n", (int)ranks, (int)elements);
    assert_true(ranks > 3000);
    assert_peak_below(300);
}

/* What lacks, or is of another type or shape, is named. */
static void test_refused(void **state)
{
    (void)state;
    char path[1200];
    rs_checkpoint *foreign, *own;
    rs_dialect *dialect;
    rs_space *space;
    rs_placement *placement;
    rs_layout layout;
    rs_memory memory = {0};
    snprintf(path, sizeof path, "%s/checkpoint", fixture_family("deepspeed/z2-bf16-w4"));
    OK(rs_checkpoint_open(path, NULL, &foreign));
    OK(rs_dialect_parse(names, sizeof names - 1, "fixture", &dialect));
    for (int i = 0; i < 2; i++) {
        OK(rs_model_space(&model, i == 0 ? RS_DTYPE_F32 : RS_DTYPE_BF16, &space));
        rs_rename_options how = {.from = dialect, .space = space, .lenient = true};
        OK(rs_checkpoint_rename(foreign, &how, &own));
        OK(rs_layout_parse("tp=2", &layout));
        OK(rs_layout_placement(space, &layout, &placement));
        OK(rs_memory_allocate(placement, 0, &memory));
        assert_int_equal(rs_checkpoint_load(own, placement, 0, &memory, NULL),
            i == 0 ? RS_ERR_MISMATCH : RS_ERR_NOT_FOUND);
        assert_non_null(
            strstr(rs_error_message(), i == 0 ? "wanted float32, the checkpoint has bfloat16"
                                              : "has no master of \"position.weight\""));
        rs_memory_free(&memory);
        rs_placement_destroy(placement);
        rs_checkpoint_close(own);
        rs_space_destroy(space);
    }
    rs_dialect_destroy(dialect);
    rs_checkpoint_close(foreign);
}

int main(void)
{
    fixture_family("deepspeed");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
