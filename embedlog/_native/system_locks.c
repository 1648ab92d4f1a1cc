/* OFD locks that never wait in the kernel, and futexes.
 *
 * L1  an OFD lock belongs to an open file description: threads that share a descriptor do not exclude each other,
 *     so whoever uses these has a mutex of its own in front
 * L2  a waiter sleeps at most a millisecond at a time: a wake can be lost when the waker is killed
 * L3  OFD locks report no deadlock; the deadline is the only way out */
#include "system.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* `length` 0: to the end of the file, whatever it will be. */
static struct flock stretch(short type, int64_t start, int64_t length) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length, .l_pid = 0};
    return lock;
}

static int32_t set_lock(int fd, short type, int64_t start, int64_t length) {
    struct flock lock = stretch(type, start, length);
    int hooked = el_before(EL_CALL_LOCK, fd, NULL, type);
    if (hooked < 0)
        return hooked;
    int rc;
    do
        rc = fcntl(fd, F_OFD_SETLK, &lock);
    while (rc < 0 && errno == EINTR);
    int number = errno == EACCES ? EAGAIN : errno;
    el_after(EL_CALL_LOCK);
    return rc < 0 ? EL_SYSTEM_ERROR(number) : EL_OK;
}

static int32_t probe(int fd, int64_t start, int64_t length) {
    struct flock lock = stretch(F_WRLCK, start, length);
    if (fcntl(fd, F_OFD_GETLK, &lock) < 0)
        return EL_SYSTEM_ERROR(errno);
    return lock.l_type == F_UNLCK ? 0 : lock.l_type == F_RDLCK ? 1 : 2;
}

int32_t el_lock_try(int32_t fd, int32_t exclusive) { return set_lock(fd, exclusive ? F_WRLCK : F_RDLCK, 0, 0); }

int32_t el_unlock(int32_t fd) { return set_lock(fd, F_UNLCK, 0, 0); }

int32_t el_lock_probe(int32_t fd) { return probe(fd, 0, 0); }

int32_t el_byte_lock_try(int32_t fd, int64_t position) { return set_lock(fd, F_WRLCK, position, 1); }

int32_t el_byte_unlock(int32_t fd, int64_t position) { return set_lock(fd, F_UNLCK, position, 1); }

int32_t el_byte_lock_probe(int32_t fd, int64_t position) { return probe(fd, position, 1); }

/* A lock that is held for microseconds is worth a few tries before sleeping. */
enum { EL_SPINS = 8, EL_NAP_NS = 1000000, EL_BLIND_NAP_NS = 200000 };

static void nap_blindly(int64_t left) {
    struct timespec nap = {.tv_nsec = left < EL_BLIND_NAP_NS ? left : EL_BLIND_NAP_NS};
    nanosleep(&nap, NULL);
}

int32_t el_lock_until(int32_t fd, int32_t exclusive, uint32_t *word, int64_t deadline_ns) {
    _Atomic uint32_t *lock_word = (_Atomic uint32_t *)word;
    for (int tries = 0;; tries++) {
        uint32_t seen = lock_word ? atomic_load(lock_word) : 0;
        int32_t rc = el_lock_try(fd, exclusive);
        if (rc != EL_SYSTEM_ERROR(EAGAIN))
            return rc;
        int64_t left = deadline_ns - el_boot_ns();
        if (left <= 0)
            return EL_SYSTEM_ERROR(ETIMEDOUT);
        if (tries < EL_SPINS) {
            sched_yield();
            continue;
        }
        if (lock_word)
            el_futex_wait(lock_word, seen, left < EL_NAP_NS ? left : EL_NAP_NS);
        else
            nap_blindly(left);
    }
}

int el_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns) {
    struct timespec timeout = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
    long rc = syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, NULL, 0);
    return rc < 0 ? -errno : 0;
}

void el_futex_wake(_Atomic uint32_t *word, int count) { syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0); }

/* Move the word and wake its waiters, if there are any. The fence pairs with the one of a waiter that has raised the
 * count and then looks at the published position once more: one of the two sees the other. */
void el_announce(_Atomic uint32_t *word, _Atomic uint32_t *waiters) {
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(waiters, memory_order_relaxed) == 0 || el_is_mutant(EL_NO_WAKE))
        return;
    atomic_fetch_add(word, 1);
    el_futex_wake(word, INT32_MAX);
}

/* The half of a word that a futex can be: bytes are in little-endian order wherever this runs. */
static _Atomic uint32_t *low_half(const uint8_t *page, int32_t word) {
    return (_Atomic uint32_t *)(uintptr_t)&((el_page *)(uintptr_t)page)->words[word];
}

int32_t el_page_nap(const uint8_t *page, int32_t word, int64_t seen, int64_t deadline_ns) {
    int64_t left = deadline_ns - el_boot_ns();
    if (word < 0 || word >= EL_WORDS)
        return EL_EINVALID;
    if (left <= 0)
        return EL_SYSTEM_ERROR(ETIMEDOUT);
    if (el_page_is_private(page))           /* nobody can be woken by it */
        nap_blindly(left);
    else
        el_futex_wait(low_half(page, word), (uint32_t)seen, left < EL_NAP_NS ? left : EL_NAP_NS);
    return EL_OK;
}

int32_t el_page_stir(const uint8_t *page, int32_t word) {
    if (word < 0 || word >= EL_WORDS)
        return EL_EINVALID;
    if (!el_page_is_private(page))
        el_futex_wake(low_half(page, word), INT32_MAX);
    return EL_OK;
}
