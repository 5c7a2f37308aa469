/*
 * Commands and their options as tables: parsing, help text and error messages come from the same
 * rows.
 */
#ifndef RS_CLI_OPTIONS_H
#define RS_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit codes: what was typed is wrong; it could not be done; it was told to end, and can go on when
 * it is started again (EX_TEMPFAIL, which batch systems take as a wish to be queued again). */
#define CLI_USAGE 2
#define CLI_FAILURE 1
#define CLI_REQUEUE 75

typedef enum cli_kind {
    CLI_END = 0,  /* closes a table */
    CLI_HEADING,  /* a line of the help text; `name` is its text */
    CLI_ARGUMENT, /* positional text, required unless optional; target: const char * */
    CLI_FLAG,     /* no value; target: bool */
    CLI_INT,      /* target: int64_t */
    CLI_BYTES,    /* a whole number, with a unit or without (5GB, 256MiB); target: int64_t */
    CLI_REAL,     /* target: double */
    CLI_TEXT,     /* target: const char * */
    CLI_CHOICE,   /* one of `choices` ("a|b|c"); target: const char * */
    CLI_LIST      /* may be repeated; target: cli_list */
} cli_kind;

typedef struct cli_option {
    cli_kind kind;
    const char *name;    /* without dashes; of an argument, its name in capitals */
    const char *metavar; /* of the value */
    const char *help;
    const char *fallback; /* the default as a user would write it; NULL: the target stays zero */
    size_t target;        /* offset in the command's struct */
    const char *alias;    /* another name, or NULL */
    const char *choices;
    double minimum; /* of a number */
    bool required;
    bool hidden;   /* left out of the help text */
    bool optional; /* of the last arguments: may be left out */
} cli_option;

#define CLI_LIST_MAX 256

/* Values in the order in which they were given; borrowed from argv. */
typedef struct cli_list {
    const char *items[CLI_LIST_MAX];
    int count;
} cli_list;

typedef struct cli_command cli_command;
struct cli_command {
    const char *name;
    const char *summary; /* one line, for the list of commands */
    const char *text;    /* what it does, for its help; lines of at most 78 characters */
    const char *example; /* lines that can be typed */
    const cli_option *options;
    int (*run)(const cli_command *command, int argc, char **argv); /* returns the exit code */
    bool hidden;
};

/*
 * Reads the arguments after the command's name into `target` (a struct of `size` bytes, zeroed and
 * given its defaults here). Returns -1 to go on; else the exit code: the help was printed, or an
 * error. Texts borrow from argv.
 */
int cli_parse(const cli_command *command, int argc, char **argv, void *target, size_t size);

void cli_print_help(const cli_command *command);

/* Errors are counted but not printed: of the ranks of one job only one speaks. */
extern bool cli_quiet;

/* "reshard COMMAND: ..." on stderr; returns the exit code given. */
int cli_error(const cli_command *command, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same with the library's last error, after a prefix such as "--from" (NULL: none). The exit
 * code is CLI_USAGE for the statuses that say that an argument is wrong. */
int cli_fail(const cli_command *command, int status, const char *prefix);

/* The name among `count` names (`stride` bytes apart, the first pointer of each item) that is
 * closest to `text`, or NULL if none is close. */
const char *cli_closest(const char *text, const char *const *names, size_t count);

#endif
