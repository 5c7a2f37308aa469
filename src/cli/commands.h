/* The commands, one row each. */
#ifndef RS_CLI_COMMANDS_H
#define RS_CLI_COMMANDS_H

#include "cli/options.h"

extern const cli_command cmd_train;
extern const cli_command cmd_switch;
extern const cli_command cmd_status;
extern const cli_command cmd_events;
extern const cli_command cmd_save;
extern const cli_command cmd_scale;
extern const cli_command cmd_drain;
extern const cli_command cmd_cancel;
extern const cli_command cmd_stop;
extern const cli_command cmd_clean;
extern const cli_command cmd_doctor;
extern const cli_command cmd_plan;
extern const cli_command cmd_layout;
extern const cli_command cmd_inspect;
extern const cli_command cmd_show;
extern const cli_command cmd_convert;
extern const cli_command cmd_verify;
extern const cli_command cmd_worker;
extern const cli_command cmd_host;
extern const cli_command cmd_ferry;

#endif
