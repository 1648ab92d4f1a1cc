/* The hook of fault injection around every system call. It exists only in the test build.
 *
 * A build without EMBEDLOG_TEST_BUILD has no branch, table or symbol of it: the macros below are
 * constants. */
#ifndef EL_FAULTS_H
#define EL_FAULTS_H

#include "api/native.h"

#include <sys/uio.h>

/* Kinds of calls; calls.py has the names in the same order. */
enum el_call {
    EL_CALL_OPEN = 0,
    EL_CALL_CLOSE = 1,
    EL_CALL_PREAD = 2,
    EL_CALL_PWRITE = 3,
    EL_CALL_FSYNC = 4,
    EL_CALL_FDATASYNC = 5,
    EL_CALL_FTRUNCATE = 6,
    EL_CALL_RENAME = 7,
    EL_CALL_UNLINK = 8,
    EL_CALL_LINK = 9,
    EL_CALL_MKDIR = 10,
    EL_CALL_RMDIR = 11,
    EL_CALL_FALLOCATE = 12,
    EL_CALL_STAT = 13,
    EL_CALL_LOCK = 14,
    EL_CALL_MMAP = 15,
    EL_CALL_LIST = 16,
    EL_CALL_POINT = 17,
    EL_CALLS = 18
};

/* Results of el_before. 0: make the call; < 0: return this error instead; EL_HALF: write half of
 * the bytes. */
enum { EL_HALF = 1 };

#ifdef EMBEDLOG_TEST_BUILD
int el_before(int kind, int fd, const char *path, int64_t size);
/* After the call: a fault that applies after the call is applied here. */
void el_after(int kind);

int el_is_recording(void);
/* Records one change. `path` NULL: the name of `fd`. `size` bytes of `pieces` are its data. */
void el_record(int kind, int fd, const char *path, const char *second, int64_t number,
               const struct iovec *pieces, int64_t size);
#else
#define el_before(kind, fd, path, size) ((void)(kind), (void)(fd), (void)(path), (void)(size), 0)
#define el_after(kind) ((void)(kind))
#define el_is_recording() 0
#define el_record(kind, fd, path, second, number, pieces, size) ((void)0)
#define el_point(name) ((void)0)
#endif

#endif
