/* Waiting for data: a reader sleeps on the futex words of its control pages and on one of its own.
 *
 * - A waiter raises the count, reads the positions again, and only then sleeps: no publication is
 *   missed in between.
 * - A killed waiter leaves its count raised: appenders then make a system call too many, and no
 *   wake is lost.
 * - A read-only mapping cannot be counted, so it is not woken: such a waiter checks every
 *   millisecond.
 * - For more pages than futex_waitv takes, the wait uses one word of each directory, which every
 *   publication there changes.
 * - A waiter for topics passes the topics word of its last read: a later change prevents the sleep.
 *   The same holds for notices, whose words change with or without counted waiters.
 * - A spinning waiter is not counted, because it needs no wake. It yields its processor between
 *   checks: the appender may need it. */
#include "log/control_page.h"

#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449 /* the same number on every architecture */
#endif

typedef struct { /* struct futex_waitv of linux/futex.h, which older headers lack */
    uint64_t value;
    uint64_t address;
    uint32_t flags; /* 2: a 32-bit word */
    uint32_t reserved;
} el_waitv;

enum { EL_WAITV_WORDS = 128, EL_WAITV_32 = 2 };

_Static_assert(1 + EL_NOTICES_MAX + 2 * EL_DIRECTORIES_MAX <= EL_WAITV_WORDS,
               "futex_waitv takes no more");

static int ready(const el_tail *tail, int committed) {
    el_tuple now;
    if (el_page_read(tail->page, &now) != EL_OK) {
        return 1; /* the page was lost or is being rebuilt: the caller determines which */
    }
    int64_t end = now.high_watermark;
    if (committed && now.first_unstable >= 0 && now.first_unstable < end) {
        end = now.first_unstable;
    }
    return end > tail->offset || now.log_start > tail->offset || now.log_end < tail->offset;
}

static int64_t first_ready(const el_tail *tails, int64_t count, int committed) {
    for (int64_t at = 0; at < count; at++) {
        if (ready(&tails[at], committed)) {
            return at;
        }
    }
    return -1;
}

static int any_moved(const el_notice *notices, int64_t count) {
    for (int64_t at = 0; at < count; at++) {
        if (el_page_notice(notices[at].page) != notices[at].seen) {
            return 1;
        }
    }
    return 0;
}

static void count_waiter(const el_tail *tails, int64_t count, const el_watched_directory *shared,
                         int64_t shared_count, int by) {
    for (int64_t at = 0; at < count; at++) {
        atomic_fetch_add(&as_page(tails[at].page)->data_waiters, (uint32_t)by);
    }
    for (int64_t at = 0; at < shared_count; at++) {
        atomic_fetch_add(&as_page(shared[at].page)->data_waiters, (uint32_t)by);
    }
}

static void add_seen(el_waitv *words, int *used, _Atomic uint32_t *word, uint32_t seen) {
    words[*used].value = seen;
    words[*used].address = (uint64_t)(uintptr_t)word;
    words[*used].flags = EL_WAITV_32;
    words[*used].reserved = 0;
    ++*used;
}

static void add_word(el_waitv *words, int *used, _Atomic uint32_t *word) {
    add_seen(words, used, word, atomic_load(word));
}

