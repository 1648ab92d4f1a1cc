/* Threads that append to the directories of a set for their callers: a disk that hangs stops its
 * thread, and not the caller.
 *
 * - A system call on a disk that hangs returns when the disk continues, and nothing ends it before.
 *   So the caller hands the append over, and waits for a limited time. Then it gives up, and the
 *   thread is left behind.
 * - The thread has writers and results of its own. What it shares with its caller after that are
 *   descriptors, pages, paths and the bytes of the run: they stay. `is_left` of one writer says
 *   that they are in use. The writer waits for the thread as for another process
 *   (`append_lock.c`).
 * - A caller that gives up while the thread is in a follower has the leader's lock, and gives it
 *   back. A thread in the leader keeps it: another directory must lead.
 * - A hand-over to a sleeping thread costs as much as the append, or more. So both sides look for a
 *   moment before they sleep (`spins`), on a machine that has a processor for each of them: after
 *   a look in vain, which shows that it has not, the next calls sleep at once.
 * - A thread serves one caller at a time. Threads without a caller wait in `idle`, and end after a
 *   while. A forked child has none, and forgets those of its parent.
 * - Without a thread (no memory for one) the caller makes the append itself. */
#include "log/append.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

enum { IDLE_MAX = 16, STACK_BYTES = 1 << 18, KEPT_BYTES = 1 << 18 };
enum { FORGETTING = -1 }; /* instead of the number of a process */
enum { PAUSES = 16, VAIN_LEAST = 64, VAIN_MOST = 4096 };
#define THREAD_NAME "embedlog-append" /* as the system shows the thread */
#define IDLE_NS 5000000000LL          /* without a caller, after which a thread ends */
#define CALLER_SPIN_NS 50000LL        /* of a caller, for the end of its append */
#define THREAD_SPIN_NS 20000LL        /* of a thread, for the next append */
#define LOOK_NS 100000000LL           /* in a follower, after which it does not answer */
#define APART_NS 10000000000LL        /* after a directory did not answer: the caller copies */
#define INLINE_NS 200000000LL         /* the patience of el_append_inline with a leader */

typedef struct {
    _Alignas(64) _Atomic uint32_t calls; /* of the thread, which sleeps on this count */
    _Atomic int32_t is_asleep;
    _Alignas(64) _Atomic int32_t ends; /* the call is that the thread ends */
    _Atomic int32_t owners;            /* the caller and the thread */
    _Atomic int32_t spins;             /* the next wait begins with a look */
    int32_t vain;      /* calls without a look, after the last one in vain; 0: it was not */
    int32_t vain_left; /* of them */
    int32_t has_processors; /* more than one */
    int32_t process;        /* of the thread */
    uint8_t *copy;          /* of rows and run */
    int64_t copy_bytes;
    el_job job;
} el_worker;

static _Atomic(el_worker *) idle[IDLE_MAX];
static _Atomic int32_t process; /* of the threads in `idle` */

