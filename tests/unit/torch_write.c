/* What is written around tensors: archives beyond 4 GiB, every kind of data in a pickle, and that a
 * file which says that reshard wrote it is not believed blindly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/file.h"
#include "ckpt/pickle_write.h"
#include "ckpt/publish.h"
#include "ckpt/torch_write.h"
#include "ckpt/value_json.h"
#include "ckpt/zip.h"
#include "ckpt/zip_write.h"
#include "reshard/checkpoint.h"
#include "support/ok.h"

static char root[] = "/tmp/unit-torch-write-XXXXXX";
static char path[64];

static int make_root(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(root));
    snprintf(path, sizeof path, "%s/file.pt", root);
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    return rs_remove_folder(root) != RS_OK;
}

static void put(int fd, int64_t at, const rs_bytes *bytes)
{
    OK(bytes->status);
    assert_int_equal(pwrite(fd, bytes->data, bytes->length, at), (ssize_t)bytes->length);
}

/* Sizes and places on both sides of what 32 bits hold; the contents are holes. */
static void test_beyond_4_gib(void **state)
{
    (void)state;
    rs_zip_record records[] = {{.name = "a/data.pkl", .bytes = 100},
        {.name = "a/data/0", .bytes = 0}, {.name = "a/data/1", .bytes = INT64_C(0xffffffff) - 1500},
        {.name = "a/data/2", .bytes = 12}, {.name = "a/data/3", .bytes = INT64_C(0xffffffff)},
        {.name = "a/data/4", .bytes = INT64_C(0x1200000005)}, {.name = "a/version", .bytes = 2}};
    size_t count = sizeof records / sizeof *records;
    int64_t bytes, at = 0;
    rs_bytes around = {0};
    rs_files *files;
    rs_zip zip = {0};
    int file;
    OK(rs_zip_layout(records, count, &bytes));
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_true(fd >= 0);
    for (size_t i = 0; i < count; i++) {
        rs_zip_record *r = &records[i];
        r->crc = 0x1234u + (uint32_t)i;
        assert_int_equal(r->header, at);
        assert_int_equal(r->offset % 64, 0);
        around.length = 0;
        rs_zip_head(r, &around);
        put(fd, at, &around);
        assert_int_equal(at + (int64_t)around.length, r->offset);
        around.length = 0;
        rs_zip_tail(r, &around);
        if (around.length > 0)
            put(fd, r->offset + r->bytes, &around);
        assert_int_equal((int64_t)around.length, rs_zip_tail_bytes(r));
        at = r->offset + r->bytes + (int64_t)around.length;
    }
    around.length = 0;
    rs_zip_end(records, count, &around);
    put(fd, at, &around);
    assert_int_equal(at + (int64_t)around.length, bytes);
    close(fd);
    OK(rs_files_create(&files));
    OK(rs_files_add(files, path, &file));
    OK(rs_zip_read(files, file, 0, bytes, &zip));
    assert_int_equal(zip.count, count);
    assert_int_equal(zip.trailing, 0);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(zip.items[i].name, records[i].name);
        assert_int_equal(zip.items[i].offset, records[i].offset);
        assert_int_equal(zip.items[i].bytes, records[i].bytes);
        assert_int_equal(zip.items[i].crc, records[i].crc);
    }
    rs_zip_fini(&zip);
    rs_files_destroy(files);
    rs_bytes_fini(&around);
    records[1].bytes = INT64_MAX - 10;
    assert_int_equal(rs_zip_layout(records, count, &bytes), RS_ERR_UNSUPPORTED);
    unlink(path);
}

/* Writes one object without tensors as a file, opens it. */
static rs_status reopen(rs_bytes *pickle, rs_checkpoint **out)
{
    rs_torch_make make = {.pickle = *pickle};
    rs_output output = {0};
    *pickle = (rs_bytes){0};
    OK(rs_torch_make_end(&make));
    OK(rs_output_file(&output, "file.pt"));
    OK(rs_torch_make_output(&make, &output, NULL));
    OK(rs_torch_make_complete(&make, &output));
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (size_t i = 0; i < output.parts.count; i++)
        assert_int_equal(
            fwrite(output.parts.items[i].data, 1, (size_t)output.parts.items[i].bytes, f),
            output.parts.items[i].bytes);
    fclose(f);
    rs_output_fini(&output);
    rs_torch_make_fini(&make);
    return rs_checkpoint_open(path, NULL, out);
}

