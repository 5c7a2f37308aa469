/*
 * Leaving a host: an ordinary change of worlds, for which the host has no slots. When the old world
 * has gone the host's memory is cleaned and its helper ends; so nothing of the job is there then.
 * A change that fails gives the host its slots back.
 *
 * Asked for by a request, by a signal to a host's ranks, or by the file of hosts, which is looked
 * at every other second. What the supervisor itself asks for is asked again until it is done.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/error.h"
#include "cli/subject.h"
#include "cli/supervisor.h"

#define SWEEP_SECONDS 10 /* for a host that is left, at most */
/* Of the heartbeats' time-out: nobody is answered meanwhile, and the world's lease is to hold. */
#define SWEEP_SHARE (LEASE_SHARE / 2)
#define AGAIN_SECONDS 5 /* between attempts of its own to leave a host */
#define LOOK_SECONDS 2  /* between looks at the file of hosts */

/* Nothing of the job is left there; of a host that does not answer it goes when it does again. */
static void leave(supervisor *s, int host)
{
    fleet_host *h = &s->fleet->hosts[host];
    rs_status status = RS_OK;
    if (!h->here) {
        status = fleet_call(h, json_pack("{s:s,s:b}", "do", "sweep", "state", 1),
            fmin(SWEEP_SECONDS, SWEEP_SHARE * s->launch->heartbeat), NULL);
        if (status == RS_OK)
            fleet_dismiss(h);
    }
    fleet_note(s->fleet);
    change_note_worlds(s);
    if (status == RS_OK)
        fprintf(stderr, "reshard train: nothing of the job is left on host %s%s\n", h->name,
            h->here ? " but this process" : "");
    else
        fprintf(stderr, "reshard train: what the job has on %s is left until %s: %s\n", h->name,
            h->link == NULL ? "it answers" : "the job ends", rs_error_message());
}

/* Slots that would be left without a host; its own are as before. */
static int slots_without(supervisor *s, int host)
{
    rs_host *place = &s->fleet->file.items[host];
    int had = place->slots;
    place->slots = 0;
    int left = fleet_slots(s->fleet);
    place->slots = had;
    return left;
}

static bool is_busy(const supervisor *s)
{
    return s->draining >= 0 || s->want.pending || s->handover.state != RS_HANDOVER_IDLE ||
           s->stopping || s->survival.pending || s->active == NULL;
}

/* What the active world is asked, which says the host again when it wants another world for it. */
static void make_request(const supervisor *s, int host, int slots, rs_control_request *out)
{
    out->kind = RS_CONTROL_DRAIN;
    out->new_world = true;
    snprintf(out->layout, sizeof out->layout, "%d", slots);
    snprintf(out->drain, sizeof out->drain, "%s", s->fleet->hosts[host].name);
}

/* In the supervisor's own name. */
static void ask_to_leave(supervisor *s, int host)
{
    rs_control_request request = {.name = ""};
    if (is_busy(s) || cli_now() < s->drain_when)
        return;
    s->drain_when = cli_now() + AGAIN_SECONDS;
    make_request(s, host, slots_without(s, host), &request);
    change_ask(s, &request);
}

void drain_told(supervisor *s, int host)
{
    if (s->draining >= 0 || s->stopping)
        return;
    if (host < 0 || slots_without(s, host) == 0)
        supervisor_stop(s, SIGTERM);
    else
        ask_to_leave(s, host);
}

/* ---- the file of hosts ---- */

/* A host's new number of slots. One that is being left gets them when that has ended. */
static void take_slots(supervisor *s, int host, int slots)
{
    bool drains = host == s->draining;
    int *has = drains ? &s->drained_slots : &s->fleet->file.items[host].slots;
    bool given = slots > 0 && (slots != *has || s->leaving[host]);
    s->leaving[host] = slots == 0 && *has > 0;
    if (given)
        *has = slots;
    if (drains)
        s->drained_returns = given || (s->drained_returns && slots > 0);
    else if (given)
        fleet_recall(s->fleet, host);
}

static void take_file(supervisor *s, const rs_hosts *file)
{
    fleet *f = s->fleet;
    for (int h = 0; h < f->count; h++) {
        int slots = 0;
        for (int i = 0; i < file->count; i++)
            if (rs_host_is(file->items[i].name, f->hosts[h].name))
                slots = file->items[i].slots;
        take_slots(s, h, slots);
    }
    for (int i = 0; i < file->count; i++)
        if (fleet_find(f, file->items[i].name) < 0 && fleet_add(f, &file->items[i]) != RS_OK)
            fprintf(stderr, "reshard train: %s\n", rs_error_message());
    fleet_note(f);
    change_note_worlds(s);
}

static void look_at_file(supervisor *s)
{
    struct stat about;
    rs_hosts file;
    const char *path = s->options->hosts;
    if (path[0] == '\0' || stat(path, &about) != 0)
        return;
    struct timespec *changed = &s->fleet->changed;
    if (about.st_mtim.tv_sec == changed->tv_sec && about.st_mtim.tv_nsec == changed->tv_nsec)
        return;
    *changed = about.st_mtim;
    if (rs_hosts_read(path, &file) == RS_OK)
        take_file(s, &file);
    else
        fprintf(stderr, "reshard train: the hosts are as they were: %s\n", rs_error_message());
}

void drain_tend(supervisor *s)
{
    if (s->fleet->count == 0)
        return;
    if (cli_now() >= s->hosts_when) {
        s->hosts_when = cli_now() + LOOK_SECONDS;
        look_at_file(s);
    }
    for (int h = 0; h < s->fleet->count; h++) {
        if (!s->leaving[h] || is_busy(s))
            continue;
        if (world_ranks_on(s->active, h) == 0) {
            s->fleet->file.items[h].slots = 0;
            s->leaving[h] = false;
            leave(s, h);
        } else if (slots_without(s, h) > 0) {
            ask_to_leave(s, h);
        }
    }
}

/* ---- requests ---- */

bool drain_asked(supervisor *s, rs_control_request *request)
{
    char text[RS_CONTROL_LAYOUT + 200];
    int host = fleet_find(s->fleet, request->layout);
    if (host < 0) {
        snprintf(text, sizeof text, "the job has no host '%s'", request->layout);
        change_reply(s, request->name, "refused", text, NULL);
        return false;
    }
    if (is_busy(s)) {
        change_reply(s, request->name, "busy", "another change is under way", NULL);
        return false;
    }
    int slots = slots_without(s, host);
    if (slots == 0) {
        change_reply(s, request->name, "refused", "no other host has a slot", NULL);
        return false;
    }
    if (world_ranks_on(s->active, host) == 0) {
        s->fleet->file.items[host].slots = 0;
        leave(s, host);
        change_reply(s, request->name, "done", "no rank was on it, and none will be", NULL);
        return false;
    }
    make_request(s, host, slots, request);
    return true;
}

void drain_begin(supervisor *s, int host)
{
    if (host < 0)
        return;
    s->draining = host;
    s->drained_slots = s->fleet->file.items[host].slots;
    s->drained_returns = false;
    s->fleet->file.items[host].slots = 0;
}

void drain_end(supervisor *s, bool done)
{
    int host = s->draining;
    if (host < 0)
        return;
    s->draining = -1;
    s->leaving[host] = s->leaving[host] && !done;
    if (!done) {
        s->fleet->file.items[host].slots = s->drained_slots;
        return;
    }
    leave(s, host);
    if (!s->drained_returns)
        return;
    s->fleet->file.items[host].slots = s->drained_slots;
    fleet_recall(s->fleet, host);
    fleet_note(s->fleet);
}
