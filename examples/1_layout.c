/*
 * Example 1: describe a space by hand, and see who holds what under a layout.
 *
 * A *space* lists the tensors of a job in canonical form (whole, unfused, unpadded) and the *roles*
 * kept for each: here the parameter and one optimizer moment. What an axis counts (layers,
 * feed-forward rows, vocabulary) is said once, with the tensor; a *layout* such as tp=2,pp=2 then
 * knows how to cut it. The two together answer, for any rank and without a table of all ranks,
 * which boxes it holds and where their bytes lie: that is a *placement*, and everything else in
 * this library works on placements.
 *
 *     cc 1_layout.c -o 1_layout $(pkg-config --cflags --libs reshard)
 *     ./1_layout tp=2,dp=2,zero=1
 *
 * Try tp=3 (rows that do not divide), pp=2 (layers on two stages), and dp=2 with and without zero=1
 * (the moment in flat pieces, or whole on every replica).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "reshard/reshard.h"

/* Every call that can fail returns a status; the library keeps a sentence about the last failure.
 */
static void must(rs_status status)
{
    if (status == RS_OK)
        return;
    fprintf(stderr, "1_layout: %s: %s\n", rs_status_name(status), rs_error_message());
    exit(1);
}

/* A model of two layers: an embedding, a feed-forward matrix in each layer, a norm at the end. */
static rs_space *describe_model(void)
{
    static const rs_role roles[] = {
        {.name = "param", .dtype = RS_DTYPE_F32, .role_class = RS_ROLE_MODEL},
        {.name = "exp_avg", .dtype = RS_DTYPE_F32, .role_class = RS_ROLE_OPTIMIZER},
    };
    static const rs_tensor tensors[] = {
        {.name = "embed.weight",
            .ndim = 2,
            .shape = {100, 16},
            .axis = {RS_AXIS_VOCAB, RS_AXIS_WHOLE},
            .stage = RS_STAGE_FIRST},
        /* Layers are an axis: one tensor, however many layers there are. */
        {.name = "layers.up.weight",
            .ndim = 3,
            .shape = {2, 40, 16},
            .axis = {RS_AXIS_LAYER, RS_AXIS_FFN, RS_AXIS_WHOLE}},
        {.name = "norm.weight",
            .ndim = 1,
            .shape = {16},
            .axis = {RS_AXIS_WHOLE},
            .stage = RS_STAGE_LAST},
    };
    rs_space *space;
    must(rs_space_create(&space));
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        must(rs_space_add_role(space, &roles[i], NULL));
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        must(rs_space_add_tensor(space, &tensors[i], NULL));
    return space;
}

static void print_rank(const rs_space *space, const rs_placement *placement, int rank)
{
    rs_shard_list shards = {0};
    int64_t bytes = 0;
    char box[96];
    printf("rank %d\n", rank);
    must(rs_placement_shards(placement, rank, -1, &shards));
    for (size_t i = 0; i < shards.count; i++) {
        const rs_shard *shard = &shards.items[i];
        printf("  %-18s %-8s %-20s segment %d, byte %" PRId64 "\n",
            rs_space_tensor(space, shard->tensor)->name, rs_space_role(space, shard->role)->name,
            rs_box_format(&shard->box, box, sizeof box), shard->segment, shard->offset);
        bytes += rs_box_volume(&shard->box) * (int64_t)rs_dtype_size(shard->dtype);
    }
    printf("  %" PRId64 " of the job's %" PRId64 " bytes\n", bytes, rs_space_bytes(space, -1));
    rs_shard_list_fini(&shards);
}

int main(int argc, char **argv)
{
    rs_layout layout;
    must(rs_layout_parse(argc > 1 ? argv[1] : "tp=2,dp=2,zero=1", &layout));
    char text[RS_LAYOUT_TEXT];
    printf("%s\n", rs_layout_describe(&layout, text));

    rs_space *space = describe_model();
    rs_placement *placement;
    must(rs_layout_placement(space, &layout, &placement));
    for (int rank = 0; rank < rs_placement_holders(placement); rank++)
        print_rank(space, placement, rank);

    /* The other question that a placement answers: who has a given box? */
    int tensor = rs_space_find_tensor(space, "layers.up.weight");
    rs_box row = {.ndim = 3, .offset = {1, 25, 0}, .extent = {1, 1, 16}};
    rs_holding_list holders = {0};
    must(
        rs_placement_locate(placement, tensor, rs_space_find_role(space, "param"), &row, &holders));
    printf("row 25 of layer 1 is held by rank");
    for (size_t i = 0; i < holders.count; i++)
        for (size_t k = 0; k < holders.items[i].count; k++)
            printf(" %d", holders.ranks[holders.items[i].first + k]);
    printf("\n");
    rs_holding_list_fini(&holders);

    rs_placement_destroy(placement);
    rs_space_destroy(space);
    return 0;
}
