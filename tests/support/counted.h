/*
 * Layouts by brute force: for a random space and layout, every rank's memory is written out element
 * by element from the rules' plain words, with counting in place of formulas. Include cmocka.h
 * before.
 */
#ifndef RS_TESTS_COUNTED_H
#define RS_TESTS_COUNTED_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/layout.h"
#include "support/spaces.h"

#define ROLES RANDOM_ROLES
#define MAX_RANKS 24

enum { DENSE, EXPERTS, MESHES };

/* One element that a rank's slice has of a role. */
typedef struct element {
    int tensor;
    int block;     /* of its mesh */
    int64_t index; /* row-major in the whole tensor */
    int64_t unit;  /* which of the slice's experts */
    int64_t row;   /* which of the slice's rows of the parameter's first dimension */
} element;

/* What a rank's slice has of a role on a mesh, and what of it the rank keeps. */
typedef struct local {
    element *items;
    int64_t count;
    int64_t begin; /* zero_cut=concat */
    int64_t end;
} local;

/* What a rank has of a role. */
typedef struct owned_role {
    local mesh[MESHES];
    int64_t **places; /* [tensor][index]: 1 + segment << 40 + byte in it; 0: not kept */
    int64_t *bytes;   /* of each block's segment, 0 if there is none */
    int64_t kept;     /* elements */
} owned_role;

/* Where a rank stands, found by counting. */
typedef struct standing {
    int slice[MESHES][2]; /* tp; etp and ep */
    int stage;
    int member[MESHES]; /* its number among those of the same slice and stage */
    int group[MESHES];
} standing;

typedef struct world_case {
    uint64_t seed;
    rs_space *space;
    rs_layout layout;
    rs_placement *placement;
    int ranks;
    int blocks; /* of a mesh */
    standing at[MAX_RANKS];
    owned_role *owned; /* [rank][role] */
} world_case;

#define CHECK(condition) CHECK_SEED(w->seed, condition)

static inline owned_role *owned_of(const world_case *w, int rank, int role)
{
    return &w->owned[rank * ROLES + role];
}

/* ---- brute force: ranks ---- */

static inline int etp_of(const rs_layout *layout)
{
    return layout->etp > 0 ? layout->etp : layout->tp;
}

/* The digits of `number`, the fastest axis first. */
static inline void digits(const rs_layout *layout, const int *sizes, int number, int *out)
{
    for (int i = 0; i < RS_MESH_AXES; i++) {
        out[layout->order[i]] = number % sizes[layout->order[i]];
        number /= sizes[layout->order[i]];
    }
}

static inline void stand(world_case *w)
{
    const rs_layout *l = &w->layout;
    int edp = l->tp * l->cp * l->dp / etp_of(l) / l->ep;
    const int dense[] = {[RS_MESH_TP] = l->tp,
        [RS_MESH_CP] = l->cp,
        [RS_MESH_EP] = 1,
        [RS_MESH_DP] = l->dp,
        [RS_MESH_PP] = l->pp};
    const int experts[] = {[RS_MESH_TP] = etp_of(l),
        [RS_MESH_CP] = 1,
        [RS_MESH_EP] = l->ep,
        [RS_MESH_DP] = edp,
        [RS_MESH_PP] = 1};
    int shard = l->shard > 0 ? l->shard : l->cp * l->dp;
    /* As many groups of experts as divide both edp and the number of dense groups. */
    int groups = edp;
    while (edp % groups != 0 || l->cp * l->dp / shard % groups != 0)
        groups--;
    for (int rank = 0; rank < w->ranks; rank++) {
        standing *at = &w->at[rank];
        int found[RS_MESH_AXES];
        digits(l, dense, rank, found);
        *at = (standing){.stage = found[RS_MESH_PP], .group = {shard, edp / groups}};
        at->slice[DENSE][0] = found[RS_MESH_TP];
        int before = 0;
        for (int other = 0; other < rank; other++)
            before += w->at[other].stage == at->stage;
        digits(l, experts, before, found);
        at->slice[EXPERTS][0] = found[RS_MESH_TP];
        at->slice[EXPERTS][1] = found[RS_MESH_EP];
        for (int mesh = 0; mesh < MESHES; mesh++)
            for (int other = 0; other < rank; other++)
                at->member[mesh] +=
                    w->at[other].stage == at->stage &&
                    memcmp(w->at[other].slice[mesh], at->slice[mesh], sizeof at->slice[mesh]) == 0;
    }
}

