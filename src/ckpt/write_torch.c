/* One file of torch.save (torch_state.h), written front to back. */
#include "ckpt/torch_state.h"
#include "ckpt/torch_write.h"
#include "ckpt/writer.h"

static rs_status write_part(void *context, const rs_box *part, const void *data, size_t bytes)
{
    (void)part;
    return rs_torch_sink_write(context, data, bytes);
}

static rs_status feed(void *context, int tag, rs_torch_sink *sink)
{
    rs_writing *w = context;
    return rs_writing_stream(w, &w->tensors.items[tag], write_part, sink);
}

rs_status rs_write_torch(rs_writing *w)
{
    rs_torch_make make = {0};
    rs_status status = rs_torch_state_make(w->catalog, &w->tensors, w->extras, w->whole, &make);
    if (status == RS_OK)
        status = rs_torch_make_write(&make, w->folder, w->name, feed, w);
    w->report.files = 1;
    rs_torch_make_fini(&make);
    return status;
}
