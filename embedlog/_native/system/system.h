/* Declarations shared by the system files: whole writes, futexes. Not visible to Python. */
#ifndef EL_SYSTEM_H
#define EL_SYSTEM_H

#include "testing/faults.h"
#include "testing/schedule.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/uio.h>

#define EL_SYSTEM_ERROR(number) (-(1000 + (number)))
#define RESULT(rc) ((rc) < 0 ? EL_SYSTEM_ERROR(errno) : (rc))

/* Makes `call` between the hooks; errno of a failure is kept. */
#define HOOKED(kind, fd, path, size, call)                                                         \
    do {                                                                                           \
        int hooked = el_before((kind), (fd), (path), (size));                                      \
        if (hooked < 0)                                                                            \
            return hooked;                                                                         \
        do                                                                                         \
            rc = (call);                                                                           \
        while (rc < 0 && errno == EINTR);                                                          \
        int number = errno;                                                                        \
        el_after(kind);                                                                            \
        errno = number;                                                                            \
    } while (0)

/* Writes all bytes of the pieces, or returns an error. */
int64_t el_write_all(int fd, const struct iovec *pieces, int count, int64_t position);

enum { EL_SLEEP_NS = 1000000 }; /* longest sleep of a waiter that may miss a wake */
/* Sleeps 0.2 ms, or `left_ns` if that is less: for waiters that nothing can wake. */
void el_sleep(int64_t left_ns);
void el_futex_wake(_Atomic uint32_t *word, int count);
int el_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns);
/* Moves the futex word and wakes its waiters, if `waiters` counts any. */
void el_announce(_Atomic uint32_t *word, _Atomic uint32_t *waiters);

#endif