/* ---- brute force: slices ---- */

static inline int stage_of(const rs_layout *layout, int64_t layers, int64_t layer)
{
    int stages = layout->pp * layout->vpp;
    int stage = 0;
    if (layout->stage_count > 0) {
        while (layer >= layout->stage_end[stage])
            stage++;
        return stage % layout->pp;
    }
    int sizes[128] = {0};
    for (int64_t l = 0; l < layers; l++)
        sizes[l % stages]++;
    while (layer >= sizes[stage])
        layer -= sizes[stage++];
    return stage % layout->pp;
}

static inline int mesh_of_tensor(const rs_tensor *t)
{
    for (int d = 0; d < t->ndim; d++)
        if (t->axis[d] == RS_AXIS_EXPERT)
            return EXPERTS;
    return DENSE;
}

/* Does ep rank `ep` have expert `expert`? Each gets one in turn, until one side is used up; then
 * they are sorted. */
static inline bool ep_has(int ep, int parts, int64_t expert, int64_t experts)
{
    int64_t counts[64] = {0};
    bool more_ranks = parts > experts;
    int64_t many = more_ranks ? parts : experts;
    int64_t few = more_ranks ? experts : parts;
    for (int64_t i = 0; i < many; i++)
        counts[i % few]++;
    int64_t owner = 0;
    int64_t at = more_ranks ? ep : expert;
    while (at >= counts[owner])
        at -= counts[owner++];
    return owner == (more_ranks ? expert : ep);
}

/* Does a slice have index `at` of an axis? */
static inline bool slice_has(
    const rs_layout *layout, const rs_tensor *t, int d, int64_t at, const int *slice)
{
    int64_t unit = t->unit[d] > 0 ? t->unit[d] : 1;
    int64_t units = t->shape[d] / unit;
    int64_t parts = mesh_of_tensor(t) == DENSE ? layout->tp : etp_of(layout);
    if (t->axis[d] == RS_AXIS_WHOLE || t->axis[d] == RS_AXIS_LAYER)
        return true;
    if (t->axis[d] == RS_AXIS_EXPERT)
        return ep_has(slice[1], layout->ep, at / unit, units);
    if (t->axis[d] != RS_AXIS_KV_HEAD)
        return at / unit / ((units + parts - 1) / parts) == slice[0];
    int64_t q_heads = units * t->kv_group;
    int64_t each = (q_heads + parts - 1) / parts;
    for (int64_t q = 0; q < q_heads; q++)
        if (q / t->kv_group == at / unit && q / each == slice[0])
            return true;
    return false;
}

static inline bool has_layers(const rs_tensor *t)
{
    return t->ndim > 0 && t->axis[0] == RS_AXIS_LAYER;
}

static inline int64_t layer_of(const rs_tensor *t, int64_t index)
{
    return t->layers != NULL ? t->layers[index] : t->layer_first + index;
}

static inline bool has_layer(const rs_tensor *t, int64_t layer)
{
    for (int64_t i = 0; i < t->shape[0]; i++)
        if (layer_of(t, i) == layer)
            return true;
    return false;
}

/* Does pipeline rank `stage` have something of `t` in `block`? */
static inline bool stage_has(const world_case *w, const rs_tensor *t, int stage, int block)
{
    bool first = stage == 0;
    bool last = stage == w->layout.pp - 1;
    int tail = w->blocks - 1;
    if (has_layers(t))
        return has_layer(t, block - 1) && stage_of(&w->layout, w->blocks - 2, block - 1) == stage;
    if (t->stage == RS_STAGE_BY_LAYER)
        return block == 0;
    if (t->stage == RS_STAGE_FIRST)
        return block == 0 && first;
    if (t->stage == RS_STAGE_LAST)
        return block == tail && last;
    return (block == 0 && first) || (block == tail && last && !first);
}

static inline int64_t volume_of(const rs_tensor *t)
{
    int64_t volume = 1;
    for (int d = 0; d < t->ndim; d++)
        volume *= t->shape[d];
    return volume;
}

/* The first dimension of a parameter: behind layers and, if there is one, experts; -1 for a scalar.
 */
static inline int first_dim(const rs_tensor *t)
{
    for (int d = 0; d < t->ndim; d++)
        if (t->axis[d] != RS_AXIS_LAYER && (t->axis[d] != RS_AXIS_EXPERT || d == t->ndim - 1))
            return d;
    return -1;
}