static int sleep_on(el_waitv *words, int used, int64_t deadline_ns) {
    int64_t left = deadline_ns - el_boot_ns();
    if (left <= 0) {
        return -ETIMEDOUT;
    }
    if (el_is_scheduled()) {
        for (int at = 0; at < used; at++) {
            if (atomic_load((_Atomic uint32_t *)(uintptr_t)words[at].address) != words[at].value) {
                return -EAGAIN;
            }
        }
        el_schedule_sleep(left, 1);
        return -ETIMEDOUT;
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    left += until.tv_nsec;
    until.tv_sec += left / 1000000000;
    until.tv_nsec = left % 1000000000;
    return syscall(SYS_futex_waitv, words, used, 0, &until, CLOCK_MONOTONIC) < 0 ? -errno : 0;
}

enum { EL_POLL_NS = 1000000, EL_WAIT_COMMITTED = 1, EL_WAIT_UNCOUNTED = 2 };

/* For uncounted waiters, which nothing wakes: checks every millisecond. The first `fixed` words
 * belong to the caller, the others change with data. */
static int poll_on(el_waitv *words, int used, int fixed, const el_tail *tails, int64_t count,
                   int committed, const el_notice *notices, int64_t notice_count,
                   int64_t deadline_ns) {
    for (;;) {
        int64_t until = el_boot_ns() + EL_POLL_NS;
        int rc = sleep_on(words, used, until < deadline_ns ? until : deadline_ns);
        if (rc != -ETIMEDOUT || el_boot_ns() >= deadline_ns ||
            first_ready(tails, count, committed) >= 0) {
            return rc;
        }
        if (any_moved(
                notices,
                notice_count)) { /* the word of a private copy changes only when it is read again */
            return 0;
        }
        for (int at = fixed; at < used; at++) {
            words[at].value = atomic_load((_Atomic uint32_t *)(uintptr_t)words[at].address);
        }
    }
}

static int counts_fit(int64_t notice_count, int64_t directory_count) {
    return notice_count >= 0 && notice_count <= EL_NOTICES_MAX && directory_count >= 0 &&
           directory_count <= EL_DIRECTORIES_MAX;
}

int64_t el_wait(const el_tail *tails, int64_t count, const el_notice *notices, int64_t notice_count,
                const el_watched_directory *directories, int64_t directory_count, int32_t flags,
                uint32_t *wake, int64_t deadline_ns) {
    if (!counts_fit(notice_count, directory_count)) {
        return EL_EINVALID;
    }
    int committed = flags & EL_WAIT_COMMITTED;
    int uncounted = flags & EL_WAIT_UNCOUNTED;
    el_waitv words[EL_WAITV_WORDS];
    _Atomic uint32_t *own = (_Atomic uint32_t *)wake;
    int used = 0;
    if (own) {
        add_word(words, &used, own);
    }
    for (int64_t at = 0; at < directory_count; at++) {
        if (directories[at].topics >= 0) {
            add_seen(words, &used, &as_page(directories[at].page)->lock_word,
                     (uint32_t)directories[at].topics);
        }
    }
    for (int64_t at = 0; at < notice_count; at++) {
        add_seen(words, &used, &as_page(notices[at].page)->notice_word, (uint32_t)notices[at].seen);
    }
    int fixed = used;
    int one_by_one = count <= EL_WAITV_WORDS - used;
    int64_t counted = one_by_one ? count : 0;
    int64_t shared_count = one_by_one ? 0 : directory_count;
    for (int64_t at = 0; at < counted; at++) {
        add_word(words, &used, &as_page(tails[at].page)->data_word);
    }
    for (int64_t at = 0; at < shared_count; at++) {
        add_word(words, &used, &as_page(directories[at].page)->data_word);
    }
    if (!uncounted) {
        count_waiter(tails, counted, directories, shared_count, 1);
    }
    /* pairs with the fence of el_announce: the count must be visible before the check */
    atomic_thread_fence(memory_order_seq_cst);
    int64_t found = first_ready(tails, count, committed);
    int rc = 0;
    if (found < 0 && !(own && atomic_load(own))) {
        rc = !used       ? -ETIMEDOUT
             : uncounted ? poll_on(words, used, fixed, tails, count, committed, notices,
                                   notice_count, deadline_ns)
                         : sleep_on(words, used, deadline_ns);
    }
    if (rc == -ENOSYS) { /* no futex_waitv (before Linux 5.16): one word, a millisecond at a time */
        int64_t left = deadline_ns - el_boot_ns();
        _Atomic uint32_t *word = (_Atomic uint32_t *)(uintptr_t)words[used - 1].address;
        if (left > 0) {
            el_futex_wait(word, (uint32_t)words[used - 1].value,
                          left < EL_POLL_NS ? left : EL_POLL_NS);
        }
        rc = left > 0 ? 0 : -ETIMEDOUT;
    }
    if (!uncounted) {
        count_waiter(tails, counted, directories, shared_count, -1);
    }
    if (found < 0) {
        found = first_ready(tails, count, committed);
    }
    if (found >= 0) {
        return found;
    }
    return rc == -ETIMEDOUT && el_boot_ns() >= deadline_ns ? EL_SYSTEM_ERROR(ETIMEDOUT) : count;
}

int64_t el_topics(const uint8_t *directory) {
    el_page_enter(directory, 0);
    int64_t word = atomic_load(&as_page(directory)->lock_word);
    el_page_leave(directory, 0);
    return word;
}

int32_t el_topics_same(const uint8_t *const *directories, const int64_t *words, int64_t count) {
    for (int64_t at = 0; at < count; at++) {
        if (el_topics(directories[at]) != words[at]) {
            return 0;
        }
    }
    return 1;
}

static int topics_moved(const el_watched_directory *directories, int64_t count) {
    for (int64_t at = 0; at < count; at++) {
        if (directories[at].topics >= 0 &&
            el_topics(directories[at].page) != directories[at].topics) {
            return 1;
        }
    }
    return 0;
}

#if defined(__x86_64__)
#define EL_PAUSE() __builtin_ia32_pause()
#else
#define EL_PAUSE() __asm__ volatile("yield")
#endif

enum { EL_SPINS = 32 }; /* checks between two looks at the clock: about a microsecond */

int64_t el_spin(const el_tail *tails, int64_t count, const el_notice *notices, int64_t notice_count,
                const el_watched_directory *directories, int64_t directory_count, int32_t flags,
                uint32_t *wake, int64_t until_ns) {
    if (!counts_fit(notice_count, directory_count)) {
        return EL_EINVALID;
    }
    _Atomic uint32_t *own = (_Atomic uint32_t *)wake;
    do {
        for (int spin = 0; spin < EL_SPINS; spin++) {
            int64_t found = first_ready(tails, count, flags & EL_WAIT_COMMITTED);
            if (found >= 0) {
                return found;
            }
            EL_PAUSE();
        }
        if ((own && atomic_load(own)) || any_moved(notices, notice_count) ||
            topics_moved(directories, directory_count)) {
            return count;
        }
        sched_yield();
    } while (el_boot_ns() < until_ns);
    return EL_SYSTEM_ERROR(ETIMEDOUT);
}

/* `by` is added to an even and to an odd word. Decisions of a set change the word without the
 * directory lock, hence the atomic addition. */
static int32_t move(uint8_t *directory, uint32_t by_even, uint32_t by_odd) {
    _Atomic uint32_t *word = &as_page(directory)->lock_word;
    el_page_enter(directory, 1);
    uint32_t now = atomic_load(word);
    while (!atomic_compare_exchange_weak(word, &now, now + (now & 1 ? by_odd : by_even)))
        ;
    el_futex_wake(word, INT32_MAX);
    return el_page_leave(directory, 1);
}

int32_t el_topics_move(uint8_t *directory, int32_t done) {
    return done ? move(directory, 2, 1) : move(directory, 1, 2);
}

int32_t el_topics_touch(uint8_t *directory) { return move(directory, 2, 2); }

int32_t el_wake(uint32_t *wake) {
    _Atomic uint32_t *word = (_Atomic uint32_t *)wake;
    atomic_fetch_add(word, 1);
    el_futex_wake(word, INT32_MAX);
    return EL_OK;
}

int32_t el_wake_reset(uint32_t *wake) {
    atomic_store((_Atomic uint32_t *)wake, 0);
    return EL_OK;
}

int32_t el_is_woken(uint32_t *wake) { return atomic_load((_Atomic uint32_t *)wake) != 0; }

int32_t el_page_word_kind(int64_t position) {
    return position == (int64_t)offsetof(el_page, data_word)     ? EL_DATA_WORD
           : position == (int64_t)offsetof(el_page, lock_word)   ? EL_LOCK_WORD
           : position == (int64_t)offsetof(el_page, notice_word) ? EL_NOTICE_WORD
                                                                 : EL_OTHER_WORD;
}
