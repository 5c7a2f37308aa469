/*
 * Example 2: plan a change of layout, and explain what it costs before anything moves.
 *
 * A *plan* is what one rank has to do to get from one placement to another: which boxes it copies
 * from whom, in one order that all ranks agree on without a word. Plans are pure: the same
 * arguments give the same plan, so the whole cluster's figures can be computed here, on one
 * machine, for any size.
 *
 *     cc 2_plan.c -o 2_plan $(pkg-config --cflags --libs reshard)
 *     ./2_plan llama-tiny tp=2,dp=2,zero=1 pp=2,dp=2
 *     ./2_plan llama3-8b tp=8,zero=1,dp=2 tp=4,pp=2,dp=2,zero=1 8
 *
 * Arguments: a model (a preset's name, or the path of a config.json), the two layouts, and how many
 * ranks share a node (absent: all of them).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/reshard.h"

static void must(rs_status status)
{
    if (status == RS_OK)
        return;
    fprintf(stderr, "2_plan: %s: %s\n", rs_status_name(status), rs_error_message());
    exit(1);
}

static rs_placement *placement_of(const rs_space *space, const char *text)
{
    rs_layout layout;
    rs_placement *placement;
    char meaning[RS_LAYOUT_TEXT];
    must(rs_layout_parse(text, &layout));
    must(rs_layout_placement(space, &layout, &placement));
    printf("%-22s %s\n", text, rs_layout_describe(&layout, meaning));
    return placement;
}

enum { LINES = 20 };

/* What one rank does: its figures, and the first copies of its list. */
static void explain_rank(
    const rs_placement *from, const rs_placement *to, int rank, const rs_plan_options *options)
{
    rs_plan *plan;
    must(rs_plan_create(from, to, rank, options, &plan));
    printf("\n");
    char *text;
    must(rs_plan_text(plan, &text));
    const char *line = text;
    for (int i = 0; i < LINES && *line != '\0'; i++) {
        size_t length = strcspn(line, "\n");
        printf("%.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
    free(text);
    rs_plan_destroy(plan);
}

static void explain_cluster(
    const rs_placement *from, const rs_placement *to, const rs_plan_options *options)
{
    rs_plan_totals totals;
    must(rs_plan_totals_compute(from, to, options, false, &totals));
    printf("\nall ranks: %" PRId64 " bytes move, and no plan could move fewer than %" PRId64 "\n",
        totals.moved, totals.minimum);
    printf("busiest rank: %" PRId64 " bytes; no choice of sources gives less than %" PRId64
           " (%s bound)\n",
        totals.rank_bytes_max, totals.rank_bytes_bound, totals.bound_kind);
    printf("peak memory of a rank: %" PRId64
           " bytes if the old state is kept until the end, %" PRId64 " if it is freed on the way\n",
        totals.peak_safe, totals.peak_tight);
    rs_plan_totals_fini(&totals);
}

int main(int argc, char **argv)
{
    if (argc != 1 && argc != 4 && argc != 5) {
        fprintf(stderr, "usage: 2_plan [MODEL FROM TO [RANKS-PER-NODE]]\n");
        return 2;
    }
    rs_model model;
    rs_space *space;
    must(rs_model_load(argc > 1 ? argv[1] : "llama-tiny", &model));
    must(rs_model_space(&model, RS_DTYPE_BF16, &space));
    rs_placement *from = placement_of(space, argc > 2 ? argv[2] : "tp=2,dp=2,zero=1");
    rs_placement *to = placement_of(space, argc > 3 ? argv[3] : "pp=2,dp=2");

    /* Segments that are already what they must become are adopted: nobody copies them. */
    rs_plan_options options = {
        .adopt = true,
        .ranks_per_node = argc > 4 ? (int)strtol(argv[4], NULL, 10) : 0,
    };
    explain_cluster(from, to, &options);
    explain_rank(from, to, 0, &options);

    rs_placement_destroy(to);
    rs_placement_destroy(from);
    rs_space_destroy(space);
    return 0;
}
