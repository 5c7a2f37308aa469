/* Layouts as text, and the numbers of docs/layouts.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "layout/mesh.h"
#include "reshard/layout.h"
#include "reshard/model.h"

static rs_layout parsed(const char *text)
{
    rs_layout layout;
    rs_status status = rs_layout_parse(text, &layout);
    if (status != RS_OK)
        fail_msg("%s: %s", text, rs_error_message());
    return layout;
}

static void test_text(void **state)
{
    (void)state;
    static const struct {
        const char *given;
        const char *canonical;
        const char *meaning;
    } rows[] = {
        {"tp=2,pp=4,dp=8,zero=1", "tp=2,pp=4,dp=8,zero=1", "world 64 = tp2 cp1 dp8 pp4"},
        {"zero=1,dp=8,pp=4,tp=2", "tp=2,pp=4,dp=8,zero=1", "world 64 = tp2 cp1 dp8 pp4"},
        {"dp=1", "dp=1", "world 1 = tp1 cp1 dp1 pp1"},
        {"tp=1,zero=0", "dp=1", "world 1 = tp1 cp1 dp1 pp1"},
        {"pp=3,zero=2", "pp=3,zero=2", "world 3 = tp1 cp1 dp1 pp3"},
        {"tp=4,order=tp-cp-ep-dp-pp", "tp=4", "world 4 = tp4 cp1 dp1 pp1"},
        {"dp=5,order=tp-pp-dp", "dp=5,order=tp-pp-dp", "world 5 = tp1 cp1 dp5 pp1"},
        {"order=pp-ep-dp-tp", "order=pp-dp-tp", "world 1 = tp1 cp1 dp1 pp1"},
        {"cp=1,ep=1,etp=1,vpp=1,sp=off,zero_cut=concat,dp=3,shard=3", "dp=3",
            "world 3 = tp1 cp1 dp3 pp1"},
        {"etp=4,tp=4", "tp=4", "world 4 = tp4 cp1 dp1 pp1"},
        {"dp=2147483647", "dp=2147483647", "world 2147483647 = tp1 cp1 dp2147483647 pp1"},
        {"tp=4,pp=8,dp=4,ep=8,etp=1,zero=1", "tp=4,pp=8,dp=4,ep=8,etp=1,zero=1",
            "world 128 = tp4 cp1 dp4 pp8; experts per stage: etp1 ep8 edp2"},
        {"ep=4,cp=2,tp=2,dp=4", "tp=2,dp=4,cp=2,ep=4",
            "world 16 = tp2 cp2 dp4 pp1; experts per stage: etp2 ep4 edp2"},
        {"tp=2,dp=3,etp=3", "tp=2,dp=3,etp=3",
            "world 6 = tp2 cp1 dp3 pp1; experts per stage: etp3 ep1 edp2"},
        {"tp=2,etp=2,dp=2,ep=2", "tp=2,dp=2,ep=2",
            "world 4 = tp2 cp1 dp2 pp1; experts per stage: etp2 ep2 edp1"},
        {"dp=4,cp=2,zero=1,shard=8", "dp=4,cp=2,zero=1", "world 8 = tp1 cp2 dp4 pp1"},
        {"dp=4,cp=2,zero=1,shard=2,zero_cut=dim0", "dp=4,cp=2,zero=1,shard=2,zero_cut=dim0",
            "world 8 = tp1 cp2 dp4 pp1"},
        /* How ZeRO cuts says nothing where it does not. */
        {"dp=4,shard=2,zero_cut=param", "dp=4", "world 4 = tp1 cp1 dp4 pp1"},
        {"dp=2,zero=3,zero_cut=param", "dp=2,zero=3,zero_cut=param", "world 2 = tp1 cp1 dp2 pp1"},
        {"pp=2,vpp=3,sp=on", "pp=2,vpp=3,sp=on", "world 2 = tp1 cp1 dp1 pp2"},
        {"pp=4,stages=0-5/6-10/11/-", "pp=4,stages=0-5/6-10/11/-", "world 4 = tp1 cp1 dp1 pp4"},
        {"stages=-/0-0/1-1/-,pp=2,vpp=2", "pp=2,vpp=2,stages=-/0/1/-", "world 2 = tp1 cp1 dp1 pp2"},
        /* The place of an axis of size 1 that is on one mesh only says nothing; that of tp, dp and
         * pp may, as etp and edp stand there. */
        {"order=ep-tp-dp-cp-pp", "dp=1", "world 1 = tp1 cp1 dp1 pp1"},
        {"cp=2,order=tp-dp-cp-pp", "cp=2,order=tp-dp-cp-pp", "world 2 = tp1 cp2 dp1 pp1"},
        {"cp=2,order=tp-ep-cp-dp-pp", "cp=2", "world 2 = tp1 cp2 dp1 pp1"},
        {"cp=2,ep=2,order=tp-ep-cp-dp-pp", "cp=2,ep=2,order=tp-ep-cp-dp-pp",
            "world 2 = tp1 cp2 dp1 pp1; experts per stage: etp1 ep2 edp1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[RS_LAYOUT_TEXT];
        rs_layout layout = parsed(rows[i].given);
        assert_string_equal(rs_layout_format(&layout, text), rows[i].canonical);
        rs_layout again = parsed(text);
        assert_true(rs_layout_equal(&layout, &again));
        assert_string_equal(rs_layout_describe(&layout, text), rows[i].meaning);
    }
    /* Nor does it stay in the layout: whoever raises zero later divides as usual. */
    rs_layout idle = parsed("dp=4,shard=2,zero_cut=param");
    assert_true(idle.shard == 0 && idle.zero_cut == RS_CUT_CONCAT);
    rs_layout a = parsed("tp=2,dp=2");
    rs_layout b = parsed("tp=2,dp=2,order=dp-tp-pp");
    rs_layout c = parsed("tp=2,dp=2,zero=1");
    assert_false(rs_layout_equal(&a, &b));
    assert_false(rs_layout_equal(&a, &c));
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        rs_status status;
        const char *words[3];
    } rows[] = {
        {"", RS_ERR_ARGUMENT, {"key=value", "tp=2,pp=4"}},
        {"tp", RS_ERR_ARGUMENT, {"\"tp\"", "key=value"}},
        {"tp=2,,dp=2", RS_ERR_ARGUMENT, {"key=value"}},
        {"tp=2,", RS_ERR_ARGUMENT, {"key=value"}},
        {"=2", RS_ERR_ARGUMENT, {"the key"}},
        {"tp=", RS_ERR_ARGUMENT, {"the value"}},
        {"a_key_of_many_letters=1", RS_ERR_ARGUMENT, {"the key"}},
        {"tpp=2", RS_ERR_ARGUMENT, {"tpp", "tp, pp, dp, zero, order"}},
        {" tp=2", RS_ERR_ARGUMENT, {"unknown key"}},
        {"tp=0", RS_ERR_ARGUMENT, {"tp=0", "from 1 on"}},
        {"tp=-1", RS_ERR_ARGUMENT, {"tp=-1", "from 1 on"}},
        {"tp=+1", RS_ERR_ARGUMENT, {"tp=+1"}},
        {"tp=2x", RS_ERR_ARGUMENT, {"tp=2x"}},
        {"tp=99999999999999999999", RS_ERR_ARGUMENT, {"tp=9999"}},
        {"dp=2147483648", RS_ERR_ARGUMENT, {"dp=2147483648"}},
        {"tp=65536,pp=65536", RS_ERR_ARGUMENT, {"tp=65536,pp=65536", "product"}},
        {"tp=2,tp=2", RS_ERR_ARGUMENT, {"tp is given twice"}},
        {"zero=0,zero=0", RS_ERR_ARGUMENT, {"zero is given twice"}},
        {"zero=4", RS_ERR_ARGUMENT, {"zero=4", "0, 1, 2 or 3"}},
        {"order=tp-dp", RS_ERR_ARGUMENT, {"order=tp-dp", "once each"}},
        {"order=tp-dp-pp-tp", RS_ERR_ARGUMENT, {"once each"}},
        {"order=tp-dp-pp-", RS_ERR_ARGUMENT, {"once each"}},
        {"order=tp-dp-pp-cp-cp", RS_ERR_ARGUMENT, {"once each"}},
        {"order=tp-dp-xp", RS_ERR_ARGUMENT, {"once each"}},
        {"sp=4", RS_ERR_ARGUMENT, {"use cp=4"}},
        {"sp=yes", RS_ERR_ARGUMENT, {"on or off"}},
        {"cp=0", RS_ERR_ARGUMENT, {"cp=0", "from 1 on"}},
        {"etp=0", RS_ERR_ARGUMENT, {"etp=0", "from 1 on"}},
        {"shard=0", RS_ERR_ARGUMENT, {"shard=0", "from 1 on"}},
        {"sp=on,sp=on", RS_ERR_ARGUMENT, {"sp is given twice"}},
        /* Experts: the rule, and the nearest that keeps it. */
        {"ep=8", RS_ERR_ARGUMENT, {"ep=8", "etp x ep must divide tp x cp x dp = 1", "is dp=1"}},
        {"dp=12,ep=5", RS_ERR_ARGUMENT, {"ep=5", "= 12", "is dp=12,ep=4"}},
        {"tp=4,dp=3,ep=5,etp=1", RS_ERR_ARGUMENT,
            {"etp=1,ep=5", "= 12", "is tp=4,dp=3,ep=4,etp=1"}},
        {"tp=2,etp=4", RS_ERR_ARGUMENT, {"etp=4", "= 2", "is tp=2"}},
        {"tp=2,dp=3,etp=4,ep=2", RS_ERR_ARGUMENT, {"etp=4,ep=2", "= 6", "is tp=2,dp=3,ep=2,etp=3"}},
        {"dp=2147483647,ep=2147483646", RS_ERR_ARGUMENT, {"is dp=2147483647,ep=2147483647"}},
        {"dp=4,cp=3,zero=1,shard=5", RS_ERR_ARGUMENT,
            {"shard=5", "dp x cp = 12", "is dp=4,cp=3,zero=1,shard=4"}},
        /* Stages: all layers, in order, as many as there are. */
        {"pp=2,stages=0-5/6-10/11-12", RS_ERR_ARGUMENT,
            {"lists 3 stages, pp x vpp = 2", "is pp=3,stages=0-5/6-10/11-12"}},
        {"pp=2,vpp=2,stages=0/1", RS_ERR_ARGUMENT, {"lists 2 stages", "is vpp=2,stages=0/1"}},
        {"pp=2,stages=0-5/7-10", RS_ERR_ARGUMENT, {"stage 1 is \"7-10\"", "from 6 on"}},
        {"pp=2,stages=1-5/6-10", RS_ERR_ARGUMENT, {"stage 0 is \"1-5\"", "from 0 on"}},
        {"pp=2,stages=3-1", RS_ERR_ARGUMENT, {"stage 0 is \"3-1\""}},
        {"pp=2,stages=0-1/", RS_ERR_ARGUMENT, {"stage 1 is \"\"", "\"-\" for none"}},
        {"pp=1,stages=0-1x", RS_ERR_ARGUMENT, {"stage 0 is \"0-1x\""}},
        {"pp=1,stages=0-10000", RS_ERR_ARGUMENT, {"stage 0"}},
        {"stages=-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/"
         "-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-/-",
            RS_ERR_ARGUMENT, {"64 stages at most"}},
        {"cp=2,order=tp-dp-pp", RS_ERR_ARGUMENT, {"leaves out cp, whose size is 2", "is cp=2"}},
        {"cp=2,order=dp-tp-pp", RS_ERR_ARGUMENT, {"is cp=2,order=dp-tp-cp-pp"}},
        {"dp=2,ep=2,order=tp-cp-dp-pp", RS_ERR_ARGUMENT,
            {"leaves out ep, whose size is 2", "is dp=2,ep=2"}},
        {"cp=2,dp=2,ep=2,order=pp-tp-dp", RS_ERR_ARGUMENT,
            {"leaves out cp, whose size is 2", "is dp=2,cp=2,ep=2,order=pp-tp-cp-ep-dp"}},
        {"pp=65536,vpp=65536", RS_ERR_ARGUMENT, {"pp=65536,vpp=65536", "number of stages"}},
        {"zero_cut=all", RS_ERR_ARGUMENT, {"concat, param or dim0"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rs_layout layout;
        rs_status status = rs_layout_parse(rows[i].text, &layout);
        if (status != rows[i].status)
            fail_msg("%s: %s", rows[i].text, rs_status_name(status));
        for (int w = 0; w < 3 && rows[i].words[w] != NULL; w++)
            if (strstr(rs_error_message(), rows[i].words[w]) == NULL)
                fail_msg(
                    "%s: \"%s\" is not in: %s", rows[i].text, rows[i].words[w], rs_error_message());
    }
}

/* What the text cannot say, a program can. */
static void test_check(void **state)
{
    (void)state;
    const rs_layout good = parsed("tp=2,pp=2,dp=2,zero=1,stages=0-1/2-3");
    assert_int_equal(rs_layout_check(&good), RS_OK);
    rs_layout rows[12];
    const char *words[12];
    int count = 0;
#define ROW(member, value, text)                                                                   \
    do {                                                                                           \
        rows[count] = good;                                                                        \
        rows[count].member = (value);                                                              \
        words[count++] = (text);                                                                   \
    } while (0)
    ROW(tp, 0, "tp=0,pp=2,dp=2,cp=1: each must be at least 1");
    ROW(pp, -2, "tp=2,pp=-2,dp=2,cp=1: each must be at least 1");
    ROW(dp, 0, "dp=0,cp=1: each must be at least 1");
    ROW(cp, 0, "cp=0: each must be at least 1");
    ROW(ep, 0, "ep=0,etp=0,vpp=1,shard=0: each must be at least 1");
    ROW(etp, -1, "etp=-1,vpp=1,shard=0: each must be at least 1");
    ROW(vpp, 0, "vpp=0,shard=0: each must be at least 1");
    ROW(shard, -1, "shard=-1: each must be at least 1");
    ROW(zero, 4, "zero=4: 0, 1, 2 or 3 is wanted");
    ROW(zero_cut, (rs_zero_cut)3, "zero_cut 3: there is none");
    ROW(order[1], RS_MESH_TP, "the order must have each of tp, cp, ep, dp and pp once");
    ROW(stage_end[1], 1, "stage 1 would end with layer 0, before it begins");
#undef ROW
    for (int i = 0; i < count; i++) {
        assert_int_equal(rs_layout_check(&rows[i]), RS_ERR_ARGUMENT);
        if (strstr(rs_error_message(), words[i]) == NULL)
            fail_msg("\"%s\" is not in: %s", words[i], rs_error_message());
    }
}

static void test_coords(void **state)
{
    (void)state;
    /* The default order: tp fastest, then dp, then pp. */
    rs_layout layout = parsed("tp=2,pp=2,dp=3");
    rs_coords at = rs_layout_coords(&layout, 9);
    assert_int_equal(at.tp, 1);
    assert_int_equal(at.dp, 1);
    assert_int_equal(at.pp, 1);
    layout = parsed("tp=2,pp=2,dp=3,order=pp-tp-dp");
    at = rs_layout_coords(&layout, 9);
    assert_int_equal(at.pp, 1);
    assert_int_equal(at.tp, 0);
    assert_int_equal(at.dp, 2);
    for (int rank = 0; rank < 12; rank++)
        assert_int_equal(rs_layout_rank(&layout, rs_layout_coords(&layout, rank)), rank);
}

static rs_tensor tensor_of(rs_axis axis, int64_t units, int64_t unit, int64_t group)
{
    return (rs_tensor){.name = "t",
        .ndim = 1,
        .shape = {units * unit},
        .axis = {axis},
        .unit = {unit},
        .kv_group = group};
}

static void expect_ranges(
    const char *layout_text, const rs_tensor *tensor, int64_t unit, const int64_t (*ranges)[2])
{
    rs_layout layout = parsed(layout_text);
    for (int tp = 0; tp < layout.tp; tp++) {
        int64_t begin;
        int64_t end;
        rs_layout_tp_range(&layout, tensor, 0, tp, &begin, &end);
        assert_int_equal(begin, ranges[tp][0] * unit);
        assert_int_equal(end, ranges[tp][1] * unit);
    }
}

static void test_tp_ranges(void **state)
{
    (void)state;
    /* 28 query heads and 4 key/value heads at tp=3: 10, 10, 8 query heads. */
    rs_tensor q = tensor_of(RS_AXIS_Q_HEAD, 28, 128, 0);
    rs_tensor kv = tensor_of(RS_AXIS_KV_HEAD, 4, 128, 7);
    expect_ranges("tp=3", &q, 128, (const int64_t[][2]){{0, 10}, {10, 20}, {20, 28}});
    expect_ranges("tp=3", &kv, 128, (const int64_t[][2]){{0, 2}, {1, 3}, {2, 4}});
    /* 12/4 at tp=3: 4, 4, 4 query heads, one and a third groups each. */
    q = tensor_of(RS_AXIS_Q_HEAD, 12, 2, 0);
    kv = tensor_of(RS_AXIS_KV_HEAD, 4, 2, 3);
    expect_ranges("tp=3", &q, 2, (const int64_t[][2]){{0, 4}, {4, 8}, {8, 12}});
    expect_ranges("tp=3", &kv, 2, (const int64_t[][2]){{0, 2}, {1, 3}, {2, 4}});
    /* 32/8 at tp=6: ceil(32 / 6) = 6 each, 2 for the last. */
    q = tensor_of(RS_AXIS_Q_HEAD, 32, 4, 0);
    kv = tensor_of(RS_AXIS_KV_HEAD, 8, 4, 4);
    expect_ranges("tp=6", &q, 4,
        (const int64_t[][2]){{0, 6}, {6, 12}, {12, 18}, {18, 24}, {24, 30}, {30, 32}});
    expect_ranges(
        "tp=6", &kv, 4, (const int64_t[][2]){{0, 2}, {1, 3}, {3, 5}, {4, 6}, {6, 8}, {7, 8}});
    /* tp above the number of key/value heads: two ranks share each. */
    q = tensor_of(RS_AXIS_Q_HEAD, 8, 1, 0);
    kv = tensor_of(RS_AXIS_KV_HEAD, 4, 1, 2);
    expect_ranges("tp=8", &kv, 1,
        (const int64_t[][2]){{0, 1}, {0, 1}, {1, 2}, {1, 2}, {2, 3}, {2, 3}, {3, 4}, {3, 4}});
    /* More ranks than heads: some have nothing. */
    expect_ranges("tp=9", &q, 1,
        (const int64_t[][2]){
            {0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}, {6, 7}, {7, 8}, {8, 8}});
    /* Rows: 151,936 over 3; and 10 over 4, the last with one. */
    rs_tensor rows = tensor_of(RS_AXIS_VOCAB, 151936, 1, 0);
    expect_ranges(
        "tp=3", &rows, 1, (const int64_t[][2]){{0, 50646}, {50646, 101292}, {101292, 151936}});
    rows = tensor_of(RS_AXIS_FFN, 10, 1, 0);
    expect_ranges("tp=4", &rows, 1, (const int64_t[][2]){{0, 3}, {3, 6}, {6, 9}, {9, 10}});
    rs_tensor whole = tensor_of(RS_AXIS_WHOLE, 5, 1, 0);
    expect_ranges("tp=2", &whole, 1, (const int64_t[][2]){{0, 5}, {0, 5}});
}

static void test_stage_layers(void **state)
{
    (void)state;
    static const struct {
        const char *layout;
        int64_t layers;
        int64_t begins[7];
    } rows[] = {
        {"pp=4", 80, {0, 20, 40, 60, 80}},
        {"pp=4", 10, {0, 3, 6, 8, 10}},
        {"pp=3", 4, {0, 2, 3, 4}},
        {"pp=5", 2, {0, 1, 2, 2, 2, 2}},
        {"pp=2", 0, {0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rs_layout layout = parsed(rows[i].layout);
        for (int stage = 0; stage < layout.pp; stage++) {
            int64_t begin;
            int64_t end;
            rs_layout_stage_layers(&layout, rows[i].layers, stage, &begin, &end);
            assert_int_equal(begin, rows[i].begins[stage]);
            assert_int_equal(end, rows[i].begins[stage + 1]);
        }
    }
}

/* Stages with chunks, and listed; entry v * pp + p is chunk v of pipeline rank p. */
static void test_chunks(void **state)
{
    (void)state;
    static const struct {
        const char *layout;
        int64_t layers;
        int64_t ends[8];
    } rows[] = {
        {"pp=2,vpp=2", 8, {2, 4, 6, 8}},
        {"pp=2,vpp=4", 8, {1, 2, 3, 4, 5, 6, 7, 8}},
        {"pp=2,vpp=3", 10, {2, 4, 6, 8, 9, 10}},
        {"pp=2,vpp=2,stages=0/1-4/-/5", 6, {1, 5, 5, 6}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rs_layout layout = parsed(rows[i].layout);
        int64_t at = 0;
        for (int stage = 0; stage < layout.pp * layout.vpp; stage++) {
            int64_t begin;
            int64_t end;
            rs_layout_stage_layers(&layout, rows[i].layers, stage, &begin, &end);
            assert_int_equal(begin, at);
            assert_int_equal(end, rows[i].ends[stage]);
            at = end;
        }
        assert_int_equal(at, rows[i].layers);
    }
}

static void expect_experts(const char *text, int64_t experts, const int64_t (*ranges)[2])
{
    rs_layout layout = parsed(text);
    rs_tensor tensor = {
        .name = "e", .ndim = 2, .shape = {experts, 3}, .axis = {RS_AXIS_EXPERT, RS_AXIS_FFN}};
    for (int ep = 0; ep < layout.ep; ep++) {
        int64_t begin;
        int64_t end;
        rs_layout_ep_range(&layout, &tensor, 0, ep, &begin, &end);
        assert_int_equal(begin, ranges[ep][0]);
        assert_int_equal(end, ranges[ep][1]);
    }
}

static void test_experts(void **state)
{
    (void)state;
    expect_experts("dp=8,ep=8", 60,
        (const int64_t[][2]){
            {0, 8}, {8, 16}, {16, 24}, {24, 32}, {32, 39}, {39, 46}, {46, 53}, {53, 60}});
    expect_experts("dp=2,ep=2", 60, (const int64_t[][2]){{0, 30}, {30, 60}});
    /* More ranks than experts: 3, 3 and 2 ranks for the three. */
    expect_experts("dp=8,ep=8", 3,
        (const int64_t[][2]){{0, 1}, {0, 1}, {0, 1}, {1, 2}, {1, 2}, {1, 2}, {2, 3}, {2, 3}});
    /* The experts' rows are dealt over etp. */
    rs_layout layout = parsed("tp=1,dp=6,etp=2,ep=3");
    rs_tensor tensor = {
        .name = "e", .ndim = 2, .shape = {5, 7}, .axis = {RS_AXIS_EXPERT, RS_AXIS_FFN}};
    int64_t begin;
    int64_t end;
    rs_layout_tp_range(&layout, &tensor, 1, 1, &begin, &end);
    assert_true(begin == 4 && end == 7);
    rs_layout_tp_range(&layout, &tensor, 0, 1, &begin, &end);
    assert_true(begin == 0 && end == 5);
}

/* For a model with experts both meshes are told, though they be the same. */
static void test_describe_for(void **state)
{
    (void)state;
    rs_model model;
    rs_space *space;
    char text[RS_LAYOUT_TEXT];
    rs_layout layout = parsed("tp=2,dp=3");
    assert_int_equal(rs_model_load("mixtral-tiny", &model), RS_OK);
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_OK);
    assert_string_equal(rs_layout_describe_for(&layout, space, text),
        "world 6 = tp2 cp1 dp3 pp1; experts per stage: etp2 ep1 edp3");
    rs_space_destroy(space);
    assert_int_equal(rs_model_load("llama-tiny", &model), RS_OK);
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_OK);
    assert_string_equal(rs_layout_describe_for(&layout, space, text), "world 6 = tp2 cp1 dp3 pp1");
    rs_space_destroy(space);
}

/* Both meshes of a stage's ranks: Megatron's numbering, and groups that follow. */
static void test_expert_mesh(void **state)
{
    (void)state;
    rs_layout layout = parsed("tp=4,pp=8,dp=4,ep=8,etp=1,zero=1");
    assert_int_equal(rs_layout_etp(&layout), 1);
    assert_int_equal(rs_layout_edp(&layout), 2);
    /* Stage 3 is ranks 48 to 63; rank 61 is the 13th of them: tp 1, dp 3; ep 5, edp 1. */
    rs_coords at = rs_layout_coords(&layout, 61);
    assert_true(at.pp == 3 && at.tp == 1 && at.dp == 3 && at.cp == 0);
    assert_true(at.etp == 0 && at.ep == 5 && at.edp == 1);
    assert_int_equal(rs_layout_expert_rank(&layout, at), 61);
    assert_int_equal(rs_layout_shard_group(&layout, false), 4);
    assert_int_equal(rs_layout_shard_group(&layout, true), 2);
    /* Replicas of experts: as many groups as dense tensors have, or as many of those as fit. */
    static const struct {
        const char *text;
        int dense;
        int experts;
    } rows[] = {
        {"dp=8,zero=1,shard=2", 2, 2},
        {"dp=8,ep=2,zero=1,shard=4", 4, 2},
        {"dp=8,ep=2,zero=1,shard=2", 2, 1},
        {"dp=8,ep=4,zero=1,shard=2", 2, 1},
        {"dp=8,ep=8,zero=1,shard=4", 4, 1},
        {"dp=12,ep=3,zero=1,shard=2", 2, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        layout = parsed(rows[i].text);
        assert_int_equal(rs_layout_shard_group(&layout, false), rows[i].dense);
        assert_int_equal(rs_layout_shard_group(&layout, true), rows[i].experts);
    }
}

static rs_space *vector_space(int64_t elements, int64_t layers)
{
    rs_space *space;
    assert_int_equal(rs_space_create(&space), RS_OK);
    rs_role param = {"param", RS_DTYPE_F32, RS_ROLE_MODEL};
    rs_role moment = {"exp_avg", RS_DTYPE_F32, RS_ROLE_OPTIMIZER};
    assert_int_equal(rs_space_add_role(space, &param, NULL), RS_OK);
    assert_int_equal(rs_space_add_role(space, &moment, NULL), RS_OK);
    rs_tensor tensor = {.name = "t",
        .ndim = 2,
        .shape = {layers, elements},
        .axis = {RS_AXIS_LAYER, RS_AXIS_WHOLE}};
    assert_int_equal(rs_space_add_tensor(space, &tensor, NULL), RS_OK);
    return space;
}

static void test_trainable(void **state)
{
    (void)state;
    rs_space *space = vector_space(4, 4);
    rs_layout layout = parsed("tp=2,pp=4,zero=1");
    assert_int_equal(rs_layout_check_trainable(&layout, space), RS_OK);
    static const char *const fitting[] = {"dp=2,zero=3", "dp=2,zero=2,zero_cut=dim0",
        "dp=4,zero=3,shard=2,zero_cut=param", "pp=2,stages=0/1-3", "pp=2,vpp=2", "tp=2,sp=on",
        "cp=3", "tp=2,cp=2,dp=2,zero=3"};
    for (size_t i = 0; i < sizeof fitting / sizeof *fitting; i++) {
        layout = parsed(fitting[i]);
        assert_int_equal(rs_layout_check_trainable(&layout, space), RS_OK);
    }
    layout = parsed("tp=2,pp=6,zero=1");
    assert_int_equal(rs_layout_check_trainable(&layout, space), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "4 layers"));
    assert_non_null(strstr(rs_error_message(), "fits is tp=2,pp=4,zero=1"));
    static const struct {
        const char *text;
        rs_status status;
        const char *words[2];
    } rows[] = {
        {"dp=2,ep=2", RS_ERR_ARGUMENT, {"the model has no experts", "fits is dp=2"}},
        {"tp=2,etp=1", RS_ERR_ARGUMENT, {"ep=1,etp=1: the model has no experts", "fits is tp=2"}},
        {"pp=2,vpp=3", RS_ERR_ARGUMENT, {"stage 4 would have no layer", "fits is pp=2,vpp=2"}},
        {"pp=2,stages=-/0-3", RS_ERR_ARGUMENT, {"stage 0 would have no layer", "fits is pp=2"}},
        {"pp=2,stages=0/1-2", RS_ERR_ARGUMENT,
            {"stages have 3 layers, the model has 4", "fits is pp=2,stages=0/1-3"}},
        {"pp=2,stages=0-4/5", RS_ERR_ARGUMENT, {"6 layers", "fits is pp=2,stages=0-3/-"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        layout = parsed(rows[i].text);
        assert_int_equal(rs_layout_check_trainable(&layout, space), rows[i].status);
        for (int w = 0; w < 2; w++)
            if (strstr(rs_error_message(), rows[i].words[w]) == NULL)
                fail_msg(
                    "%s: \"%s\" is not in: %s", rows[i].text, rows[i].words[w], rs_error_message());
    }
    /* Roles that concatenations would cut at different places. */
    assert_int_equal(rs_space_set_dtype(space, 0, 1, RS_DTYPE_NONE), RS_OK);
    layout = parsed("tp=2,dp=2,zero=3");
    assert_int_equal(rs_layout_check_trainable(&layout, space), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "would be cut at different places"));
    assert_non_null(strstr(rs_error_message(), "fits is tp=2,dp=2,zero=3,zero_cut=param"));
    static const char *const uncut[] = {
        "tp=2,dp=2,zero=3,zero_cut=param", "tp=2,dp=2", "tp=2,zero=3"};
    for (size_t i = 0; i < sizeof uncut / sizeof *uncut; i++) {
        layout = parsed(uncut[i]);
        assert_int_equal(rs_layout_check_trainable(&layout, space), RS_OK);
    }
    /* Nor roles of several types. Experts are what ep and etp divide. */
    layout = parsed("dp=2");
    assert_int_equal(rs_space_set_dtype(space, 0, 1, RS_DTYPE_BF16), RS_OK);
    assert_int_equal(rs_layout_check_trainable(&layout, space), RS_ERR_UNSUPPORTED);
    assert_int_equal(rs_space_set_dtype(space, 0, 1, RS_DTYPE_F32), RS_OK);
    rs_tensor experts = {
        .name = "experts", .ndim = 2, .shape = {4, 3}, .axis = {RS_AXIS_LAYER, RS_AXIS_EXPERT}};
    assert_int_equal(rs_space_add_tensor(space, &experts, NULL), RS_OK);
    static const char *const with_experts[] = {"dp=2,ep=2", "tp=2,etp=1", "tp=2,dp=4,ep=8,etp=1"};
    for (size_t i = 0; i < sizeof with_experts / sizeof *with_experts; i++) {
        layout = parsed(with_experts[i]);
        assert_int_equal(rs_layout_check_trainable(&layout, space), RS_OK);
    }
    rs_space_destroy(space);
}

/* 200 elements over dp=3: n = ceil(200 / 3) = 67, rounded up to 128. */
static void test_flat_range(void **state)
{
    (void)state;
    static const int64_t begins[] = {0, 128, 200, 200};
    rs_space *space = vector_space(100, 2);
    rs_layout layout = parsed("dp=3,zero=1");
    for (int rank = 0; rank < 3; rank++) {
        int64_t begin;
        int64_t end;
        rs_layout_flat_range(space, &layout, rank, 1, &begin, &end);
        assert_int_equal(begin, begins[rank]);
        assert_int_equal(end, begins[rank + 1]);
        rs_layout_flat_range(space, &layout, rank, 0, &begin, &end);
        assert_int_equal(begin, 0);
        assert_int_equal(end, 200);
    }
    /* Block 1 is layer 0: rank 1's shard begins 28 elements into layer 1. */
    int64_t begin;
    int64_t end;
    rs_layout_block_range(space, &layout, 1, 2, &begin, &end);
    assert_int_equal(begin, 100);
    assert_int_equal(end, 200);
    assert_int_equal(rs_layout_segment(space, 1, 2), 1 * 4 + 2);
    rs_space_destroy(space);
}

static int64_t segment_bytes(const rs_segment_list *list, int segment)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i].segment == segment)
            return list->items[i].bytes;
    return 0;
}

