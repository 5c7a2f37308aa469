/*
 * Which layouts can be: the rules, and the nearest layout that keeps them.
 *
 * Three questions, asked apart. Is the layout one at all (rs_layout_check)? Does it fit a space, as
 * a placement (rs_layout_check_stages; all else that a space may bring is ordinary: fewer heads
 * than ranks, fewer experts, fewer layers)? Can it be trained (rs_layout_check_trainable)?
 *
 * Each refusal names the rule and the nearest layout that keeps it. "Nearest" changes one number to
 * the closest that fits, the smaller of two; where the trainer lacks an axis, its ranks go to dp,
 * so that the world stays.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "layout/mesh.h"

/* The divisor of `n` that is nearest to `wanted`, the smaller of two. */
static int nearest_divisor(int n, int64_t wanted)
{
    int best = 1;
    for (int d = 1; (int64_t)d * d <= n; d++) {
        if (n % d != 0)
            continue;
        const int both[2] = {d, n / d};
        for (int i = 0; i < 2; i++)
            if (llabs(both[i] - wanted) < llabs(best - wanted) ||
                (llabs(both[i] - wanted) == llabs(best - wanted) && both[i] < best))
                best = both[i];
    }
    return best;
}

static rs_status check_numbers(const rs_layout *layout)
{
    const int least = 1;
    if (layout->tp < least || layout->pp < least || layout->dp < least || layout->cp < least)
        return rs_error_set(RS_ERR_ARGUMENT,
            "layout: tp=%d,pp=%d,dp=%d,cp=%d: each must be at least 1", layout->tp, layout->pp,
            layout->dp, layout->cp);
    if (layout->ep < least || layout->vpp < least || layout->etp < 0 || layout->shard < 0)
        return rs_error_set(RS_ERR_ARGUMENT,
            "layout: ep=%d,etp=%d,vpp=%d,shard=%d: each must be at least 1", layout->ep,
            layout->etp, layout->vpp, layout->shard);
    if (layout->zero < 0 || layout->zero > 3)
        return rs_error_set(
            RS_ERR_ARGUMENT, "layout: zero=%d: 0, 1, 2 or 3 is wanted", layout->zero);
    if (layout->zero_cut > RS_CUT_DIM0)
        return rs_error_set(
            RS_ERR_ARGUMENT, "layout: zero_cut %d: there is none", (int)layout->zero_cut);
    unsigned seen = 0;
    for (int i = 0; i < RS_MESH_AXES; i++)
        seen |= layout->order[i] < RS_MESH_AXES ? 1U << layout->order[i] : 0;
    if (seen != (1U << RS_MESH_AXES) - 1)
        return rs_error_set(
            RS_ERR_ARGUMENT, "layout: the order must have each of tp, cp, ep, dp and pp once");
    int64_t world = 1;
    const int sizes[] = {layout->tp, layout->pp, layout->dp, layout->cp};
    for (int i = 0; i < 4; i++)
        if (!rs_mul_fits(world, sizes[i], &world) || world > INT_MAX)
            return rs_error_set(RS_ERR_ARGUMENT,
                "layout: tp=%d,pp=%d,dp=%d,cp=%d: the product, the number of ranks, may be %d at "
                "most",
                layout->tp, layout->pp, layout->dp, layout->cp, INT_MAX);
    if ((int64_t)layout->pp * layout->vpp > INT_MAX)
        return rs_error_set(RS_ERR_ARGUMENT,
            "layout: pp=%d,vpp=%d: the product, the number of stages, may be %d at most",
            layout->pp, layout->vpp, INT_MAX);
    return RS_OK;
}

static rs_status check_experts(const rs_layout *layout)
{
    int ranks = layout->tp * layout->cp * layout->dp;
    int etp = rs_layout_etp(layout);
    if ((int64_t)etp * layout->ep <= ranks && ranks % (etp * layout->ep) == 0)
        return RS_OK;
    rs_layout fits = *layout;
    if (ranks % etp != 0)
        fits.etp = nearest_divisor(ranks, etp);
    fits.ep = nearest_divisor(ranks / rs_layout_etp(&fits), layout->ep);
    char nearest[RS_LAYOUT_TEXT];
    return rs_error_set(RS_ERR_ARGUMENT,
        "layout: etp=%d,ep=%d: etp x ep must divide tp x cp x dp = %d, the ranks of a stage; the "
        "nearest that fits is %s",
        etp, layout->ep, ranks, rs_layout_format(&fits, nearest));
}

