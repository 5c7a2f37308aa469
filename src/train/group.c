/* Groups, by counting coordinates: cost dp x cp for a place, its square for a group. */
#include "train/group.h"

static int place_of(const rs_layout *layout, rs_coords at)
{
    int place = 0, rank = rs_layout_rank(layout, at);
    for (at.dp = 0; at.dp < layout->dp; at.dp++)
        for (at.cp = 0; at.cp < layout->cp; at.cp++)
            place += rs_layout_rank(layout, at) < rank;
    return place;
}

int rs_group_place(const rs_layout *layout, int rank)
{
    return place_of(layout, rs_layout_coords(layout, rank));
}

void rs_group_ranks(const rs_layout *layout, int rank, int stage, int *ranks)
{
    int size = rs_layout_shard_group(layout, false);
    int first = rs_group_place(layout, rank) / size * size;
    rs_coords at = rs_layout_coords(layout, rank);
    at.pp = stage;
    for (at.dp = 0; at.dp < layout->dp; at.dp++)
        for (at.cp = 0; at.cp < layout->cp; at.cp++) {
            int place = place_of(layout, at);
            if (place >= first && place < first + size)
                ranks[place - first] = rs_layout_rank(layout, at);
        }
}
