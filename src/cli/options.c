/*
 * Option tables.
 *
 * A command is a table of rows: name, kind, what it means, default, and where its value goes in the
 * command's struct. Parsing walks the arguments once and looks each up in the table; the help text
 * and every error come from the same row, so that they cannot disagree.
 *
 * 1. A default is text and is parsed like a given value: it cannot be out of range unnoticed.
 * 2. `--name value` and `--name=value` mean the same; `--` ends the options.
 * 3. Of an option given twice the last value counts, except for lists.
 * 4. Whoever misspells a name is told the nearest one (edit distance).
 */
#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "reshard/status.h"

bool cli_quiet;

static void print_error(const cli_command *command, const char *format, va_list args)
{
    if (command != NULL)
        fprintf(stderr, "reshard %s: ", command->name);
    else
        fprintf(stderr, "reshard: ");
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
}

int cli_error(const cli_command *command, int code, const char *format, ...)
{
    if (cli_quiet)
        return code;
    va_list args;
    va_start(args, format);
    print_error(command, format, args);
    va_end(args);
    if (code == CLI_USAGE && command != NULL && !command->hidden)
        fprintf(stderr, "try: reshard help %s\n", command->name);
    return code;
}

int cli_fail(const cli_command *command, int status, const char *prefix)
{
    const char *detail = rs_error_message();
    if (detail[0] == '\0')
        detail = rs_status_name(status);
    bool argument = status == RS_ERR_ARGUMENT || status == RS_ERR_UNSUPPORTED;
    int code = argument ? CLI_USAGE : CLI_FAILURE;
    if (!cli_quiet)
        fprintf(stderr, "reshard %s: %s%s%s\n", command->name, prefix != NULL ? prefix : "",
            prefix != NULL ? ": " : "", detail);
    return code;
}

/* Edit distance with a row of the usual table; texts of more than 63 characters are far from all.
 */
static int distance(const char *a, const char *b)
{
    enum { LONGEST = 63 };
    size_t na = strlen(a), nb = strlen(b);
    if (na > LONGEST || nb > LONGEST)
        return LONGEST;
    int row[LONGEST + 1];
    for (size_t j = 0; j <= nb; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int shorter = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            row[j] = change < shorter ? change : shorter;
        }
    }
    return row[nb];
}

const char *cli_closest(const char *text, const char *const *names, size_t count)
{
    const char *best = NULL;
    int least = (int)strlen(text) / 2 + 1;
    for (size_t i = 0; i < count; i++) {
        int d = distance(text, names[i]);
        if (d < least) {
            least = d;
            best = names[i];
        }
    }
    return best;
}

static bool takes_value(const cli_option *option)
{
    return option->kind >= CLI_INT;
}

/* "300", "5GB" (powers of 1000), "256MiB" or "256M" (powers of 1024). */
static bool read_bytes(const char *text, int64_t *out)
{
    static const char units[] = "KMGTP";
    char *end;
    long long number = strtoll(text, &end, 10);
    int64_t step = 1024, bytes = number;
    if (end == text || errno != 0)
        return false;
    const char *unit = *end != '\0' ? strchr(units, *end) : NULL;
    if (unit != NULL) {
        end++;
        if (end[0] == 'B')
            step = 1000;
        else if (end[0] == 'i')
            end++;
        for (const char *u = units; u <= unit; u++)
            if (!rs_mul_fits(bytes, step, &bytes))
                return false;
    }
    end += *end == 'B';
    *out = bytes;
    return *end == '\0';
}

static const cli_option *find(const cli_command *command, const char *name, size_t length)
{
    for (const cli_option *o = command->options; o->kind != CLI_END; o++) {
        if (o->kind == CLI_HEADING || o->kind == CLI_ARGUMENT)
            continue;
        if (strlen(o->name) == length && strncmp(o->name, name, length) == 0)
            return o;
        if (o->alias != NULL && strlen(o->alias) == length && strncmp(o->alias, name, length) == 0)
            return o;
    }
    return NULL;
}

static int unknown(const cli_command *command, const char *name, size_t length)
{
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)(length < 63 ? length : 63), name);
    const char *names[128];
    size_t count = 0;
    for (const cli_option *o = command->options; o->kind != CLI_END && count < 126; o++) {
        if (o->kind == CLI_HEADING || o->kind == CLI_ARGUMENT || o->hidden)
            continue;
        names[count++] = o->name;
        if (o->alias != NULL)
            names[count++] = o->alias;
    }
    const char *near = cli_closest(text, names, count);
    if (near != NULL)
        return cli_error(command, CLI_USAGE, "no option --%s; did you mean --%s?", text, near);
    return cli_error(command, CLI_USAGE, "no option --%s", text);
}