static rs_status check_shard(const rs_layout *layout)
{
    int ranks = layout->cp * layout->dp;
    if (layout->shard == 0 || ranks % layout->shard == 0)
        return RS_OK;
    rs_layout fits = *layout;
    fits.shard = nearest_divisor(ranks, layout->shard);
    char nearest[RS_LAYOUT_TEXT];
    return rs_error_set(RS_ERR_ARGUMENT,
        "layout: shard=%d: groups of that size must divide dp x cp = %d; the nearest that fits is "
        "%s",
        layout->shard, ranks, rs_layout_format(&fits, nearest));
}

static rs_status check_stage_list(const rs_layout *layout)
{
    int64_t stages = (int64_t)layout->pp * layout->vpp;
    if (layout->stage_count == 0)
        return RS_OK;
    if (layout->stage_count < 0 || layout->stage_count > RS_LAYOUT_STAGES)
        return rs_error_set(RS_ERR_ARGUMENT, "layout: %d stages are listed, %d at most can be",
            layout->stage_count, RS_LAYOUT_STAGES);
    if (layout->stage_count != stages) {
        rs_layout fits = *layout;
        fits.vpp = layout->stage_count % layout->vpp == 0 ? layout->vpp : 1;
        fits.pp = layout->stage_count / fits.vpp;
        char nearest[RS_LAYOUT_TEXT];
        return rs_error_set(RS_ERR_ARGUMENT,
            "layout: stages= lists %d stages, pp x vpp = %" PRId64 "; the nearest that fits is %s",
            layout->stage_count, stages, rs_layout_format(&fits, nearest));
    }
    for (int stage = 0; stage < layout->stage_count; stage++)
        if (layout->stage_end[stage] < (stage > 0 ? layout->stage_end[stage - 1] : 0))
            return rs_error_set(RS_ERR_ARGUMENT,
                "layout: stage %d would end with layer %d, before it begins", stage,
                layout->stage_end[stage] - 1);
    return RS_OK;
}

rs_status rs_layout_check(const rs_layout *layout)
{
    RS_TRY(check_numbers(layout));
    RS_TRY(check_experts(layout));
    RS_TRY(check_shard(layout));
    return check_stage_list(layout);
}

rs_status rs_layout_check_stages(const rs_layout *layout, const rs_space *space)
{
    int64_t layers = rs_space_layer_count(space);
    int count = layout->stage_count;
    if (count == 0 || layout->stage_end[count - 1] == layers)
        return RS_OK;
    rs_layout fits = *layout;
    for (int stage = 0; stage < count; stage++)
        if (stage == count - 1 || fits.stage_end[stage] > layers)
            fits.stage_end[stage] = (int)layers;
    char text[RS_LAYOUT_TEXT];
    char nearest[RS_LAYOUT_TEXT];
    return rs_error_set(RS_ERR_ARGUMENT,
        "layout %s: its stages have %d layers, the model has %" PRId64
        "; the nearest that fits is %s",
        rs_layout_format(layout, text), layout->stage_end[count - 1], layers,
        rs_layout_format(&fits, nearest));
}

/* ---- training ---- */

/* The first stage without a layer, -1 if there is none. */
static int find_empty(const rs_layout *layout, int64_t layers)
{
    int64_t stages = (int64_t)layout->pp * layout->vpp;
    if (layout->stage_count == 0)
        return stages > rs_max64(layers, 1) ? (int)layers : -1;
    for (int stage = 0; stage < layout->stage_count; stage++) {
        int64_t begin;
        int64_t end;
        rs_layout_stage_layers(layout, layers, stage, &begin, &end);
        if (begin == end)
            return stage;
    }
    return -1;
}

/* Every stage must have a layer. */
static rs_status check_layers(const rs_layout *layout, const rs_space *space)
{
    int64_t layers = rs_space_layer_count(space);
    int empty = find_empty(layout, layers);
    if (empty < 0)
        return RS_OK;
    rs_layout fits = *layout;
    fits.stage_count = 0;
    fits.pp = (int)rs_min64(layout->pp, rs_max64(layers, 1));
    fits.vpp = (int)rs_max64(rs_min64(layout->vpp, layers / fits.pp), 1);
    char text[RS_LAYOUT_TEXT];
    char nearest[RS_LAYOUT_TEXT];
    return rs_error_set(RS_ERR_ARGUMENT,
        "layout %s: stage %d would have no layer; the model has %" PRId64
        " layers and each of pp x vpp = %" PRId64 " stages needs one; the nearest that fits is %s",
        rs_layout_format(layout, text), empty, layers, (int64_t)layout->pp * layout->vpp,
        rs_layout_format(&fits, nearest));
}

