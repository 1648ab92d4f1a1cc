/* Two clocks: one for deadlines and leases, one for timestamps and retention. Tests can shift the second one. */
#include "system/system.h"

#include <time.h>

static _Atomic int64_t wall_shift_ms;

int64_t el_boot_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t el_wall_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 + atomic_load_explicit(&wall_shift_ms, memory_order_relaxed);
}

void el_shift_wall(int64_t ms) { atomic_store(&wall_shift_ms, ms); }