/* True if `text` is one of "a|b|c". */
static bool is_choice(const char *choices, const char *text)
{
    size_t length = strlen(text);
    for (const char *c = choices; c != NULL; c = strchr(c, '|'), c = c != NULL ? c + 1 : NULL) {
        size_t n = strcspn(c, "|");
        if (n == length && strncmp(c, text, n) == 0)
            return true;
    }
    return false;
}

/* Puts a value where its row says. -1, or the exit code. */
static int store(
    const cli_command *command, const cli_option *option, const char *value, void *target)
{
    void *place = (char *)target + option->target;
    const char *name = option->name;
    char *end = NULL;
    errno = 0;
    switch (option->kind) {
    case CLI_INT: {
        long long number = strtoll(value, &end, 10);
        if (end == value || *end != '\0' || errno != 0 || (double)number < option->minimum)
            return cli_error(command, CLI_USAGE,
                "--%s: wanted a whole number from %.0f on, found '%s'", name, option->minimum,
                value);
        *(int64_t *)place = number;
        return -1;
    }
    case CLI_BYTES:
        if (!read_bytes(value, place) || (double)*(int64_t *)place < option->minimum)
            return cli_error(command, CLI_USAGE,
                "--%s: wanted bytes from %.0f on, or with a unit (5GB, 256MiB), found '%s'", name,
                option->minimum, value);
        return -1;
    case CLI_REAL: {
        double number = strtod(value, &end);
        if (end == value || *end != '\0' || errno != 0 || !isfinite(number) ||
            number < option->minimum)
            return cli_error(command, CLI_USAGE, "--%s: wanted a number from %g on, found '%s'",
                name, option->minimum, value);
        *(double *)place = number;
        return -1;
    }
    case CLI_CHOICE:
        if (!is_choice(option->choices, value))
            return cli_error(command, CLI_USAGE, "--%s: wanted one of %s, found '%s'", name,
                option->choices, value);
        *(const char **)place = value;
        return -1;
    case CLI_LIST: {
        cli_list *list = place;
        if (list->count == CLI_LIST_MAX)
            return cli_error(
                command, CLI_USAGE, "--%s: given more than %d times", name, CLI_LIST_MAX);
        list->items[list->count++] = value;
        return -1;
    }
    default:
        if (value[0] == '\0')
            return cli_error(command, CLI_USAGE, "%s%s: wanted a value, found an empty text",
                option->kind == CLI_ARGUMENT ? "" : "--", name);
        *(const char **)place = value;
        return -1;
    }
}

static int set_defaults(const cli_command *command, void *target, size_t size)
{
    memset(target, 0, size);
    for (const cli_option *o = command->options; o->kind != CLI_END; o++) {
        if (o->fallback == NULL || !takes_value(o))
            continue;
        int code = store(command, o, o->fallback, target);
        if (code >= 0)
            return code;
    }
    return -1;
}

/* The arguments in order, then whatever is required and was not given. */
static int check_given(const cli_command *command, int argument_count, const bool *given)
{
    int wanted = 0;
    for (const cli_option *o = command->options; o->kind != CLI_END; o++) {
        if (o->kind == CLI_ARGUMENT && wanted++ >= argument_count && !o->optional)
            return cli_error(command, CLI_USAGE, "%s is missing: %s", o->name, o->help);
        if (o->required && !given[o - command->options])
            return cli_error(
                command, CLI_USAGE, "--%s %s is missing: %s", o->name, o->metavar, o->help);
    }
    return -1;
}

static const cli_option *argument_row(const cli_command *command, int number)
{
    for (const cli_option *o = command->options; o->kind != CLI_END; o++) {
        if (o->kind == CLI_ARGUMENT && number-- == 0)
            return o;
    }
    return NULL;
}

/* One word "--name", "--name=value": moves `*at` past a separate value. */
static int parse_option(
    const cli_command *command, int argc, char **argv, int *at, void *target, bool *given)
{
    const char *name = argv[*at] + 2;
    const char *value = strchr(name, '=');
    size_t length = value != NULL ? (size_t)(value - name) : strlen(name);
    const cli_option *option = find(command, name, length);
    if (option == NULL)
        return unknown(command, name, length);
    given[option - command->options] = true;
    if (!takes_value(option)) {
        if (value != NULL)
            return cli_error(
                command, CLI_USAGE, "--%s takes no value, found '%s'", option->name, value + 1);
        *(bool *)((char *)target + option->target) = true;
        return -1;
    }
    if (value != NULL)
        return store(command, option, value + 1, target);
    if (*at + 1 >= argc)
        return cli_error(command, CLI_USAGE, "--%s: wanted %s after it, found nothing",
            option->name, option->metavar);
    return store(command, option, argv[++*at], target);
}

