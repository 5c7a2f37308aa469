/* Fixtures: folders with a checkpoint and a truth.json that says what must come out of it. */
#ifndef TEST_FORMAT_TRUTH_H
#define TEST_FORMAT_TRUTH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>

#include "reshard/checkpoint.h"
#include "support/ok.h"

/* "<shared folder>/fixtures/<family>", static; exits the program with 77 if it is not there. */
const char *fixture_family(const char *family);

/* Calls for every case of a family in order of name; `truth` is its truth.json. */
typedef void (*fixture_function)(const char *folder, const char *name, const json_t *truth);
void for_fixtures(const char *family, fixture_function function);

/* "<folder>/<name>", in one of a few static buffers. */
const char *in_folder(const char *folder, const char *name);

/* The truth's text member, "" if absent. */
const char *truth_text(const json_t *truth, const char *key);

/* Opens the checkpoint at a path, which must succeed. */
rs_checkpoint *opened(const char *path);

/* Whether a warning of it contains `text`. */
bool has_warning(const rs_checkpoint *checkpoint, const char *text);

/* Asserts that the last error says `why`. */
void expect_message(const char *why);

/* Opens, checks and hashes everything. The first error, with its message in rs_error_message. */
rs_status read_everything(const char *path, const rs_checkpoint_options *options);

/* Asserts that an entry of that name and role is as `tensor` (a row of a truth) says: dtype, shape,
 * sha256. */
void assert_entry(
    const rs_checkpoint *checkpoint, const char *name, const char *role, const json_t *tensor);

/* Asserts that opening or reading `path` fails, naming file and reason; prints the message. */
void assert_refused(const char *path, const rs_checkpoint_options *options);

/* The process may not start programs or open sockets from now on: it would be killed. */
void forbid_execution(void);

/* Asserts that the process never used more than `mib` of memory (not under a sanitizer). */
void assert_peak_below(int64_t mib);

/* A folder for files that a test makes, removed with its files at the end of the program. */
const char *scratch_folder(void);

/* Writes a file into it and returns its path (static buffers). */
const char *scratch_file(const char *name, const void *data, size_t bytes);

/* The file's bytes; free(). */
unsigned char *slurp(const char *path, size_t *bytes);

/*
 * Damaged twins of the file at `path`: cut at many lengths, and with bytes flipped by a generator
 * started with `seed`. Each is written to the scratch folder and handed to `attempt`. Cut files
 * must be refused.
 */
typedef rs_status (*attempt_function)(const char *path);
void damaged_twins(const char *path, int cuts, int flips, uint64_t seed, attempt_function attempt);

#endif
