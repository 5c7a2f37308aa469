/* The commands, one row each. */
#ifndef RS_CLI_COMMANDS_H
#define RS_CLI_COMMANDS_H

#include "cli/options.h"

extern const cli_command cmd_plan;
extern const cli_command cmd_layout;
extern const cli_command cmd_inspect;

#endif
