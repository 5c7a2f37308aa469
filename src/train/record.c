/*
 * Keeping the record.
 *
 * A world that begins anew writes the first one; one that goes on from arenas keeps the epoch that
 * its owner has given it. What the run goes by is written along, so that the job can be gone on
 * with where it was never saved.
 */
#include "train/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crash.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/save.h"

/* Who is on which node matters where state is mirrored. */
static rs_status fill_nodes(rs_job *job)
{
    rs_record *r = &job->record;
    if (rs_job_mirrors(job) == NULL)
        return RS_OK;
    r->nodes = rs_calloc((size_t)job->ranks, sizeof *r->nodes);
    if (r->nodes == NULL)
        return rs_error_memory((size_t)job->ranks * sizeof *r->nodes);
    r->node_count = (size_t)job->ranks;
    memcpy(r->nodes, rs_job_mirrors(job), r->node_count * sizeof *r->nodes);
    return RS_OK;
}

static rs_status fill(rs_job *job)
{
    rs_record *r = &job->record;
    if (r->epoch == 0) {
        rs_record_init(r);
        rs_record former;
        rs_status status = rs_record_read(job->options->job, &former);
        r->epoch = status == RS_OK ? former.epoch : 1;
        if (status == RS_OK)
            rs_record_fini(&former);
        snprintf(r->job, sizeof r->job, "%s", job->id);
        snprintf(r->folder, sizeof r->folder, "%s", job->options->arena_dir);
        r->run = rs_save_extras(job, job->step);
        if (r->run == NULL)
            return rs_error_memory(1);
        RS_TRY(fill_nodes(job));
    }
    r->generation = job->generation;
    memcpy(r->layout, job->layout, sizeof r->layout);
    r->building = -1;
    r->building_layout[0] = '\0';
    r->building_step = 0;
    return RS_OK;
}

rs_status rs_job_record(rs_job *job, bool *unsure)
{
    rs_status status = RS_OK;
    *unsure = false;
    if (job->rank == 0) {
        rs_record former = job->record;
        char why[1000];
        rs_crash_point("record");
        rs_job_end_unheard(job);
        status = fill(job);
        if (status == RS_OK)
            status = rs_record_write(job->options->job, &job->record);
        if (status != RS_OK && former.epoch > 0) {
            snprintf(why, sizeof why, "%s", rs_error_message());
            former.run = job->record.run;
            job->record = former;
            *unsure = rs_record_write(job->options->job, &former) != RS_OK;
            status = rs_error_set(status, "%s", why);
        }
    }
    status = rs_job_agree(job, status);
    int both = *unsure;
    MPI_Bcast(&both, 1, MPI_INT, 0, job->comm);
    *unsure = both != 0;
    if (status == RS_OK)
        rs_crash_point("recorded");
    return status;
}

rs_status rs_job_record_building(rs_job *job)
{
    rs_status status = RS_OK;
    if (job->rank == 0) {
        rs_record *r = &job->record;
        rs_job_end_unheard(job);
        r->building = job->next.generation;
        memcpy(r->building_layout, job->next.text, sizeof r->building_layout);
        r->building_step = job->step;
        status = rs_record_write(job->options->job, r);
    }
    return rs_job_agree(job, status);
}

rs_status rs_job_record_remove(rs_job *job)
{
    if (job->rank != 0)
        return RS_OK;
    rs_job_end_unheard(job);
    return rs_record_remove(job->options->job);
}
