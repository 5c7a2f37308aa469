/* The command `reshard`: finds the command, says what there is. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "reshard/version.h"

static const cli_command *const commands[] = {&cmd_train, &cmd_switch, &cmd_scale, &cmd_drain,
    &cmd_cancel, &cmd_status, &cmd_events, &cmd_save, &cmd_stop, &cmd_clean, &cmd_doctor, &cmd_plan,
    &cmd_layout, &cmd_inspect, &cmd_show, &cmd_convert, &cmd_verify, &cmd_worker, &cmd_host,
    &cmd_ferry};

enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_overview(FILE *out)
{
    fprintf(out, "usage: reshard COMMAND [argument]...\n\n"
                 "Changes how the state of an LLM training job is divided over devices, while it "
                 "runs.\n\n");
    for (int i = 0; i < COMMANDS; i++) {
        if (!commands[i]->hidden)
            fprintf(out, "  %-9s %s\n", commands[i]->name, commands[i]->summary);
    }
    fprintf(out, "  %-9s %s\n\n", "help", "explain a command: reshard help COMMAND");
    fprintf(out,
        "A layout is written key=value,...: tp (tensor), pp (pipeline), dp (data parallel), "
        "zero (0 to 3),\norder (rank order, fastest first). Absent sizes are 1. Its ranks are "
        "tp x pp x dp.\n\n"
        "Example\n  reshard plan --model llama-tiny --from tp=2,dp=2 --to pp=2,dp=2,zero=1\n");
}

static const cli_command *find(const char *name)
{
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    }
    return NULL;
}

static int unknown(const char *name)
{
    const char *names[COMMANDS];
    size_t count = 0;
    for (int i = 0; i < COMMANDS; i++) {
        if (!commands[i]->hidden)
            names[count++] = commands[i]->name;
    }
    const char *near = cli_closest(name, names, count);
    fprintf(stderr, "reshard: no command '%s'", name);
    if (near != NULL)
        fprintf(stderr, "; did you mean '%s'?", near);
    fprintf(stderr, "\ntry: reshard help\n");
    return CLI_USAGE;
}

/* A file that is written must not get the number of a standard stream that was closed for us. */
static void open_standard_streams(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_overview(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("reshard %s\n", rs_version());
        return 0;
    }
    bool help = strcmp(name, "help") == 0;
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || (help && argc == 2)) {
        print_overview(stdout);
        return 0;
    }
    const cli_command *command = find(help ? argv[2] : name);
    if (command == NULL)
        return unknown(help ? argv[2] : name);
    if (help) {
        cli_print_help(command);
        return 0;
    }
    return command->run(command, argc - 2, argv + 2);
}

int main(int argc, char **argv)
{
    open_standard_streams();
    int code = dispatch(argc, argv);
    /* A job outlives the terminal that it tells of itself; all else is as good as what it prints.
     */
    bool job = argc >= 2 && find(argv[1]) != NULL &&
               (find(argv[1]) == &cmd_train || find(argv[1])->hidden);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == 0 && !job) {
        fprintf(stderr, "reshard%s%s: cannot write to standard output\n", argc >= 2 ? " " : "",
            argc >= 2 ? argv[1] : "");
        code = CLI_FAILURE;
    }
    return code;
}
