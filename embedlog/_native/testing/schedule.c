/* The gate: a process passes a hook only while a controller gives it the turn. All steps of all
 * processes have one order.
 *
 * Controller and processes share one mapping, in which each process has a slot. Without one, a hook
 * costs a load. A turn is a number of steps: the process stops at the hook after the last one,
 * before its call, and wakes the controller. A process that would wait for a lock, a word or a time
 * gives the turn back and says for what, and never sleeps in the kernel. The clock of waits and
 * deadlines is a number in the mapping: each step moves it by a microsecond, and the controller
 * moves it when every process waits. The threads of one process share its turn, and pass the gate
 * one after another. */
#include "testing/schedule.h"

#include "system/system.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { STEP_NS = 1000, NAMED_PAGES_MAX = 256 };

_Static_assert(sizeof(el_schedule_entry) == 256, "the trace is an array of entries");

static el_schedule *shared;
static el_schedule_slot *own;
/* this thread passes hooks without a turn; the others of its process stay at theirs */
static __thread int has_left;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static struct {
    const uint8_t *page;
    char path[200];
} named_pages[NAMED_PAGES_MAX];

#define ATOMIC32(field) ((_Atomic uint32_t *)&(field))
#define ATOMIC64(field) ((_Atomic int64_t *)&(field))

static void sleep_until_changed(uint32_t *word, uint32_t seen, int64_t timeout_ns) {
    struct timespec timeout = {.tv_sec = timeout_ns / 1000000000,
                               .tv_nsec = timeout_ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, NULL, 0);
}

static void wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

/* ---- the process ----------------------------------------------------------------------------- */

int el_is_scheduled(void) { return own != NULL && !has_left; }

static void wait_for_turn(void) {
    while (atomic_load(ATOMIC32(own->turn)) == 0) {
        sleep_until_changed(&own->turn, 0, 1000000000);
    }
}

/* Gives the turn back. REQUIRES the gate. */
static void report(uint32_t state) {
    atomic_store(ATOMIC32(own->turn), 0);
    atomic_store(ATOMIC32(own->state), state);
    atomic_fetch_add(ATOMIC32(shared->reports), 1);
    wake(&shared->reports);
}

/* The end of the path of a call. */
static void name_into(char *out, size_t size, int fd, const char *path) {
    char link[64], memory[4097];
    if (!path) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = fd < 0 ? -1 : readlink(link, memory, sizeof memory - 1);
        memory[length < 0 ? 0 : length] = 0;
        path = memory;
    }
    size_t length = strlen(path);
    snprintf(out, size, "%s", length < size ? path : path + length - size + 1);
}

static void note_step(int kind, int fd, const char *path, int64_t size) {
    int64_t at = atomic_fetch_add(ATOMIC64(shared->traced), 1);
    if (at >= shared->trace_max) {
        return;
    }
    el_schedule_entry *entry = &((el_schedule_entry *)(shared + 1))[at];
    entry->slot = own->number;
    entry->kind = kind;
    entry->size = size;
    entry->step = own->steps;
    name_into(entry->name, sizeof entry->name, fd, path);
}

int el_schedule_step(int kind, int fd, const char *path, int64_t size) {
    if (__builtin_expect(!own, 1) || has_left) {
        return EL_OK;
    }
    for (;;) {
        wait_for_turn();
        pthread_mutex_lock(&gate);
        int has_turn = atomic_load(ATOMIC32(own->turn)) != 0;
        if (has_turn && own->budget > 0) {
            own->budget--;
            own->steps++;
            atomic_fetch_add(ATOMIC64(shared->clock_ns), STEP_NS);
            if (shared->trace_max) {
                note_step(kind, fd, path, size);
            }
            int error = kind < EL_CALLS ? own->error : 0;
            if (error) {
                own->error = 0;
            }
            pthread_mutex_unlock(&gate);
            return error ? EL_SYSTEM_ERROR(error) : EL_OK;
        }
        if (has_turn) {
            own->kind = kind;
            report(EL_STOPPED);
        }
        pthread_mutex_unlock(&gate);
    }
}