/* Appends the elements of one tensor in one block. */
static inline void write_tensor(const world_case *w, int rank, int i, int block, local *out)
{
    const rs_tensor *t = rs_space_tensor(w->space, i);
    const int *slice = w->at[rank].slice[mesh_of_tensor(t)];
    int rows = first_dim(t);
    int64_t first_row = INT64_MAX;
    int64_t first_unit = INT64_MAX;
    int64_t volume = volume_of(t);
    for (int64_t e = 0; e < volume; e++) {
        element found = {.tensor = i, .block = block, .index = e};
        int64_t rest = e;
        bool have = true;
        for (int d = t->ndim - 1; d >= 0; d--) {
            int64_t index = rest % t->shape[d];
            rest /= t->shape[d];
            have = have && slice_has(&w->layout, t, d, index, slice) &&
                   (t->axis[d] != RS_AXIS_LAYER || layer_of(t, index) == block - 1);
            if (d == rows)
                found.row = index;
            if (t->axis[d] == RS_AXIS_EXPERT)
                found.unit = index;
        }
        if (!have)
            continue;
        first_row = found.row < first_row ? found.row : first_row;
        first_unit = found.unit < first_unit ? found.unit : first_unit;
        found.row -= first_row;
        found.unit -= first_unit;
        out->items[out->count++] = found;
    }
}

static inline void write_out(const world_case *w, int rank, int role, int mesh, local *out)
{
    out->items = calloc((size_t)rs_space_elements(w->space) + 1, sizeof *out->items);
    for (int block = 0; block < w->blocks; block++)
        for (int i = 0; i < rs_space_tensor_count(w->space); i++) {
            const rs_tensor *t = rs_space_tensor(w->space, i);
            if (rs_space_dtype(w->space, i, role) != RS_DTYPE_NONE && mesh_of_tensor(t) == mesh &&
                stage_has(w, t, w->at[rank].stage, block))
                write_tensor(w, rank, i, block, out);
        }
}

/* ---- brute force: memory ---- */

static inline bool is_sharded(const world_case *w, int role)
{
    static const int needs[] = {
        [RS_ROLE_MODEL] = 3, [RS_ROLE_OPTIMIZER] = 1, [RS_ROLE_GRADIENT] = 2};
    return w->layout.zero >= needs[rs_space_role(w->space, role)->role_class];
}

static inline int64_t size_of(const world_case *w, int tensor, int role)
{
    return (int64_t)rs_dtype_size(rs_space_dtype(w->space, tensor, role));
}

static inline void put(
    const world_case *w, int role, int mesh, const element *e, int64_t byte, owned_role *own)
{
    int64_t blocks = rs_layout_block_count(w->space);
    int64_t segment = role * blocks + mesh * w->blocks + e->block;
    CHECK(own->places[e->tensor][e->index] == 0);
    own->places[e->tensor][e->index] = 1 + (segment << 40) + byte;
    own->kept++;
}

/* The largest size of an element in a block of the rank's stage. */
static inline int64_t largest_in_block(const world_case *w, int rank, int role, int mesh, int block)
{
    int64_t largest = 1;
    for (int i = 0; i < rs_space_tensor_count(w->space); i++) {
        const rs_tensor *t = rs_space_tensor(w->space, i);
        int64_t size = size_of(w, i, role);
        if (mesh_of_tensor(t) == mesh && stage_has(w, t, w->at[rank].stage, block) &&
            size > largest)
            largest = size;
    }
    return largest;
}

/* A range of the concatenation. */
static inline void place_range(const world_case *w, int rank, int role, int mesh, owned_role *own)
{
    local *all = &own->mesh[mesh];
    all->end = all->count;
    if (is_sharded(w, role)) {
        int group = w->at[rank].group[mesh];
        int number = w->at[rank].member[mesh] % group;
        int64_t each = 0;
        while (each * group < all->count)
            each += RS_FLAT_ALIGN;
        all->begin = number * each < all->count ? number * each : all->count;
        all->end = all->begin + each < all->count ? all->begin + each : all->count;
    }
    int64_t byte = 0;
    int64_t base = 0;
    for (int64_t k = 0; k < all->end; k++) {
        const element *e = &all->items[k];
        int64_t size = size_of(w, e->tensor, role);
        if (k == 0 || all->items[k - 1].block != e->block)
            byte = base = 0;
        while (byte % size != 0)
            byte++;
        if (k == all->begin) {
            base = byte;
            while (base % largest_in_block(w, rank, role, mesh, e->block) != 0)
                base--;
        }
        if (k >= all->begin) {
            put(w, role, mesh, e, byte - base, own);
            own->bytes[mesh * w->blocks + e->block] = byte - base + size;
        }
        byte += size;
    }
}

