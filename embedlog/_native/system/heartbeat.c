/* Heartbeat leases: a thread writes heartbeats and reports the state of its process.
 *
 * - A heartbeat does not need the interpreter: a process that holds the interpreter's lock for
 *   minutes remains a member.
 * - A lease counts from the moment before its heartbeat was written, on a clock that includes
 *   suspends. Observers see the heartbeat later and wait as long from then, so a lease expires here
 *   before it can end there.
 * - An expired lease stays expired: a resumed process writes a heartbeat first, and must still read
 *   the group again.
 * - A heartbeat has no fault hook: its time is arbitrary, and it would change the number of every
 *   later call.
 * - A forked child has no such thread and shares nothing with the thread of its parent. */
#include "system/system.h"
#include "testing/mutants.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    _Atomic int64_t good_until_ns; /* boot clock; the visible part of an el_lease */
    _Atomic int64_t polled_ns;     /* monotonic clock; 0: during a poll */
    _Atomic uint32_t word;         /* futex of the thread: changes when it must wake */
    _Atomic int32_t left;
    _Atomic int32_t running;
    int32_t fd;
    int64_t position, guard_at;
    int64_t session_ns, heartbeat_ns, poll_ns;
    /* time of the next heartbeat; this and the following fields are under the mutex */
    int64_t next_ns;
    uint64_t heartbeats;
    int32_t unreported; /* the entry does not show yet that the lease was left */
    pid_t process;
    pthread_t thread;
    pthread_mutex_t mutex;
} lease_state;

_Static_assert(sizeof(lease_state) <= sizeof(el_lease),
               "the state fits into the memory of the caller");
_Static_assert(offsetof(lease_state, good_until_ns) == offsetof(el_lease, good_until_ns),
               "Python reads this field");

static lease_state *state_of(const el_lease *lease) { return (lease_state *)(uintptr_t)lease; }

static int64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* A network file system writes back when a lock is released and reads again when one is taken. If
 * the lock is taken, the call goes on without it: the next heartbeat follows. */
static int guard_lock(int fd, int64_t guard_at, short type) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = guard_at, .l_len = 1};
    return guard_at > 0 ? fcntl(fd, F_OFD_SETLK, &lock) : 0;
}

static int write_entry(lease_state *lease, uint64_t heartbeat, int left) {
    uint8_t entry[EL_SLOT_BYTES - EL_SLOT_BEAT] = {0};
    ssize_t size = sizeof entry;
    store_be64(entry, heartbeat);
    store_be64(entry + EL_SLOT_LEFT - EL_SLOT_BEAT, (uint64_t)left);
    guard_lock(lease->fd, lease->guard_at, F_WRLCK);
    int whole = pwrite(lease->fd, entry, sizeof entry, lease->position + EL_SLOT_BEAT) == size;
    int number = whole ? 0 : errno;
    guard_lock(lease->fd, lease->guard_at, F_UNLCK);
    return whole ? EL_OK : EL_SYSTEM_ERROR(number ? number : EIO);
}