/* The example of docs/layouts.md: llama-tiny under tp=2,pp=2,dp=2,zero=1. */
static void test_worked_example(void **state)
{
    (void)state;
    rs_model model;
    rs_space *space;
    rs_placement *placement;
    assert_int_equal(rs_model_load("llama-tiny", &model), RS_OK);
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_OK);
    rs_layout layout = parsed("tp=2,pp=2,dp=2,zero=1");
    assert_int_equal(rs_layout_placement(space, &layout, &placement), RS_OK);
    rs_coords at = rs_layout_coords(&layout, 5);
    assert_true(at.tp == 1 && at.dp == 0 && at.pp == 1);
    static const int64_t blocks[][2] = {
        {0, 0}, {0, 0}, {0, 0}, {0, 363008}, {363008, 726016}, {726016, 759040}};
    for (int b = 0; b < 6; b++) {
        int64_t begin;
        int64_t end;
        rs_layout_block_range(space, &layout, 5, b, &begin, &end);
        assert_int_equal(begin, blocks[b][0]);
        assert_int_equal(end, blocks[b][1]);
    }
    int64_t begin;
    int64_t end;
    rs_layout_flat_range(space, &layout, 7, 1, &begin, &end);
    assert_int_equal(begin, 379520);
    assert_int_equal(end, 759040);
    rs_segment_list list = {0};
    assert_int_equal(rs_placement_segments(placement, 5, &list), RS_OK);
    assert_int_equal(list.count, 7);
    assert_int_equal(segment_bytes(&list, 3), 1452032);
    assert_int_equal(segment_bytes(&list, 4), 1452032);
    assert_int_equal(segment_bytes(&list, 5), 132096);
    assert_int_equal(segment_bytes(&list, 9), 1452032);
    assert_int_equal(segment_bytes(&list, 10), 66048);
    assert_int_equal(segment_bytes(&list, 15), 1452032);
    assert_int_equal(segment_bytes(&list, 16), 66048);
    assert_int_equal(rs_placement_segments(placement, 7, &list), RS_OK);
    assert_int_equal(segment_bytes(&list, 10), 1385984);
    assert_int_equal(segment_bytes(&list, 11), 132096);
    rs_shard_list shards = {0};
    assert_int_equal(rs_placement_shards(placement, 5, 0, &shards), RS_OK);
    static const char *const boxes[] = {"[2:3,0:256]", "[2:3,128:256,0:256]", "[2:3,64:128,0:256]",
        "[2:3,64:128,0:256]", "[2:3,0:256,128:256]", "[2:3,0:256]", "[2:3,344:688,0:256]",
        "[2:3,344:688,0:256]", "[2:3,0:256,344:688]"};
    assert_int_equal(shards.count, 20);
    for (int i = 0; i < 9; i++) {
        char text[64];
        assert_int_equal(shards.items[i].tensor, i + 1);
        assert_string_equal(rs_box_format(&shards.items[i].box, text, sizeof text), boxes[i]);
    }
    assert_int_equal(shards.items[18].tensor, 0);
    assert_int_equal(shards.items[18].box.offset[0], 128);
    rs_shard_list_fini(&shards);
    rs_segment_list_fini(&list);
    rs_placement_destroy(placement);
    rs_space_destroy(space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_coords),
        cmocka_unit_test(test_tp_ranges),
        cmocka_unit_test(test_stage_layers),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_expert_mesh),
        cmocka_unit_test(test_describe_for),
        cmocka_unit_test(test_trainable),
        cmocka_unit_test(test_flat_range),
        cmocka_unit_test(test_worked_example),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
