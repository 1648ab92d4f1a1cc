/* The gate of a controller that runs one of several processes at a time. It exists only in the test
 * build.
 *
 * A build without EMBEDLOG_TEST_BUILD has no branch, table or symbol of it: the macros below are
 * constants. */
#ifndef EL_SCHEDULE_H
#define EL_SCHEDULE_H

#include "api/native.h"

/* Further kinds of steps; gate.py of the tests has the names. They are no calls: no fault is
 * injected there. */
enum el_step { EL_STEP_READ = 32, EL_STEP_WRITE = 33, EL_STEP_PROBE = 34 };

#ifdef EMBEDLOG_TEST_BUILD
#include <fcntl.h>

int el_is_scheduled(void);
/* Waits for the turn of this process. Returns 0, or an error that the controller wants the call to
 * return. */
int el_schedule_step(int kind, int fd, const char *path, int64_t size);
/* As a step that reads or changes a control page; the mapping of a page tells its path. */
void el_schedule_page(const uint8_t *page, int changes);
void el_schedule_mapped(const uint8_t *page, int fd);
/* Gives the turn away until `lock` on `fd` can be taken, or the deadline. */
void el_schedule_lock(int fd, const struct flock *lock, int64_t deadline_ns);
void el_schedule_woke(void);
#else
#define el_is_scheduled() 0
#define el_schedule_step(kind, fd, path, size) ((void)0, 0)
#define el_schedule_page(page, changes) ((void)0)
#define el_schedule_mapped(page, fd) ((void)0)
#define el_schedule_lock(fd, lock, deadline_ns) ((void)(fd), (void)(lock), (void)(deadline_ns))
#define el_schedule_sleep(duration_ns, is_woken) ((void)0)
#define el_schedule_woke() ((void)0)
#endif

#endif