static void give_turn_away(uint32_t state, int64_t until_ns) {
    wait_for_turn();
    pthread_mutex_lock(&gate);
    own->until_ns = until_ns;
    own->seen_wakes = atomic_load(ATOMIC64(shared->wakes));
    report(state);
    pthread_mutex_unlock(&gate);
    wait_for_turn();
}

void el_schedule_lock(int fd, const struct flock *lock, int64_t deadline_ns) {
    struct stat found = {0};
    fstat(fd, &found);
    own->lock_exclusive = lock->l_type == F_WRLCK;
    own->lock_at = lock->l_start;
    own->lock_size = lock->l_len;
    name_into(own->lock_path, sizeof own->lock_path, fd, NULL);
    give_turn_away(EL_WAITS_FOR_LOCK, deadline_ns);
}

void el_schedule_sleep(int64_t duration_ns, int is_woken) {
    give_turn_away(is_woken ? EL_WAITS_FOR_WORD : EL_SLEEPS,
                   el_boot_ns() + (duration_ns > 0 ? duration_ns : 0));
}

void el_schedule_woke(void) {
    if (__builtin_expect(own != NULL, 0)) {
        atomic_fetch_add(ATOMIC64(shared->wakes), 1);
    }
}

void el_schedule_mapped(const uint8_t *page, int fd) {
    if (__builtin_expect(!own, 1)) {
        return;
    }
    int place = 0;
    while (place < NAMED_PAGES_MAX - 1 && named_pages[place].page &&
           named_pages[place].page != page) {
        place++;
    }
    named_pages[place].page = page;
    name_into(named_pages[place].path, sizeof named_pages[place].path, fd, NULL);
}

void el_schedule_page(const uint8_t *page, int changes) {
    if (!el_is_scheduled()) {
        return;
    }
    const char *path = "";
    for (int place = 0; shared->trace_max && place < NAMED_PAGES_MAX && named_pages[place].page;
         place++) {
        if (named_pages[place].page == page) {
            path = named_pages[place].path;
        }
    }
    (void)el_schedule_step(changes ? EL_STEP_WRITE : EL_STEP_READ, -1, path, 0);
}

int32_t el_schedule_join(el_schedule *schedule, int32_t slot) {
    if (slot < 0 || slot >= EL_SCHEDULE_SLOTS) {
        return EL_EINVALID;
    }
    shared = schedule;
    own = &schedule->slots[slot];
    el_follow_clock(&schedule->clock_ns);
    atomic_store(ATOMIC32(own->state), EL_STOPPED);
    wait_for_turn();
    return EL_OK;
}

int32_t el_schedule_leave(void) {
    if (!el_is_scheduled()) {
        return EL_OK;
    }
    pthread_mutex_lock(&gate);
    has_left = 1;
    report(EL_ENDED);
    pthread_mutex_unlock(&gate);
    return EL_OK;
}

/* ---- the controller -------------------------------------------------------------------------- */

int32_t el_schedule_run(el_schedule *schedule, int32_t slot, int64_t steps, int32_t error,
                        int64_t timeout_ns) {
    el_schedule_slot *chosen = &schedule->slots[slot];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t until_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec + timeout_ns;
    if (steps > 0) {
        chosen->budget = steps;
        chosen->error = error;
        atomic_store(ATOMIC32(chosen->state), EL_RUNS);
        atomic_store(ATOMIC32(chosen->turn), 1);
        wake(&chosen->turn);
    }
    for (;;) {
        uint32_t seen = atomic_load(ATOMIC32(schedule->reports));
        uint32_t state = atomic_load(ATOMIC32(chosen->state));
        clock_gettime(CLOCK_MONOTONIC, &now);
        int64_t left_ns = until_ns - ((int64_t)now.tv_sec * 1000000000 + now.tv_nsec);
        if (state != EL_RUNS || left_ns <= 0) {
            return (int32_t)state;
        }
        sleep_until_changed(&schedule->reports, seen, left_ns);
    }
}
