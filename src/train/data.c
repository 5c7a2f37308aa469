/* The sample reader: pread of a file that is open once, checked byte by byte only where the
 * vocabulary is smaller than a byte. */
#include "train/data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

struct rs_data {
    int fd;
    char *path;
    int64_t size;
    int64_t seq;
    int64_t vocab;
    uint8_t *sample; /* seq + 1 bytes */
};

rs_status rs_data_open(const char *path, int64_t seq, int64_t vocab, rs_data **out)
{
    rs_status status = RS_OK;
    rs_data *data = rs_calloc(1, sizeof *data);
    if (data == NULL)
        return rs_error_memory(sizeof *data);
    data->seq = seq;
    data->vocab = vocab;
    data->fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat about;
    if (data->fd < 0 || fstat(data->fd, &about) != 0) {
        status = rs_error_errno(errno, "data file %s", path);
        goto fail;
    }
    data->size = about.st_size;
    if (data->size < seq + 1) {
        status = rs_error_set(RS_ERR_ARGUMENT,
            "data file %s: has %lld bytes, and one sample of sequence length %lld needs %lld", path,
            (long long)data->size, (long long)seq, (long long)seq + 1);
        goto fail;
    }
    data->path = rs_strdup(path);
    data->sample = rs_calloc((size_t)seq + 1, 1);
    if (data->path == NULL || data->sample == NULL) {
        status = rs_error_memory((size_t)seq + 1);
        goto fail;
    }
    *out = data;
    return RS_OK;

fail:
    rs_data_close(data);
    return status;
}

void rs_data_close(rs_data *data)
{
    if (data == NULL)
        return;
    if (data->fd >= 0)
        close(data->fd);
    free(data->path);
    free(data->sample);
    free(data);
}

static rs_status read_sample(rs_data *data, int64_t number)
{
    int64_t span = data->size - data->seq; /* number of possible starts */
    int64_t start = (int64_t)((unsigned __int128)number * (uint64_t)data->seq % (uint64_t)span);
    int64_t need = data->seq + 1;
    for (int64_t done = 0; done < need;) {
        ssize_t n = pread(data->fd, data->sample + done, (size_t)(need - done), start + done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return rs_error_errno(errno, "data file %s: cannot read %lld bytes at %lld", data->path,
                (long long)need, (long long)start);
        if (n == 0)
            return rs_error_set(RS_ERR_IO,
                "data file %s: ends before byte %lld; it had %lld bytes when the job began",
                data->path, (long long)(start + need), (long long)data->size);
        done += n;
    }
    for (int64_t i = 0; data->vocab < 256 && i < need; i++)
        if (data->sample[i] >= data->vocab)
            return rs_error_set(RS_ERR_MISMATCH,
                "data file %s: byte %lld has value %d, and the model's vocabulary has %lld tokens",
                data->path, (long long)(start + i), data->sample[i], (long long)data->vocab);
    return RS_OK;
}

rs_status rs_data_read(
    rs_data *data, int64_t first, int64_t count, uint8_t *tokens, uint8_t *targets)
{
    for (int64_t i = 0; i < count; i++) {
        RS_TRY(read_sample(data, first + i));
        memcpy(tokens + i * data->seq, data->sample, (size_t)data->seq);
        memcpy(targets + i * data->seq, data->sample + 1, (size_t)data->seq);
    }
    return RS_OK;
}

void rs_batch_deal(
    int64_t batch, int64_t micro, int replicas, int dp, int64_t *first, int64_t *count)
{
    int64_t all = rs_ceil_div(batch, micro);
    int64_t each = all / replicas, more = all % replicas;
    *first = dp * each + rs_min64(dp, more);
    *count = each + (dp < more);
}

void rs_batch_range(int64_t batch, int64_t micro, int64_t number, int64_t *begin, int64_t *end)
{
    *begin = number * micro;
    *end = rs_min64(batch, *begin + micro);
}
