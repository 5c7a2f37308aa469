/*
 * Requests to a running job.
 *
 * 1. A switch is done in place where it can be: the layout has as many ranks as the one in use, or
 *    the job has idle ranks and it fits. Every other one needs another world, which only a
 *    supervisor can start; a job under a launcher of the user's own refuses it.
 * 2. There is one change at a time. While the supervisor builds a world the layout is held: the new
 *    world plans from it.
 */
#include "train/requests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "elastic/scale.h"
#include "train/member.h"
#include "train/save.h"

static rs_status refuse(
    rs_job *job, const rs_control_request *request, const char *state, const char *why)
{
    rs_job_notice(job, "%s %s refused: %s",
        request->kind == RS_CONTROL_SCALE   ? "scaling by"
        : request->kind == RS_CONTROL_DRAIN ? "fitting ranks to slots:"
                                            : "switch to",
        request->layout, why);
    if (request->name[0] == '\0') /* the supervisor's own: it tries again */
        return RS_OK;
    return rs_control_answer(job->control, request->name, state, why, NULL);
}

static rs_status refuse_error(rs_job *job, const rs_control_request *request)
{
    char why[1200];
    snprintf(why, sizeof why, "%s", rs_error_message());
    return refuse(job, request, "refused", why);
}

/* The layout that a request asks for. */
static rs_status read_layout(
    const rs_job *job, const rs_control_request *request, rs_layout *layout)
{
    int ranks;
    if (request->kind == RS_CONTROL_SCALE) {
        RS_TRY(rs_scale_parse(request->layout, job->world.size, &ranks));
        return rs_scale_to(&job->world.layout, job->space, ranks, layout);
    }
    if (request->kind == RS_CONTROL_DRAIN) {
        ranks = (int)strtol(request->layout, NULL, 10);
        *layout = job->world.layout;
        return job->world.size <= ranks
                   ? RS_OK
                   : rs_scale_within(&job->world.layout, job->space, ranks, layout);
    }
    RS_TRY(rs_layout_parse(request->layout, layout));
    return rs_layout_check_trainable(layout, job->space);
}

static bool in_place(const rs_job *job, const rs_control_request *request, const rs_layout *layout)
{
    int size = rs_layout_world(layout);
    bool idle = job->ranks > job->world.size;
    return !request->new_world && size <= job->ranks && (idle || size == job->world.size);
}

rs_status rs_requests_elsewhere(
    rs_job *job, const char *name, const char *layout, const char *drain)
{
    return rs_member_tell(job->options->member, "elsewhere",
        json_pack("{s:s,s:s,s:s}", "request", name, "layout", layout, "drain", drain));
}

/* Why this job cannot have another number of ranks, and how one is started that can. */
static rs_status refuse_fixed(
    rs_job *job, const rs_control_request *request, const rs_layout *layout)
{
    char why[RS_TRAIN_PATH + 600], text[RS_LAYOUT_TEXT];
    if (request->kind == RS_CONTROL_SWITCH && !request->new_world &&
        rs_layout_world(layout) > job->ranks) {
        snprintf(why, sizeof why, "layout %s needs %d ranks, and the job has %d", request->layout,
            rs_layout_world(layout), job->ranks);
        return refuse(job, request, "refused", why);
    }
    snprintf(why, sizeof why,
        "the job was started under mpirun or srun and is one fixed world of %d ranks; to change "
        "their number, start it without: reshard train --resume %.*s --layout %.200s",
        job->ranks, RS_TRAIN_PATH / 2, job->options->job, rs_layout_format(layout, text));
    return refuse(job, request, "refused", why);
}

