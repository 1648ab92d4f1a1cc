/* OFD locks that never wait in the kernel.
 *
 * - An OFD lock belongs to an open file description. Threads that share a descriptor do not exclude
 *   each other, so every caller holds a mutex of its own.
 * - A waiter sleeps at most a millisecond at a time: a wake is lost if the waking process is
 *   killed.
 * - OFD locks report no deadlock; the deadline ends the wait. */
#include "system/system.h"

#include <fcntl.h>
#include <sched.h>

/* `length` 0: to the end of the file, however long it becomes. */
static struct flock range(short type, int64_t start, int64_t length) {
    struct flock lock = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length, .l_pid = 0};
    return lock;
}

static int32_t set_lock(int fd, short type, int64_t start, int64_t length) {
    struct flock lock = range(type, start, length);
    int hooked = el_before(EL_CALL_LOCK, fd, NULL, type);
    if (hooked < 0) {
        return hooked;
    }
    int rc;
    do {
        rc = fcntl(fd, F_OFD_SETLK, &lock);
    } while (rc < 0 && errno == EINTR);
    int number = errno == EACCES ? EAGAIN : errno;
    el_after(EL_CALL_LOCK);
    return rc < 0 ? EL_SYSTEM_ERROR(number) : EL_OK;
}

static int32_t probe(int fd, int64_t start, int64_t length) {
    struct flock lock = range(F_WRLCK, start, length);
    (void)el_schedule_step(EL_STEP_PROBE, fd, NULL, start);
    if (fcntl(fd, F_OFD_GETLK, &lock) < 0) {
        return EL_SYSTEM_ERROR(errno);
    }
    return lock.l_type == F_UNLCK ? 0 : lock.l_type == F_RDLCK ? 1 : 2;
}

int32_t el_lock_try(int32_t fd, int32_t exclusive) {
    return set_lock(fd, exclusive ? F_WRLCK : F_RDLCK, 0, 0);
}

int32_t el_unlock(int32_t fd) { return set_lock(fd, F_UNLCK, 0, 0); }

int32_t el_lock_probe(int32_t fd) { return probe(fd, 0, 0); }

int32_t el_byte_lock_try(int32_t fd, int64_t position) {
    return set_lock(fd, F_WRLCK, position, 1);
}

int32_t el_byte_unlock(int32_t fd, int64_t position) { return set_lock(fd, F_UNLCK, position, 1); }

int32_t el_byte_lock_probe(int32_t fd, int64_t position) { return probe(fd, position, 1); }

/* A lock that is held for microseconds justifies a few attempts before a sleep. */
enum { EL_SPINS = 8 };

int32_t el_lock_until(int32_t fd, int32_t exclusive, uint32_t *word, int64_t deadline_ns) {
    _Atomic uint32_t *lock_word = (_Atomic uint32_t *)word;
    for (int tries = 0;; tries++) {
        uint32_t seen = lock_word ? atomic_load(lock_word) : 0;
        int32_t rc = el_lock_try(fd, exclusive);
        if (rc != EL_SYSTEM_ERROR(EAGAIN)) {
            return rc;
        }
        int64_t left = deadline_ns - el_boot_ns();
        if (left <= 0) {
            return EL_SYSTEM_ERROR(ETIMEDOUT);
        }
        if (el_is_scheduled()) {
            struct flock lock = range(exclusive ? F_WRLCK : F_RDLCK, 0, 0);
            el_schedule_lock(fd, &lock, deadline_ns);
            continue;
        }
        if (tries < EL_SPINS) {
            sched_yield();
            continue;
        }
        if (lock_word) {
            /* If the disk of the page hangs, the thread waits here, and not in the next call, which
             * would hold the map of the process's memory meanwhile. */
            atomic_fetch_or(lock_word, 0);
            el_futex_wait(lock_word, seen, left < EL_SLEEP_NS ? left : EL_SLEEP_NS);
        } else {
            el_sleep(left);
        }
    }
}
