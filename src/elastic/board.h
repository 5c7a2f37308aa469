/*
 * The board of a world on one host: a shared page where its ranks show that they live, and sleep.
 *
 * Every rank writes when it was last awake; the host's lowest rank, who talks to the supervisor,
 * reads it and tells who has stopped. Ranks that wait for the supervisor's word sleep on the
 * board's word instead of in MPI, and cost no processor time. The file lies in the job's folder of
 * shared files and goes with it. All functions are local.
 */
#ifndef RS_ELASTIC_BOARD_H
#define RS_ELASTIC_BOARD_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/status.h"

typedef struct rs_board rs_board;

/* Maps the board at `path`, which has room for `ranks` ranks; the first one makes it. The caller
 * owns `*out`. */
rs_status rs_board_open(const char *path, int ranks, rs_board **out) RS_MUST_CHECK;
void rs_board_close(rs_board *board);

/* Rank `rank` is this process, and awake. */
void rs_board_beat(rs_board *board, int rank);

/* Seconds since `rank` was last awake; -1 if it has not entered. */
double rs_board_age(const rs_board *board, int rank);

/* The rank's process, 0 if it has not entered. */
long rs_board_process(const rs_board *board, int rank);

/* The word, and changing it: wakes all who wait. */
uint32_t rs_board_word(const rs_board *board);
void rs_board_post(rs_board *board);

/* Sleeps until the word is no longer `seen`, at most `seconds`. True: it has changed. */
bool rs_board_wait(const rs_board *board, uint32_t seen, double seconds);

#endif