static rs_status take_change(rs_job *job, const rs_control_request *request, rs_order *order)
{
    rs_layout layout;
    char text[RS_LAYOUT_TEXT], why[1200];
    if (read_layout(job, request, &layout) != RS_OK)
        return refuse_error(job, request);
    rs_layout_format(&layout, text);
    if (job->next.pending) {
        snprintf(why, sizeof why, "a switch to %s is under way", job->next.text);
        return refuse(job, request, "busy", why);
    }
    if (job->held)
        return refuse(
            job, request, "busy", "a new world is being built (reshard cancel gives it up)");
    if (!request->new_world && rs_layout_equal(&layout, &job->world.layout)) {
        snprintf(why, sizeof why, "the job has the layout %s already", job->layout);
        return refuse(job, request, "refused", why);
    }
    bool fixed = job->options->member == NULL;
    bool here = in_place(job, request, &layout) ||
                (fixed && !request->new_world && request->kind == RS_CONTROL_SWITCH &&
                    rs_layout_world(&layout) <= job->ranks);
    if (!here)
        return fixed ? refuse_fixed(job, request, &layout)
                     : rs_requests_elsewhere(job, request->name, text, request->drain);
    RS_TRY(rs_control_answer(
        job->control, request->name, "accepted", "the switch is being prepared", NULL));
    rs_switch_reset(job);
    job->next.pending = true;
    job->next.due = -1;
    snprintf(job->next.request, sizeof job->next.request, "%s", request->name);
    snprintf(job->next.text, sizeof job->next.text, "%s", text);
    order->kind = RS_ORDER_PREPARE;
    snprintf(order->layout, sizeof order->layout, "%s", text);
    return RS_OK;
}

static rs_status take_request(rs_job *job, const rs_control_request *request, rs_order *order)
{
    bool waits;
    switch (request->kind) {
    case RS_CONTROL_SAVE:
        waits = rs_saver_request(job->saver, request->name);
        return rs_control_answer(job->control, request->name, waits ? "accepted" : "busy",
            waits ? "the state is saved after this step" : "too many requests wait", NULL);
    case RS_CONTROL_STOP:
        job->stop_asked = true;
        if (request->name[0] == '\0')
            return RS_OK;
        return rs_control_answer(
            job->control, request->name, "done", "the job stops after its current step", NULL);
    case RS_CONTROL_SWITCH:
    case RS_CONTROL_SCALE:
    case RS_CONTROL_DRAIN:
        return take_change(job, request, order);
    case RS_CONTROL_CANCEL:
        break;
    }
    return refuse(job, request, "refused", "no new world is being built");
}

/* ---- the supervisor's words ---- */

/* The supervisor wants to build a world from this one as it is. */
static rs_status hold(rs_job *job)
{
    if (job->next.pending)
        return rs_member_tell(job->options->member, "busy",
            json_pack("{s:s}", "message", "a switch in place is under way"));
    job->held = true;
    return rs_member_tell(job->options->member, "held",
        json_pack("{s:s,s:i,s:i,s:I}", "layout", job->layout, "generation", job->generation,
            "ranks", job->world.size, "scheduled", (json_int_t)job->scheduled));
}

static bool read_request(const json_t *word, rs_control_request *out)
{
    const char *name = json_string_value(json_object_get(word, "name"));
    const char *kind = json_string_value(json_object_get(word, "kind"));
    const char *layout = json_string_value(json_object_get(word, "layout"));
    const char *drain = json_string_value(json_object_get(word, "drain"));
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", name != NULL ? name : "");
    snprintf(out->layout, sizeof out->layout, "%s", layout != NULL ? layout : "");
    snprintf(out->drain, sizeof out->drain, "%s", drain != NULL ? drain : "");
    out->new_world = json_is_true(json_object_get(word, "new_world"));
    return kind != NULL && rs_control_kind_parse(kind, &out->kind) == RS_OK;
}

static rs_status take_word(rs_job *job, const json_t *word, rs_order *order)
{
    const char *what = json_string_value(json_object_get(word, "do"));
    rs_control_request request;
    if (what == NULL)
        return RS_OK;
    if (strcmp(what, "request") == 0 && read_request(word, &request))
        return take_request(job, &request, order);
    if (strcmp(what, "hold") == 0)
        return hold(job);
    if (strcmp(what, "quiesce") == 0)
        job->leave_asked = true;
    if (strcmp(what, "go_on") == 0)
        job->held = job->leave_asked = false;
    return RS_OK;
}

rs_status rs_requests_take(rs_job *job, rs_order *order)
{
    rs_member *member = job->options->member;
    rs_control_request request;
    if (member == NULL) {
        while (rs_control_poll(job->control, &request))
            RS_TRY(take_request(job, &request, order));
        return RS_OK;
    }
    for (json_t *word; (word = rs_member_poll(member)) != NULL;) {
        rs_status status = take_word(job, word, order);
        json_decref(word);
        RS_TRY(status);
    }
    return RS_OK;
}