int32_t el_slot_read(int32_t fd, int64_t lock_at, int64_t position, int64_t guard_at,
                     uint8_t *entry) {
    memset(entry, 0, EL_SLOT_BYTES);
    int32_t held = el_byte_lock_probe(fd, lock_at);
    if (held < 0) {
        return held;
    }
    guard_lock(fd, guard_at, F_RDLCK);
    int64_t size = el_pread(fd, entry, EL_SLOT_BYTES, position);
    guard_lock(fd, guard_at, F_UNLCK);
    return size < 0 ? (int32_t)size : held;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* REQUIRES: the mutex, and a lease that was not left. */
static int write_heartbeat(lease_state *lease) {
    int64_t now_ns = el_boot_ns();
    int64_t good_until_ns = atomic_load(&lease->good_until_ns);
    if (now_ns >= good_until_ns && !el_is_mutant(EL_FORGIVE_EXPIRY)) {
        good_until_ns = 0; /* an expired lease stays expired */
        atomic_store(&lease->good_until_ns, 0);
    }
    int code = write_entry(lease, lease->heartbeats + 1, 0);
    if (code < 0) {
        return code;
    }
    lease->heartbeats++;
    if (good_until_ns) {
        atomic_store(&lease->good_until_ns, now_ns + lease->session_ns);
    }
    return EL_OK;
}

/* Performs the work that is due; returns the time until the next. */
static int64_t run_due_work(lease_state *lease) {
    pthread_mutex_lock(&lease->mutex);
    int64_t now_ns = monotonic_ns();
    int64_t polled_ns = atomic_load(&lease->polled_ns);
    if (polled_ns && now_ns - polled_ns >= lease->poll_ns && !atomic_load(&lease->left)) {
        atomic_store(&lease->left, 1);
        atomic_store(&lease->good_until_ns, 0);
        lease->unreported = 1;
    }
    if (lease->unreported && write_entry(lease, lease->heartbeats, 1) == EL_OK) {
        lease->unreported = 0;
    }
    if (now_ns >= lease->next_ns) {
        if (!atomic_load(&lease->left)) {
            write_heartbeat(lease); /* after a failed write the next heartbeat is the retry */
        }
        lease->next_ns = now_ns + lease->heartbeat_ns;
    }
    int64_t sleep_ns = lease->next_ns - now_ns;
    if (!atomic_load(&lease->left)) {
        int64_t late_ns = (polled_ns ? polled_ns - now_ns : 0) + lease->poll_ns;
        sleep_ns = late_ns < sleep_ns ? late_ns : sleep_ns;
    }
    pthread_mutex_unlock(&lease->mutex);
    return sleep_ns;
}

static void *heartbeat_thread(void *raw) {
    lease_state *lease = raw;
    for (;;) {
        uint32_t seen = atomic_load(&lease->word);
        if (!atomic_load(&lease->running)) {
            return NULL;
        }
        int64_t sleep_ns = run_due_work(lease);
        if (sleep_ns > 0) {
            el_futex_wait(&lease->word, seen, sleep_ns);
        }
    }
}

enum { EL_LEASE_STACK_BYTES = 1 << 18 };

static int start_thread(lease_state *lease) {
    sigset_t every, before;
    pthread_attr_t attributes;
    sigfillset(&every);
    int code = pthread_attr_init(&attributes);
    if (code) {
        return code;
    }
    pthread_attr_setstacksize(&attributes, EL_LEASE_STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &every, &before); /* a new thread inherits this mask */
    code = pthread_create(&lease->thread, &attributes, heartbeat_thread, lease);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return code;
}

/* ---- the interface --------------------------------------------------------------------------- */

int32_t el_lease_start(el_lease *raw, int32_t fd, int64_t position, int64_t guard_at,
                       int64_t session_ns, int64_t heartbeat_ns, int64_t poll_ns) {
    lease_state *lease = state_of(raw);
    if (fd < 0 || position < 0 || session_ns <= 0 || heartbeat_ns <= 0 || poll_ns <= 0 ||
        atomic_load(&lease->running)) {
        return EL_EINVALID;
    }
    lease->fd = fd;
    lease->position = position;
    lease->guard_at = guard_at;
    lease->session_ns = session_ns;
    lease->heartbeat_ns = heartbeat_ns;
    lease->poll_ns = poll_ns;
    lease->process = getpid();
    atomic_store(&lease->good_until_ns, INT64_MAX);
    lease->next_ns = monotonic_ns() + heartbeat_ns;
    int code = write_heartbeat(lease);
    if (code < 0) {
        return code;
    }
    pthread_mutex_init(&lease->mutex, NULL);
    atomic_store(&lease->running, 1);
    code = start_thread(lease);
    if (code) {
        atomic_store(&lease->running, 0);
    }
    return code ? EL_SYSTEM_ERROR(code) : EL_OK;
}

int32_t el_lease_polling(el_lease *lease) {
    atomic_store(&state_of(lease)->polled_ns, 0);
    return atomic_load(&state_of(lease)->left);
}

int32_t el_lease_polled(el_lease *lease) {
    atomic_store(&state_of(lease)->polled_ns, monotonic_ns());
    return atomic_load(&state_of(lease)->left);
}

int32_t el_lease_left(const el_lease *lease) { return atomic_load(&state_of(lease)->left); }

int32_t el_lease_age(el_lease *raw, int64_t ns) {
    lease_state *lease = state_of(raw);
    int64_t polled_ns = atomic_load(&lease->polled_ns);
    if (!atomic_load(&lease->running) || lease->process != getpid()) {
        return 0;
    }
    while (polled_ns &&
           !atomic_compare_exchange_weak(&lease->polled_ns, &polled_ns, (polled_ns - ns) | 1)) {
        continue;
    }
    run_due_work(lease);
    return polled_ns != 0;
}

int32_t el_lease_renew(el_lease *raw) {
    lease_state *lease = state_of(raw);
    if (!atomic_load(&lease->running) || lease->process != getpid()) {
        return EL_EINVALID;
    }
    pthread_mutex_lock(&lease->mutex);
    int64_t before_ns = atomic_load(&lease->good_until_ns);
    int left = atomic_load(&lease->left);
    int unreported = lease->unreported;
    atomic_store(&lease->good_until_ns, INT64_MAX);
    atomic_store(&lease->polled_ns, 0);
    atomic_store(&lease->left, 0);
    lease->unreported = 0;
    int code = write_heartbeat(lease);
    if (code < 0) { /* restores the previous state: no process can see the renewal */
        atomic_store(&lease->good_until_ns, before_ns);
        atomic_store(&lease->left, left);
        lease->unreported = unreported;
    }
    pthread_mutex_unlock(&lease->mutex);
    return code;
}

int32_t el_lease_end(el_lease *raw) {
    lease_state *lease = state_of(raw);
    if (lease->process == getpid() && atomic_exchange(&lease->running, 0)) {
        atomic_fetch_add(&lease->word, 1);
        el_futex_wake(&lease->word, 1);
        pthread_join(lease->thread, NULL);
        pthread_mutex_destroy(&lease->mutex);
    }
    atomic_store(&lease->good_until_ns, 0);
    return EL_OK;
}

int32_t el_lease_abandon(el_lease *lease) {
    atomic_store(&state_of(lease)->running, 0);
    atomic_store(&state_of(lease)->good_until_ns, 0);
    return EL_OK;
}
