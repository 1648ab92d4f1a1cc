/* Probes of disks: each has a thread that writes one byte when it is asked, so that nobody else
 * waits for a disk that hangs.
 *
 * Questions are counted. A question that is asked while the thread writes is answered by the end of
 * this write. A write that has just ended, but is not told yet, is such a write, too. The memory
 * belongs to the owner and to the thread, because a thread in a disk that hangs outlives its owner.
 * A thread without questions leaves after a while, or at once if the owner rests; the next question
 * starts another one. The thread takes no signals. */
#include "system/system.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { PROBE_STACK_BYTES = 1 << 18 };
#define PROBE_NAME "embedlog-probe" /* as the system shows the thread */
#define PROBE_IDLE_NS 5000000000LL  /* without a question, after which the thread leaves */

struct el_probe {
    _Atomic uint32_t calls;    /* of the thread: a question, or to leave; it sleeps on this count */
    _Atomic uint32_t asked;    /* the number of the last question */
    _Atomic uint32_t answered; /* that of the last question with an answer; callers sleep on it */
    _Atomic int32_t code;      /* the last answer */
    _Atomic int32_t owners;    /* of this memory: the caller of el_probe_new, and the thread */
    _Atomic int32_t has_thread;
    _Atomic int32_t leaves; /* the thread leaves as soon as it has answered */
    pid_t process;
    int64_t position;
    char path[];
};

static void give_back(el_probe *probe) {
    if (atomic_fetch_sub(&probe->owners, 1) == 1) {
        free(probe);
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* The file is opened for each question: another disk may be at its path meanwhile. */
static int32_t write_byte(const el_probe *probe) {
    int32_t fd = el_open(probe->path, O_WRONLY, 0);
    if (fd < 0) {
        return fd;
    }
    int64_t size = el_pwrite(fd, (const uint8_t *)"\n", 1, probe->position);
    int32_t closed = el_close(fd);
    if (size < 0) {
        return (int32_t)size;
    }
    return closed < 0 ? closed : EL_OK;
}

static void tell(el_probe *probe, uint32_t question, int32_t code) {
    atomic_store(&probe->code, code);
    atomic_store(&probe->answered, question);
    el_futex_wake(&probe->answered, INT32_MAX);
}

static void call_thread(el_probe *probe) {
    atomic_fetch_add(&probe->calls, 1);
    el_futex_wake(&probe->calls, 1);
}

/* Whether the probe had no thread: the caller is, or starts, its thread now. */
static int claim_thread(el_probe *probe) {
    int32_t none = 0;
    return atomic_compare_exchange_strong(&probe->has_thread, &none, 1);
}

/* Whether the thread has left. A question that came meanwhile either starts another thread, or
 * keeps this one. */
static int leave(el_probe *probe) {
    atomic_store(&probe->has_thread, 0);
    return atomic_load(&probe->asked) == atomic_load(&probe->answered) || !claim_thread(probe);
}

static void *probe_thread(void *argument) {
    el_probe *probe = argument;
    pthread_setname_np(pthread_self(), PROBE_NAME);
    for (;;) {
        uint32_t calls = atomic_load(&probe->calls);
        uint32_t question = atomic_load(&probe->asked);
        if (question != atomic_load(&probe->answered)) {
            tell(probe, question, write_byte(probe));
        } else if (atomic_exchange(&probe->leaves, 0)) {
            if (leave(probe)) {
                break;
            }
        } else if (el_futex_wait(&probe->calls, calls, PROBE_IDLE_NS) == -ETIMEDOUT) {
            atomic_store(&probe->leaves, 1);
        }
    }
    give_back(probe);
    return NULL;
}

static int start_thread(el_probe *probe) {
    sigset_t every, before;
    pthread_attr_t attributes;
    pthread_t thread;
    el_point("probe-thread");
    int code = pthread_attr_init(&attributes);
    if (code) {
        return code;
    }
    pthread_attr_setstacksize(&attributes, PROBE_STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    atomic_fetch_add(&probe->owners, 1);
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before); /* a new thread inherits this mask */
    code = pthread_create(&thread, &attributes, probe_thread, probe);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (code) {
        atomic_fetch_sub(&probe->owners, 1);
    }
    return code;
}

/* ---- questions ------------------------------------------------------------------------------- */

/* EL_OK and the number of the question, or an error of the system: without a thread it is the
 * answer. */
static int32_t ask(el_probe *probe, uint32_t *question) {
    if (probe->process != getpid()) {
        return EL_SYSTEM_ERROR(ETIMEDOUT);
    }
    uint32_t last = atomic_load(&probe->asked);
    *question = last;
    if (last == atomic_load(&probe->answered)) { /* else the thread writes now */
        *question = last + 1;
        if (atomic_compare_exchange_strong(&probe->asked, &last, last + 1)) {
            call_thread(probe); /* else another thread has asked the same question */
        }
    }
    if (!claim_thread(probe)) {
        return EL_OK;
    }
    int code;
    while ((code = start_thread(probe)) != 0) {
        /* of all who asked meanwhile */
        tell(probe, atomic_load(&probe->asked), EL_SYSTEM_ERROR(code));
        if (leave(probe)) {
            return EL_SYSTEM_ERROR(code);
        }
    }
    return EL_OK;
}

/* The answer, or -(1000 + ETIMEDOUT) after the deadline (boot clock). */
static int32_t await(el_probe *probe, uint32_t question, int64_t deadline_ns) {
    for (;;) {
        uint32_t answered = atomic_load(&probe->answered);
        if ((int32_t)(answered - question) >= 0) {
            return atomic_load(&probe->code);
        }
        int64_t left_ns = deadline_ns - el_boot_ns();
        if (left_ns <= 0) {
            return EL_SYSTEM_ERROR(ETIMEDOUT);
        }
        el_futex_wait(&probe->answered, answered, left_ns);
    }
}

el_probe *el_probe_new(const char *path, int64_t position) {
    size_t size = strlen(path) + 1;
    el_probe *probe = calloc(1, sizeof *probe + size);
    if (!probe) {
        return NULL;
    }
    memcpy(probe->path, path, size);
    probe->position = position;
    probe->process = getpid();
    atomic_store(&probe->owners, 1);
    return probe;
}

void el_probe_rest(el_probe *probe) {
    if (probe->process != getpid()) {
        return;
    }
    atomic_store(&probe->leaves, 1);
    call_thread(probe);
}

void el_probe_end(el_probe *probe) {
    el_probe_rest(probe); /* nobody asks any more */
    give_back(probe);
}

int32_t el_probe_ask(el_probe *const *probes, int32_t count, int64_t timeout_ns, int32_t *codes) {
    uint32_t questions[EL_PROBES_MAX];
    if (count < 0 || count > EL_PROBES_MAX) {
        return EL_EINVALID;
    }
    for (int32_t at = 0; at < count && el_is_scheduled();
         at++) { /* one thread runs at a time: the probes have none */
        codes[at] = write_byte(probes[at]);
    }
    if (el_is_scheduled()) {
        return EL_OK;
    }
    int64_t deadline_ns = el_boot_ns() + timeout_ns;
    for (int32_t at = 0; at < count; at++) {
        codes[at] = ask(probes[at], &questions[at]);
    }
    for (int32_t at = 0; at < count; at++) {
        if (codes[at] == EL_OK) {
            codes[at] = await(probes[at], questions[at], deadline_ns);
        }
    }
    return EL_OK;
}
