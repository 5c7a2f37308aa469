/*
 * Writers: the table of formats that conversions write, and what a writer works with.
 *
 * A writer is given the tensors to be written and lists the files and what stands where in them
 * (output.h), from the descriptions alone. Copying, syncing, and putting the result where it
 * belongs are the conversion's (convert.c), and so is choosing the tensors before; writers know
 * nothing of either.
 */
#ifndef RS_CKPT_WRITER_H
#define RS_CKPT_WRITER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/catalog.h"
#include "ckpt/logical.h"
#include "ckpt/output.h"
#include "reshard/convert.h"
#include "reshard/status.h"

typedef struct rs_writing {
    const rs_catalog *catalog;
    const rs_convert_options *options;
    rs_logical_list tensors;
    bool whole;     /* the whole state is wanted, not weights alone */
    json_t *extras; /* of the source, and what the conversion says of itself */
    rs_convert_report report;
    const char *name; /* of the target, without folders */
    rs_output output;
    const char *folder; /* that was written to, from `finish` on */
    void *own;          /* the writer's, see `fini` */
} rs_writing;

typedef struct rs_writer {
    const char *name;
    bool whole;       /* takes the optimizer's state; else params alone */
    bool layout;      /* can be for a layout that is asked for */
    bool masters;     /* wants masters of float32 params too */
    bool buffers;     /* of weights alone: with the buffers */
    bool foreign;     /* under other people's names, where the source has the trainer's own */
    bool file;        /* the target is one file, `name`; else the folder */
    bool bounded;     /* divides tensors over files of a bounded size */
    bool keeps_names; /* keeps second names, as names of the same bytes */
    bool lists_names; /* can list them beside the tensors (rs_convert_options, `tied`) */
    /* The source as the writer wants it (rs_catalog_view), where it is not as it is: `*out` stays
     * NULL then. Before tensors are chosen. NULL: it always is. */
    rs_status (*view)(rs_writing *w, rs_catalog **out);
    /* Fills in the output. Every process of a group makes the same. */
    rs_status (*plan)(rs_writing *w);
    /* The checksums of the output's file of that number are known: fills its rooms
     * (rs_output_fill). NULL: there are none. On rank 0. */
    rs_status (*complete)(rs_writing *w, int file);
    /* All files are written and synced: writes into `folder` what is left. NULL: nothing. On
     * rank 0. */
    rs_status (*finish)(rs_writing *w);
    /* Frees `own`, which is not NULL. */
    void (*fini)(rs_writing *w);
} rs_writer;

/* Bytes of a file's tensors at most, one tensor more, as the options say. */
int64_t rs_writing_shard_bytes(const rs_writing *w);

/* Tells a sentence to whoever asked for the conversion. */
void rs_writing_warn(const rs_writing *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* RS_ERR_CANCELLED if whoever asked for it wants it no more. */
rs_status rs_writing_goes_on(const rs_writing *w) RS_MUST_CHECK;

/* What belongs to the run in the extras of a checkpoint, whatever format it went through: the
 * member `extras` of native ones, else all. */
json_t *rs_extras_of_run(json_t *extras);

/* The writers, each in a file of its own. */
extern const rs_writer rs_writer_native;
extern const rs_writer rs_writer_safetensors;
extern const rs_writer rs_writer_torch;
extern const rs_writer rs_writer_universal;

#endif
