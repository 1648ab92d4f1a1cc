/* Futexes: sleeping until another process changes a number in shared memory. */
#include "system/system.h"
#include "testing/mutants.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int el_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns) {
    if (el_is_scheduled()) {
        if (atomic_load(word) != seen) {
            return -EAGAIN;
        }
        el_schedule_sleep(timeout_ns, 1);
        return -ETIMEDOUT;
    }
    struct timespec timeout = {.tv_sec = timeout_ns / 1000000000,
                               .tv_nsec = timeout_ns % 1000000000};
    long rc = syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, NULL, 0);
    return rc < 0 ? -errno : 0;
}

void el_futex_wake(_Atomic uint32_t *word, int count) {
    el_schedule_woke();
    syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}

/* Changes the word and wakes its waiters, if there are any. The fence pairs with the fence of a
 * waiter, which raises the count and then reads the published position again. One of the two
 * observes the other. */
void el_announce(_Atomic uint32_t *word, _Atomic uint32_t *waiters) {
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(waiters, memory_order_relaxed) == 0 || el_is_mutant(EL_NO_WAKE)) {
        return;
    }
    atomic_fetch_add(word, 1);
    el_futex_wake(word, INT32_MAX);
}

enum { EL_BLIND_SLEEP_NS = 200000 };

void el_sleep(int64_t left_ns) {
    struct timespec pause = {.tv_nsec = left_ns < EL_BLIND_SLEEP_NS ? left_ns : EL_BLIND_SLEEP_NS};
    if (el_is_scheduled()) {
        el_schedule_sleep(pause.tv_nsec, 0);
        return;
    }
    nanosleep(&pause, NULL);
}
