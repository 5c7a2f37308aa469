/*
 * The board: a word to sleep on and one slot per rank, each with one writer.
 *
 * Times are CLOCK_MONOTONIC, which all processes of a host share. The file starts as zeros, so
 * that ranks may come in any order and none has to make it for the others.
 */
#include "elastic/board.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"

typedef struct slot {
    int64_t process;
    int64_t awake; /* nanoseconds; 0: never */
} slot;

typedef struct page {
    uint32_t word;
    uint32_t unused;
    slot slots[];
} page;

struct rs_board {
    page *page;
    size_t bytes;
    int ranks;
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

rs_status rs_board_open(const char *path, int ranks, rs_board **out)
{
    rs_status status = RS_OK;
    rs_board *board = rs_calloc(1, sizeof *board);
    if (board == NULL)
        return rs_error_memory(sizeof *board);
    board->ranks = ranks;
    board->bytes = sizeof(page) + (size_t)ranks * sizeof(slot);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (fd < 0) {
        status = rs_error_errno(errno, "cannot open %s", path);
        goto fail;
    }
    int error = posix_fallocate(fd, 0, (off_t)board->bytes);
    if (error != 0) {
        status = rs_error_errno(error, "cannot reserve %zu bytes for %s", board->bytes, path);
        goto close_file;
    }
    void *base = mmap(NULL, board->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        status = rs_error_errno(errno, "cannot map %s", path);
    else
        board->page = base;
close_file:
    close(fd);
fail:
    if (status == RS_OK)
        *out = board;
    else
        rs_board_close(board);
    return status;
}

void rs_board_close(rs_board *board)
{
    if (board == NULL)
        return;
    if (board->page != NULL)
        munmap(board->page, board->bytes);
    free(board);
}

void rs_board_beat(rs_board *board, int rank)
{
    slot *s = &board->page->slots[rank];
    __atomic_store_n(&s->process, (int64_t)getpid(), __ATOMIC_RELAXED);
    __atomic_store_n(&s->awake, now_ns(), __ATOMIC_RELEASE);
}

double rs_board_age(const rs_board *board, int rank)
{
    int64_t awake = __atomic_load_n(&board->page->slots[rank].awake, __ATOMIC_ACQUIRE);
    return awake == 0 ? -1 : 1e-9 * (double)(now_ns() - awake);
}

long rs_board_process(const rs_board *board, int rank)
{
    return (long)__atomic_load_n(&board->page->slots[rank].process, __ATOMIC_ACQUIRE);
}

uint32_t rs_board_word(const rs_board *board)
{
    return __atomic_load_n(&board->page->word, __ATOMIC_ACQUIRE);
}

void rs_board_post(rs_board *board)
{
    __atomic_fetch_add(&board->page->word, 1, __ATOMIC_ACQ_REL);
    syscall(SYS_futex, &board->page->word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

bool rs_board_wait(const rs_board *board, uint32_t seen, double seconds)
{
    int64_t deadline = now_ns() + (int64_t)(seconds * 1e9);
    while (rs_board_word(board) == seen) {
        int64_t left = deadline - now_ns();
        if (left <= 0)
            return false;
        struct timespec limit = {left / 1000000000, left % 1000000000};
        syscall(SYS_futex, &board->page->word, FUTEX_WAIT, seen, &limit, NULL, 0);
    }
    return true;
}