/* A model without experts has nothing that ep or etp could divide. */
static rs_status check_has_experts(const rs_layout *layout, const rs_space *space)
{
    if (rs_space_expert_count(space) > 0 ||
        (layout->ep == 1 && rs_layout_etp(layout) == layout->tp))
        return RS_OK;
    rs_layout fits = *layout;
    fits.ep = 1;
    fits.etp = 0;
    char text[RS_LAYOUT_TEXT];
    char nearest[RS_LAYOUT_TEXT];
    return rs_error_set(RS_ERR_ARGUMENT,
        "layout %s: ep=%d,etp=%d: the model has no experts; the nearest that fits is %s",
        rs_layout_format(layout, text), layout->ep, rs_layout_etp(layout),
        rs_layout_format(&fits, nearest));
}

/* A space that the trainer does not know how to compute with. */
static rs_status check_tensors(const rs_space *space)
{
    for (int i = 0; i < rs_space_tensor_count(space); i++)
        for (int r = 0; r < rs_space_role_count(space); r++)
            if (rs_space_dtype(space, i, r) != rs_space_role(space, r)->dtype &&
                (rs_space_dtype(space, i, r) != RS_DTYPE_NONE ||
                    rs_space_role(space, r)->role_class != RS_ROLE_OPTIMIZER))
                return rs_error_set(RS_ERR_UNSUPPORTED,
                    "tensor %s, role %s: the trainer wants one element type for all tensors, this "
                    "one has %s",
                    rs_space_tensor(space, i)->name, rs_space_role(space, r)->name,
                    rs_dtype_name(rs_space_dtype(space, i, r)));
    return RS_OK;
}

/* Whether ZeRO cuts two roles of a job that differ in their tensors, and which. */
static bool finds_unlike_roles(
    const rs_layout *layout, const rs_space *space, int *tensor, int *role)
{
    int first = -1;
    for (int r = 0; r < rs_space_role_count(space); r++) {
        if (!rs_layout_shards_class(layout, rs_space_role(space, r)->role_class))
            continue;
        first = first < 0 ? r : first;
        *role = r;
        for (*tensor = 0; *tensor < rs_space_tensor_count(space); ++*tensor)
            if ((rs_space_dtype(space, *tensor, r) == RS_DTYPE_NONE) !=
                (rs_space_dtype(space, *tensor, first) == RS_DTYPE_NONE))
                return true;
    }
    return false;
}

/* Who updates an element must have all its roles. Cut by parameter they go together; in
 * concatenations they do only if these are of the same tensors. */
static rs_status check_roles(const rs_layout *layout, const rs_space *space)
{
    int tensor, role;
    if (layout->zero_cut != RS_CUT_CONCAT || rs_layout_shard_group(layout, false) == 1 ||
        !finds_unlike_roles(layout, space, &tensor, &role))
        return RS_OK;
    rs_layout fits = *layout;
    fits.zero_cut = RS_CUT_PARAM;
    char text[RS_LAYOUT_TEXT];
    char nearest[RS_LAYOUT_TEXT];
    return rs_error_set(RS_ERR_ARGUMENT,
        "layout %s: role %s is not of the same tensors as the others (see tensor %s), so their "
        "concatenations would be cut at different places, and nobody could update; the nearest "
        "that fits is %s",
        rs_layout_format(layout, text), rs_space_role(space, role)->name,
        rs_space_tensor(space, tensor)->name, rs_layout_format(&fits, nearest));
}

rs_status rs_layout_check_trainable(const rs_layout *layout, const rs_space *space)
{
    RS_TRY(rs_layout_check(layout));
    RS_TRY(rs_layout_check_stages(layout, space));
    RS_TRY(check_layers(layout, space));
    RS_TRY(check_roles(layout, space));
    RS_TRY(check_has_experts(layout, space));
    return check_tensors(space);
}
