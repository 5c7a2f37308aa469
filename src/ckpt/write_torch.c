/* One file of torch.save (torch_state.h). */
#include <stdlib.h>

#include "base/error.h"
#include "base/memory.h"
#include "ckpt/torch_state.h"
#include "ckpt/torch_write.h"
#include "ckpt/writer.h"

static rs_status plan(rs_writing *w)
{
    rs_torch_make *make = rs_calloc(1, sizeof *make);
    if (make == NULL)
        return rs_error_memory(sizeof *make);
    w->own = make;
    RS_TRY(rs_torch_state_make(w->catalog, &w->tensors, w->extras, w->whole, make));
    RS_TRY(rs_output_file(&w->output, w->name));
    return rs_torch_make_output(make, &w->output, w->tensors.items);
}

static rs_status complete(rs_writing *w, int file)
{
    (void)file;
    return rs_torch_make_complete(w->own, &w->output);
}

static void fini(rs_writing *w)
{
    rs_torch_make_fini(w->own);
    free(w->own);
}

const rs_writer rs_writer_torch = {.name = "torch",
    .whole = true,
    .buffers = true,
    .foreign = true,
    .keeps_names = true,
    .file = true,
    .plan = plan,
    .complete = complete,
    .fini = fini};