/* JSON into a pickle and back is the same, and what stands for other data became that data. */
static void test_data(void **state)
{
    (void)state;
    static const char text[] =
        "{\"all\":[0,1,255,256,65535,65536,-1,2147483647,-2147483648,2147483648,-2147483649,"
        "9223372036854775807,-9223372036854775807,1.5,-0.0,1e300,true,false,null,\"\","
        "\"caf\\u00e9\"],"
        "\"nan\":{\"float\":\"nan\"},\"inf\":{\"float\":\"-inf\"},"
        "\"big\":[{\"integer\":\"0x8000000000000000\"},{\"integer\":\"-0x123456789abcdef01234\"}],"
        "\"bytes\":[{\"bytes\":\"00ff80c27f\"},{\"bytes\":\"\"},{\"bytes\":\"00...12\"}],"
        "\"set\":{\"set\":[1,\"x\"]},\"complex\":{\"complex\":[1.0,-2.0]},\"empty\":[{},[]],"
        "\"scaler\":{\"opaque\":\"deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler\","
        "\"state\":{\"cur_scale\":512.0,\"dynamic\":true,\"dtype\":\"torch.float16\"}},"
        "\"odd\":{\"opaque\":\"some.Thing\",\"state\":{\"a\":1}},\"deep\":{\"a\":{\"b\":[[{\"c\":1}"
        "]]}}}";
    json_t *json = json_loads(text, 0, NULL);
    rs_bytes pickle = {0};
    rs_checkpoint *checkpoint;
    char *extras;
    assert_non_null(json);
    rs_pickle_begin(&pickle);
    rs_pickle_json(&pickle, json);
    OK(reopen(&pickle, &checkpoint));
    OK(rs_checkpoint_extras(checkpoint, &extras));
    json_t *back = json_loads(extras, 0, NULL);
    assert_non_null(back);
    assert_true(json_equal(json, back));
    rs_checkpoint_close(checkpoint);
    free(extras);
    json_decref(back);
    json_decref(json);
}

static void begin_marked(rs_bytes *p, int64_t version)
{
    rs_pickle_begin(p);
    rs_pickle_dict(p);
    rs_pickle_text(p, "reshard");
    rs_pickle_dict(p);
    rs_pickle_text(p, "version");
    rs_pickle_int(p, version);
    rs_pickle_text(p, "buffers");
    rs_pickle_list(p);
    rs_pickle_list_end(p);
    rs_pickle_dict_end(p);
    rs_pickle_text(p, "model");
    rs_pickle_ordered(p);
}

static void test_distrust(void **state)
{
    (void)state;
    rs_checkpoint *checkpoint;
    rs_bytes p = {0};
    begin_marked(&p, 2);
    rs_pickle_dict_end(&p);
    rs_pickle_dict_end(&p);
    assert_int_equal(reopen(&p, &checkpoint), RS_ERR_UNSUPPORTED);
    begin_marked(&p, 1);
    rs_pickle_text(&p, "a");
    rs_pickle_int(&p, 1); /* no tensor */
    rs_pickle_dict_end(&p);
    rs_pickle_dict_end(&p);
    assert_int_equal(reopen(&p, &checkpoint), RS_ERR_MALFORMED);
    begin_marked(&p, 1); /* no optimizer, no extras */
    rs_pickle_dict_end(&p);
    rs_pickle_dict_end(&p);
    assert_int_equal(reopen(&p, &checkpoint), RS_ERR_MALFORMED);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_beyond_4_gib),
        cmocka_unit_test(test_data),
        cmocka_unit_test(test_distrust),
    };
    return cmocka_run_group_tests(all, make_root, remove_root);
}