static inline void pause_processor(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* ---- workers --------------------------------------------------------------------------------- */

static void free_worker(el_worker *worker) {
    free(worker->copy);
    free(worker);
}

static void give_back(el_worker *worker) {
    if (atomic_fetch_sub(&worker->owners, 1) == 1) {
        free_worker(worker);
    }
}

static void call_worker(el_worker *worker) {
    atomic_fetch_add(&worker->calls, 1);
    if (atomic_load(&worker->is_asleep)) {
        el_futex_wake(&worker->calls, 1);
    }
}

static void end_worker(el_worker *worker) {
    atomic_store(&worker->ends, 1);
    call_worker(worker);
    give_back(worker);
}

/* In a forked child: forgets the threads of the parent. Meanwhile no worker becomes idle. */
static void forget_parent(int32_t caller_process) {
    int32_t before = atomic_load(&process);
    if (before == caller_process || before == FORGETTING ||
        !atomic_compare_exchange_strong(&process, &before, FORGETTING)) {
        return;
    }
    for (int at = 0; at < IDLE_MAX; at++) {
        atomic_store(&idle[at], NULL);
    }
    atomic_store(&process, caller_process);
}

/* A worker that no caller uses, NULL if there is none. */
static el_worker *find_idle(int32_t caller_process) {
    forget_parent(caller_process);
    int is_ours = atomic_load(&process) == caller_process;
    for (int at = 0; is_ours && at < IDLE_MAX; at++) {
        el_worker *worker = atomic_load(&idle[at]);
        if (worker && atomic_compare_exchange_strong(&idle[at], &worker, NULL)) {
            return worker;
        }
    }
    return NULL;
}

static void put_idle(el_worker *worker) {
    int is_ours = atomic_load(&process) == worker->process;
    for (int at = 0; is_ours && at < IDLE_MAX; at++) {
        el_worker *none = NULL;
        if (atomic_compare_exchange_strong(&idle[at], &none, worker)) {
            return;
        }
    }
    end_worker(worker);
}

/* Whether the worker was idle, and is not any more. */
static int leave_idle(el_worker *worker) {
    for (int at = 0; at < IDLE_MAX; at++) {
        el_worker *expected = worker;
        if (atomic_compare_exchange_strong(&idle[at], &expected, NULL)) {
            return 1;
        }
    }
    return 0;
}

void el_append_rest(void) {
    for (int at = 0; at < IDLE_MAX; at++) {
        el_worker *worker = atomic_exchange(&idle[at], NULL);
        if (worker) {
            end_worker(worker);
        }
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Whether the word has another value before the end of a look. */
static int is_changed(_Atomic uint32_t *word, uint32_t seen, int64_t look_ns) {
    int64_t until_ns = el_boot_ns() + look_ns;
    do {
        for (int turn = 0; turn < PAUSES; turn++) {
            if (atomic_load_explicit(word, memory_order_acquire) != seen) {
                return 1;
            }
            pause_processor();
        }
    } while (el_boot_ns() < until_ns);
    return 0;
}

/* Sleeps until the count of calls is another one; whether it is. */
static int await_call(el_worker *worker, uint32_t calls) {
    if (atomic_load(&worker->spins) && is_changed(&worker->calls, calls, THREAD_SPIN_NS)) {
        return 1;
    }
    while (atomic_load(&worker->calls) == calls) {
        atomic_store(&worker->is_asleep, 1);
        int rc = atomic_load(&worker->calls) == calls
                     ? el_futex_wait(&worker->calls, calls, IDLE_NS)
                     : 0;
        atomic_store(&worker->is_asleep, 0);
        if (rc == -ETIMEDOUT && atomic_load(&worker->calls) == calls && leave_idle(worker)) {
            give_back(worker); /* for the caller that there is not */
            return 0;
        }
    }
    return 1;
}

static void *serve(void *argument) {
    el_worker *worker = argument;
    pthread_setname_np(pthread_self(), THREAD_NAME);
    for (uint32_t calls = 0; await_call(worker, calls) && !atomic_load(&worker->ends); calls++) {
        if (!el_job_run(&worker->job)) {
            break;
        }
        /* the job may be another one already, whose caller looks again */
        if (atomic_load(&worker->job.is_awaited)) {
            el_futex_wake(&worker->job.place, 1);
        }
    }
    give_back(worker);
    return NULL;
}

/* A thread takes no signals, except for those of its own faults. */
static void block_signals(sigset_t *before) {
    sigset_t blocked;
    sigfillset(&blocked);
    sigdelset(&blocked, SIGBUS);
    sigdelset(&blocked, SIGSEGV);
    sigdelset(&blocked, SIGFPE);
    sigdelset(&blocked, SIGILL);
    pthread_sigmask(SIG_SETMASK, &blocked, before);
}

static int start_thread(el_worker *worker) {
    sigset_t before;
    pthread_attr_t attributes;
    pthread_t thread;
    el_point("append-thread");
    int code = pthread_attr_init(&attributes);
    if (code) {
        return code;
    }
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    atomic_store(&worker->owners, 2);
    block_signals(&before); /* a new thread inherits the mask */
    code = pthread_create(&thread, &attributes, serve, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return code;
}

/* ---- the caller ------------------------------------------------------------------------------ */

/* Whether the bytes of run and rows are those of the worker now. */
static int copy_bytes(el_worker *worker) {
    el_given *given = &worker->job.given;
    int64_t rows_bytes = given->row_count * (int64_t)sizeof *given->rows;
    int64_t bytes = rows_bytes + given->size;
    if (bytes > worker->copy_bytes) {
        free(worker->copy);
        worker->copy = malloc((size_t)bytes);
        worker->copy_bytes = worker->copy ? bytes : 0;
    }
    if (!worker->copy) {
        return 0;
    }
    memcpy(worker->copy, given->rows, (size_t)rows_bytes);
    memcpy(worker->copy + rows_bytes, given->data, (size_t)given->size);
    given->rows = (const el_batch *)(const void *)worker->copy;
    given->data = worker->copy + rows_bytes;
    return 1;
}

/* A copy of an unusual size is not kept. */
static void drop_copy(el_worker *worker) {
    if (worker->copy_bytes > KEPT_BYTES) {
        free(worker->copy);
        worker->copy = NULL;
        worker->copy_bytes = 0;
    }
}

static void lend(el_job *job, const el_together *together, const el_known *known) {
    job->together = *together;
    job->together.leader = &job->writers[0];
    job->together.followers = job->followers;
    job->lent[0] = together->leader;
    job->writers[0] = *together->leader;
    job->writers[0].leader_epoch = together->epoch;
    job->writers[0].all_in_sync = together->all_in_sync;
    for (int32_t at = 0; at < together->count; at++) {
        job->lent[at + 1] = together->followers[at];
        job->writers[at + 1] = *together->followers[at];
        job->followers[at] = &job->writers[at + 1];
    }
    job->has_known = known != NULL;
    if (known) {
        job->known = *known;
    }
    atomic_store(&job->place, 0);
    atomic_store(&job->is_awaited, 0);
}

static void take_back(el_job *job, int32_t count, el_together *together, el_known *known,
                      el_appended *out) {
    /* A thread that was left behind in a follower may have left it since `lend`. The job apart from
     * the followers has not changed their writers. */
    count = job->is_apart ? 1 : count;
    for (int32_t at = 0; at < count; at++) {
        *job->lent[at] = job->writers[at];
    }
    together->answered_ns = job->together.answered_ns;
    *out = job->out;
    if (known) {
        *known = job->known;
    }
}

/* Whether the thread, which has been in a place for too long, stays there: it is left behind. */
static int is_given_up(el_job *job, uint32_t place) {
    el_writer *writer = job->lent[place <= EL_FOLLOWERS_MAX ? place : 0];
    __atomic_store_n(&writer->is_left, 1, __ATOMIC_SEQ_CST);
    if (atomic_compare_exchange_strong(&job->place, &place, place | EL_JOB_LEFT)) {
        return 1;
    }
    __atomic_store_n(&writer->is_left, 0, __ATOMIC_SEQ_CST);
    return 0;
}

/* Notes whether a look of the caller was in vain. */
static void note_look(el_worker *worker, int was_in_vain) {
    if (!was_in_vain) {
        worker->vain = 0;
        return;
    }
    int32_t twice = 2 * worker->vain;
    worker->vain = twice < VAIN_LEAST ? VAIN_LEAST : twice > VAIN_MOST ? VAIN_MOST : twice;
    worker->vain_left = worker->vain;
    atomic_store(&worker->spins, 0);
}

/* Whether the job has ended before the end of a look. */
static int has_ended_soon(el_worker *worker) {
    el_job *job = &worker->job;
    if (!atomic_load(&worker->spins)) {
        worker->vain_left--;
        atomic_store(&worker->spins, worker->vain_left <= 0 && worker->has_processors);
        return 0;
    }
    int64_t until_ns = el_boot_ns() + CALLER_SPIN_NS;
    do {
        for (int turn = 0; turn < PAUSES; turn++) {
            if (atomic_load_explicit(&job->place, memory_order_acquire) == EL_JOB_ENDED) {
                note_look(worker, 0);
                return 1;
            }
            pause_processor();
        }
    } while (el_boot_ns() < until_ns);
    note_look(worker, 1);
    return 0;
}

/* EL_JOB_ENDED, or the place in which the thread was left behind. Signals of the program end sleeps
 * early, and may come at a shorter interval than a look: the time counts, not the sleeps. */
static uint32_t await_end(el_worker *worker, int64_t patience_ns) {
    el_job *job = &worker->job;
    int64_t leader_until_ns = el_boot_ns() + patience_ns;
    int64_t until_ns = leader_until_ns;
    uint32_t seen = 0;
    if (has_ended_soon(worker)) {
        return EL_JOB_ENDED;
    }
    for (;;) {
        uint32_t place = atomic_load(&job->place);
        if (place == EL_JOB_ENDED) {
            return place;
        }
        if (place != seen) {
            int is_in_leader = place == EL_JOB_COMMITS;
            until_ns = is_in_leader ? leader_until_ns : el_boot_ns() + LOOK_NS;
            seen = place;
        }
        int64_t left_ns = until_ns - el_boot_ns();
        if (left_ns <= 0) {
            if (is_given_up(job, place)) {
                return place;
            }
            continue;
        }
        atomic_store(&job->is_awaited, 1);
        if (atomic_load(&job->place) == place) {
            /* the thread wakes its caller at the end, and not when it enters another directory */
            el_futex_wait(&job->place, place, left_ns < LOOK_NS ? left_ns : LOOK_NS);
        }
    }
}

/* The code for a caller that has left the thread behind in a place. */
static int32_t give_up(el_job *job, uint32_t place, el_together *together, el_known *known,
                       el_appended *out) {
    together->apart_until_ns = el_boot_ns() + APART_NS;
    if (place == 0) {
        together->left = 0;
        return EL_IN_DOUBT;
    }
    if (place == EL_JOB_COMMITS) {
        together->left = 0;
    } else { /* the leader's lock is that of the caller */
        together->left = (int32_t)place;
        *together->leader = job->writers[0];
        el_append_end(together->leader, 0);
    }
    *out = job->out;
    if (known) {
        *known = job->known;
    }
    return EL_UNCOMMITTED;
}

static int32_t append_by(el_worker *worker, el_together *together, el_known *known,
                         int64_t patience_ns, el_appended *out) {
    el_job *job = &worker->job;
    int32_t count = together->count + 1;
    lend(job, together, known);
    call_worker(worker);
    uint32_t place = await_end(worker, patience_ns);
    if (place == EL_JOB_ENDED) {
        int32_t code = job->code;
        take_back(job, count, together, known, out);
        drop_copy(worker);
        put_idle(worker);
        return code;
    }
    int32_t code = give_up(job, place, together, known, out);
    give_back(worker);
    return code;
}

/* As append_by, in the thread of the caller. */
static int32_t append_here(el_worker *worker, el_together *together, el_known *known,
                           el_appended *out) {
    el_job *job = &worker->job;
    lend(job, together, known);
    el_job_run(job);
    int32_t code = job->code;
    take_back(job, together->count + 1, together, known, out);
    free_worker(worker);
    return code;
}

/* Whether a follower did not answer a moment ago. */
static int is_apart(const el_together *together) {
    if (together->apart_until_ns && el_boot_ns() < together->apart_until_ns) {
        return 1;
    }
    for (int32_t at = 0; at < together->count; at++) {
        if (__atomic_load_n(&together->followers[at]->is_left, __ATOMIC_SEQ_CST)) {
            return 1;
        }
    }
    return 0;
}

/* Whether this process may use more than one processor. */
static int has_processors(void) {
    cpu_set_t usable;
    return sched_getaffinity(0, sizeof usable, &usable) == 0 && CPU_COUNT(&usable) > 1;
}

/* A worker whose thread is to be started; NULL without memory. */
static el_worker *make_worker(int32_t caller_process) {
    el_worker *worker = aligned_alloc(_Alignof(el_worker), sizeof *worker);
    if (worker) {
        memset(worker, 0, sizeof *worker);
        worker->process = caller_process;
        worker->has_processors = has_processors();
        atomic_store(&worker->spins, worker->has_processors);
    }
    return worker;
}

static int32_t append(el_together *together, const el_given *given, int copies, el_known *known,
                      int64_t patience_ns, el_appended *out) {
    together->left = -1;
    if (together->count < 0 || together->count > EL_FOLLOWERS_MAX) {
        return EL_EINVALID;
    }
    int apart = is_apart(together);
    if (apart && copies) {
        return EL_APART;
    }
    int32_t rc = el_wait_for_left(together->leader, given->deadline_ns);
    if (rc != EL_OK) {
        return rc;
    }
    int32_t caller_process = together->leader->process;
    el_worker *worker = el_is_scheduled() ? NULL : find_idle(caller_process);
    int is_new = !worker;
    if (is_new) {
        worker = make_worker(caller_process);
    }
    if (!worker) {
        return EL_SYSTEM_ERROR(ENOMEM);
    }
    worker->job.given = *given;
    worker->job.is_apart = apart;
    if (copies && !copy_bytes(worker)) {
        is_new ? free_worker(worker) : put_idle(worker);
        return EL_SYSTEM_ERROR(ENOMEM);
    }
    if (is_new && (el_is_scheduled() || start_thread(worker))) {
        return append_here(worker, together, known, out);
    }
    return append_by(worker, together, known, patience_ns, out);
}

int32_t el_append_together(el_together *together, const uint8_t *data, int64_t size,
                           const el_batch *rows, int64_t row_count, el_known *known,
                           int64_t deadline_ns, el_appended *out) {
    const el_given given = {data, size, rows, row_count, deadline_ns};
    return append(together, &given, 0, known, together->patience_ns, out);
}

int32_t el_append_inline(el_together *together, const uint8_t *data, int64_t size,
                         const el_batch *rows, int64_t row_count, el_known *known,
                         int64_t deadline_ns, el_appended *out) {
    const el_given given = {data, size, rows, row_count, deadline_ns};
    return append(together, &given, 1, known, INLINE_NS, out);
}

_Static_assert(_Generic(&el_append_inline, el_together_call: 1, default: 0),
               "the other extension calls it by this type");
