/*
 * Layouts by number of ranks: all (tp, pp) not above the present ones are tried, the largest tp
 * first, then the largest pp, and the first that can be trained is taken.
 */
#include "elastic/scale.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Fills in what follows from (tp, pp, dp); false if the ranks cannot be divided so. */
static bool complete(const rs_layout *from, int tp, int pp, int dp, rs_layout *out)
{
    *out = *from;
    out->tp = tp;
    out->pp = pp;
    out->dp = dp;
    if (tp != from->tp)
        out->sp = from->sp && tp > 1;
    if (pp != from->pp)
        out->stage_count = 0;
    int stage = tp * out->cp * dp;
    if (out->etp > stage)
        out->etp = 0;
    while (out->ep > 1 && stage % (rs_layout_etp(out) * out->ep) != 0)
        out->ep--;
    if (out->shard > 0 && (dp * out->cp) % out->shard != 0)
        out->shard = 0;
    return stage % (rs_layout_etp(out) * out->ep) == 0;
}

static bool is_trainable(const rs_layout *layout, const rs_space *space)
{
    char text[RS_LAYOUT_TEXT];
    rs_layout again;
    return rs_layout_parse(rs_layout_format(layout, text), &again) == RS_OK &&
           rs_layout_check_trainable(&again, space) == RS_OK;
}

rs_status rs_scale_to(const rs_layout *from, const rs_space *space, int ranks, rs_layout *out)
{
    char text[RS_LAYOUT_TEXT];
    if (ranks == rs_layout_world(from))
        return rs_error_set(
            RS_ERR_ARGUMENT, "the job has %d rank%s already", ranks, ranks == 1 ? "" : "s");
    for (int tp = from->tp; tp >= 1; tp--)
        for (int pp = from->pp; pp >= 1; pp--) {
            int unit = tp * pp * from->cp;
            if (ranks % unit != 0 || !complete(from, tp, pp, ranks / unit, out))
                continue;
            if (is_trainable(out, space))
                return RS_OK;
        }
    return rs_error_set(RS_ERR_ARGUMENT,
        "no layout near %s has %d rank%s and can be trained: name one with reshard switch",
        rs_layout_format(from, text), ranks, ranks == 1 ? "" : "s");
}

rs_status rs_scale_within(const rs_layout *from, const rs_space *space, int ranks, rs_layout *out)
{
    char text[RS_LAYOUT_TEXT];
    for (int tp = from->tp; tp >= 1; tp--)
        for (int pp = from->pp; pp >= 1; pp--) {
            int unit = tp * pp * from->cp;
            int most = ranks / unit < from->dp ? ranks / unit : from->dp;
            for (int dp = most; dp >= 1; dp--)
                if (complete(from, tp, pp, dp, out) && is_trainable(out, space))
                    return RS_OK;
        }
    return rs_error_set(RS_ERR_ARGUMENT, "no layout near %s fits %d rank%s",
        rs_layout_format(from, text), ranks, ranks == 1 ? "" : "s");
}

rs_status rs_scale_parse(const char *text, int ranks, int *out)
{
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    bool relative = text[0] == '+' || text[0] == '-';
    if (end == text || *end != '\0' || errno != 0 || number > 1 << 20 || number < -(1 << 20))
        return rs_error_set(
            RS_ERR_ARGUMENT, "scale '%s': wanted a number of ranks, +N or -N", text);
    long wanted = relative ? ranks + number : number;
    if (wanted < 1)
        return rs_error_set(RS_ERR_ARGUMENT, "scale %s: of %d rank%s that leaves none", text, ranks,
            ranks == 1 ? "" : "s");
    *out = (int)wanted;
    return RS_OK;
}