/* Parts of each parameter, at the same places for every member. */
static inline void place_slots(const world_case *w, int rank, int role, int mesh, owned_role *own)
{
    const local *all = &own->mesh[mesh];
    int64_t group = w->at[rank].group[mesh];
    int64_t number = w->at[rank].member[mesh] % group;
    bool rows = w->layout.zero_cut == RS_CUT_DIM0;
    int64_t byte = 0;
    int64_t end;
    for (int64_t begin = 0; begin < all->count; begin = end) {
        const element *first = &all->items[begin];
        int64_t units = 0;
        int64_t length = 0;
        for (end = begin; end < all->count && all->items[end].tensor == first->tensor &&
                          all->items[end].block == first->block;
             end++) {
            units = all->items[end].unit >= units ? all->items[end].unit + 1 : units;
            length = all->items[end].row >= length ? all->items[end].row + 1 : length;
        }
        int64_t per = rows ? (end - begin) / length : 1;
        if (rows)
            units = 1;
        else
            length = (end - begin) / units;
        int64_t each = (length + group - 1) / group;
        int64_t size = size_of(w, first->tensor, role);
        if (begin == 0 || all->items[begin - 1].block != first->block)
            byte = 0;
        while (byte % size != 0)
            byte++;
        int64_t seen[64] = {0};
        int64_t packed = 0;
        for (int64_t k = begin; k < end; k++) {
            const element *e = &all->items[k];
            int64_t at = rows ? e->row : seen[e->unit]++;
            if (at < number * each || at >= (number + 1) * each)
                continue;
            int64_t to = rows ? packed++ : e->unit * each + at - number * each;
            put(w, role, mesh, e, byte + to * size, own);
        }
        byte += units * each * per * size;
        own->bytes[mesh * w->blocks + first->block] = byte;
    }
}

static inline void setup_case(world_case *w, uint64_t seed)
{
    uint64_t random = seed;
    memset(w, 0, sizeof *w);
    w->seed = seed;
    w->space = random_space(&random);
    w->layout = random_layout(&random, MAX_RANKS, rs_space_layer_count(w->space));
    w->ranks = rs_layout_world(&w->layout);
    w->blocks = (int)rs_space_layer_count(w->space) + 2;
    int tensors = rs_space_tensor_count(w->space);
    assert_int_equal(rs_layout_placement(w->space, &w->layout, &w->placement), RS_OK);
    stand(w);
    w->owned = calloc((size_t)w->ranks * ROLES, sizeof *w->owned);
    for (int rank = 0; rank < w->ranks; rank++)
        for (int role = 0; role < ROLES; role++) {
            owned_role *own = owned_of(w, rank, role);
            own->places = calloc((size_t)tensors, sizeof *own->places);
            own->bytes = calloc((size_t)w->blocks * MESHES, sizeof *own->bytes);
            for (int i = 0; i < tensors; i++)
                own->places[i] = calloc(
                    (size_t)volume_of(rs_space_tensor(w->space, i)) + 1, sizeof **own->places);
            for (int mesh = 0; mesh < MESHES; mesh++) {
                write_out(w, rank, role, mesh, &own->mesh[mesh]);
                /* A group of one divides nothing. */
                if (is_sharded(w, role) && w->layout.zero_cut != RS_CUT_CONCAT &&
                    w->at[rank].group[mesh] > 1)
                    place_slots(w, rank, role, mesh, own);
                else
                    place_range(w, rank, role, mesh, own);
            }
        }
}

static inline void teardown_case(world_case *w)
{
    for (int k = 0; k < w->ranks * ROLES; k++) {
        owned_role *own = &w->owned[k];
        for (int i = 0; i < rs_space_tensor_count(w->space); i++)
            free(own->places[i]);
        for (int mesh = 0; mesh < MESHES; mesh++)
            free(own->mesh[mesh].items);
        free(own->places);
        free(own->bytes);
    }
    free(w->owned);
    rs_placement_destroy(w->placement);
    rs_space_destroy(w->space);
}

#endif