int cli_parse(const cli_command *command, int argc, char **argv, void *target, size_t size)
{
    bool given[128] = {false};
    int code = set_defaults(command, target, size);
    int arguments = 0;
    bool options_ended = false;
    for (int i = 0; i < argc && code < 0; i++) {
        const char *word = argv[i];
        if (!options_ended && strcmp(word, "--") == 0) {
            options_ended = true;
        } else if (!options_ended && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)) {
            cli_print_help(command);
            return 0;
        } else if (!options_ended && strncmp(word, "--", 2) == 0) {
            code = parse_option(command, argc, argv, &i, target, given);
        } else if (!options_ended && word[0] == '-' && word[1] != '\0' &&
                   word[1 + strspn(word + 1, "0123456789")] != '\0') {
            code = cli_error(command, CLI_USAGE, "no option %s; options begin with --", word);
        } else {
            const cli_option *row = argument_row(command, arguments++);
            code = row != NULL ? store(command, row, word, target)
                               : cli_error(command, CLI_USAGE, "'%s' is one word too many", word);
        }
    }
    return code >= 0 ? code : check_given(command, arguments, given);
}

/* "--name METAVAR" of one row. */
static void row_title(const cli_option *o, char *text, size_t size)
{
    if (o->kind == CLI_ARGUMENT)
        snprintf(text, size, "%s", o->name);
    else if (o->kind == CLI_CHOICE)
        snprintf(text, size, "--%s %s", o->name, o->choices);
    else
        snprintf(text, size, "--%s%s%s", o->name, takes_value(o) ? " " : "",
            takes_value(o) ? o->metavar : "");
}

/* Prints words, broken at `width`, continuing lines indented by `indent`; `column` is where it
 * begins. */
static void print_wrapped(const char *text, int column, int indent, int width)
{
    while (*text != '\0') {
        size_t n = strcspn(text, " ");
        if (column > indent && column + 1 + (int)n > width) {
            printf("\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            putchar(' ');
            column++;
        }
        fwrite(text, 1, n, stdout);
        column += (int)n;
        text += n;
        while (*text == ' ')
            text++;
    }
    putchar('\n');
}

static void print_row(const cli_option *o)
{
    enum { INDENT = 26, WIDTH = 92 };
    char title[96];
    row_title(o, title, sizeof title);
    int n = printf("  %s", title);
    if (n > INDENT - 2)
        printf("\n%*s", INDENT, "");
    else
        printf("%*s", INDENT - n, "");
    char text[640];
    size_t used = (size_t)snprintf(text, sizeof text, "%s", o->help);
    if (o->fallback != NULL && used < sizeof text)
        used += (size_t)snprintf(text + used, sizeof text - used, " (default %s)", o->fallback);
    if (o->alias != NULL && used < sizeof text)
        used += (size_t)snprintf(text + used, sizeof text - used, " [also --%s]", o->alias);
    if (o->kind == CLI_LIST && used < sizeof text)
        snprintf(text + used, sizeof text - used, "; may be repeated");
    print_wrapped(text, INDENT, INDENT, WIDTH);
}

void cli_print_help(const cli_command *command)
{
    printf("usage: reshard %s", command->name);
    bool optional = false;
    for (const cli_option *o = command->options; o->kind != CLI_END; o++) {
        char title[96];
        if (o->kind == CLI_ARGUMENT || o->required) {
            row_title(o, title, sizeof title);
            printf(o->optional ? " [%s]" : " %s", title);
        }
        optional = optional || o->kind > CLI_ARGUMENT;
    }
    printf("%s\n\n%s\n", optional ? " [option]..." : "", command->text);
    bool headed = false;
    for (const cli_option *o = command->options; o->kind != CLI_END; o++) {
        if (o->hidden)
            continue;
        if (o->kind == CLI_HEADING || !headed) {
            printf("\n%s\n", o->kind == CLI_HEADING ? o->name : "Options");
            headed = true;
        }
        if (o->kind != CLI_HEADING)
            print_row(o);
    }
    printf("  %-24s%s\n", "--help", "this text");
    printf("\nExample\n%s\n", command->example);
}
