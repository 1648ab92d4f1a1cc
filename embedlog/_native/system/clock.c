/* Two clocks: one for deadlines and leases, one for timestamps and retention. Tests shift the
 * second one, or stop it.
 *
 * Both extensions contain this file: each has its own state, and `calls` sets both. In the test
 * build the first clock may be a number that a controller moves (testing/schedule.c). */
#include "system/system.h"

#include <time.h>

static _Atomic int64_t wall_shift_ms;
static _Atomic int64_t wall_frozen_ms = -1;

#ifdef EMBEDLOG_TEST_BUILD
static const int64_t *_Atomic followed_ns;

void el_follow_clock(const int64_t *ns) { atomic_store(&followed_ns, ns); }
#endif

int64_t el_boot_ns(void) {
    struct timespec now;
#ifdef EMBEDLOG_TEST_BUILD
    const int64_t *followed = atomic_load_explicit(&followed_ns, memory_order_relaxed);
    if (__builtin_expect(followed != NULL, 0)) {
        return atomic_load((const _Atomic int64_t *)followed);
    }
#endif
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t el_kernel_ms(void) {
    struct timespec now;
#ifdef EMBEDLOG_TEST_BUILD
    if (__builtin_expect(atomic_load_explicit(&followed_ns, memory_order_relaxed) != NULL, 0)) {
        return 0; /* every change of a file is too new to be trusted, whenever the test runs */
    }
#endif
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t el_wall_ms(void) {
    int64_t frozen_ms = atomic_load_explicit(&wall_frozen_ms, memory_order_relaxed);
    if (__builtin_expect(frozen_ms >= 0, 0)) {
        return frozen_ms;
    }
    return el_kernel_ms() + atomic_load_explicit(&wall_shift_ms, memory_order_relaxed);
}

void el_shift_wall(int64_t ms) { atomic_store(&wall_shift_ms, ms); }

void el_freeze_wall(int64_t ms) { atomic_store(&wall_frozen_ms, ms < 0 ? -1 : ms); }
