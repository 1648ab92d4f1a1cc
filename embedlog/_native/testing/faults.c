/* The fault hook: every call of the system table passes here first.
 *
 * - Off by default: one relaxed load and a counter per call.
 * - One hook per process; a fault is applied to the nth call of its kinds whose path contains a
 *   given text.
 * - A kill is SIGKILL to the process itself: no later statement of it runs.
 * - A stop is sent to the calling thread: if it were sent to the process, another thread could take
 *   it while this one continues. */
#include "system/system.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EL_HANG_NS 3600000000000LL /* of one sleep of a call that hangs */

static struct {
    _Atomic uint32_t kinds;
    _Atomic int64_t left;
    int action, error, sticky;
    char name[256];
    _Atomic int64_t hit_count;
    _Atomic int after;        /* action after the call */
    _Atomic uint32_t armings; /* a change of it ends the calls that hang */
    _Atomic int trace_fd;
    _Atomic int64_t counts[EL_CALLS];
} hook = {.trace_fd = -1};

static const char *const kind_names[EL_CALLS] = {
    "open", "close", "pread", "pwrite",    "fsync", "fdatasync", "ftruncate", "rename", "unlink",
    "link", "mkdir", "rmdir", "fallocate", "stat",  "lock",      "mmap",      "list",   "point"};

int32_t el_fault_arm(uint32_t kinds, int64_t nth, int32_t action, int32_t error, int32_t sticky,
                     const char *name) {
    atomic_store(&hook.kinds, 0);
    atomic_fetch_add(&hook.armings, 1);
    el_futex_wake(&hook.armings, INT32_MAX);
    hook.action = action;
    hook.error = error;
    hook.sticky = sticky;
    snprintf(hook.name, sizeof hook.name, "%s", name ? name : "");
    atomic_store(&hook.left, nth);
    atomic_store(&hook.hit_count, 0);
    atomic_store(&hook.after, EL_FAULT_NONE);
    atomic_store(&hook.kinds, kinds);
    return EL_OK;
}

int64_t el_fault_counts(int64_t *counts, int32_t reset) {
    for (int kind = 0; kind < EL_CALLS; kind++) {
        counts[kind] = atomic_load(&hook.counts[kind]);
        if (reset) {
            atomic_store(&hook.counts[kind], 0);
        }
    }
    return atomic_load(&hook.hit_count);
}

int32_t el_fault_trace(int32_t fd) {
    atomic_store(&hook.trace_fd, fd);
    return EL_OK;
}

/* The path of a descriptor: looked up only while a hook or a trace needs it. */
static const char *name_of(int fd, const char *path, char *memory, size_t size) {
    if (path) {
        return path;
    }
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = fd < 0 ? -1 : readlink(link, memory, size - 1);
    memory[length < 0 ? 0 : length] = 0;
    return memory;
}

static void trace(int trace_fd, int kind, const char *name, int64_t size) {
    char line[4352];
    int length =
        snprintf(line, sizeof line, "%s %lld %s\n", kind_names[kind], (long long)size, name);
    if (length > 0 &&
        write(trace_fd, line, (size_t)(length < (int)sizeof line ? length : (int)sizeof line - 1)) <
            0) {
        atomic_store(&hook.trace_fd, -1);
    }
}

/* The disk hangs: the call is made when it continues. The thread sleeps meanwhile, as within the
 * kernel. */
static int hang(uint32_t arming) {
    while (atomic_load(&hook.armings) == arming) {
        el_futex_wait(&hook.armings, arming, EL_HANG_NS);
    }
    return EL_OK;
}

static int apply_fault(void) {
    atomic_fetch_add(&hook.hit_count, 1);
    struct timespec pause = {.tv_sec = hook.error / 1000000,
                             .tv_nsec = hook.error % 1000000 * 1000};
    switch (hook.action) {
    case EL_FAULT_FAIL: return EL_SYSTEM_ERROR(hook.error);
    case EL_FAULT_SHORT: return EL_HALF;
    case EL_FAULT_TORN_KILL: atomic_store(&hook.after, EL_FAULT_TORN_KILL); return EL_HALF;
    case EL_FAULT_KILL_BEFORE: kill(getpid(), SIGKILL); return EL_OK;
    case EL_FAULT_STOP_BEFORE: raise(SIGSTOP); return EL_OK;
    case EL_FAULT_KILL_AFTER:
    case EL_FAULT_STOP_AFTER: atomic_store(&hook.after, hook.action); return EL_OK;
    case EL_FAULT_DELAY: nanosleep(&pause, NULL); return EL_OK;
    case EL_FAULT_HANG: return hang(atomic_load(&hook.armings));
    default: return EL_OK;
    }
}

static int slow_before(int kind, int fd, const char *path, int64_t size, int trace_fd) {
    char memory[4097];
    const char *name = name_of(fd, path, memory, sizeof memory);
    if (trace_fd >= 0) {
        trace(trace_fd, kind, name, size);
    }
    if (!(atomic_load(&hook.kinds) >> kind & 1) || !strstr(name, hook.name)) {
        return EL_OK;
    }
    int64_t left = atomic_fetch_sub(&hook.left, 1);
    int lasts = hook.action == EL_FAULT_DELAY || hook.action == EL_FAULT_HANG;
    int goes_on = lasts || (hook.sticky && left < 1);
    if (left != 1 && !(goes_on && left < 1)) {
        return EL_OK;
    }
    return apply_fault();
}

int el_before(int kind, int fd, const char *path, int64_t size) {
    int ordered = el_schedule_step(kind, fd, path, size);
    if (ordered < 0) {
        return ordered;
    }
    atomic_fetch_add_explicit(&hook.counts[kind], 1, memory_order_relaxed);
    uint32_t kinds = atomic_load_explicit(&hook.kinds, memory_order_relaxed);
    int trace_fd = atomic_load_explicit(&hook.trace_fd, memory_order_relaxed);
    if (__builtin_expect(!(kinds >> kind & 1) && trace_fd < 0, 1)) {
        return EL_OK;
    }
    return slow_before(kind, fd, path, size, trace_fd);
}

void el_after(int kind) {
    (void)kind;
    int action = atomic_load_explicit(&hook.after, memory_order_relaxed);
    if (__builtin_expect(action == EL_FAULT_NONE, 1)) {
        return;
    }
    atomic_store(&hook.after, EL_FAULT_NONE);
    if (action == EL_FAULT_STOP_AFTER) {
        raise(SIGSTOP);
    } else {
        kill(getpid(), SIGKILL);
    }
}

int32_t el_point(const char *name) {
    int rc = el_before(EL_CALL_POINT, -1, name, 0);
    el_after(EL_CALL_POINT);
    return rc < 0 ? rc : EL_OK;
}

int32_t el_list_hook(const char *path) {
    int rc = el_before(EL_CALL_LIST, -1, path, 0);
    el_after(EL_CALL_LIST);
    return rc < 0 ? rc : EL_OK;
}
