/* Syncs of many files at once: a file system writes them with few commits of its journal, if they
 * are requested together.
 *
 * - The calling thread takes part: without another thread all syncs are made, one after another.
 * - Every descriptor is synced once, and has its own result; the function returns after the last
 *   one.
 * - The threads take no signals, and use only the memory of the caller. */
#include "system/system.h"

#include <pthread.h>
#include <signal.h>

enum { THREADS_MAX = 15 };

typedef struct {
    const int32_t *fds;
    int32_t *results;
    int32_t count;
    _Atomic int32_t next;
} syncs;

static void *sync_rest(void *argument) {
    syncs *all = argument;
    int32_t at;
    while ((at = atomic_fetch_add(&all->next, 1)) < all->count) {
        all->results[at] = el_sync(all->fds[at], 0);
    }
    return NULL;
}

int32_t el_sync_all(const int32_t *fds, int32_t count, int32_t *results) {
    if (!fds || !results || count < 0 || count > EL_SYNCS_MAX) {
        return EL_EINVALID;
    }
    pthread_t threads[THREADS_MAX];
    sigset_t every, before;
    syncs all = {.fds = fds, .results = results, .count = count};
    int started = 0;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before); /* a new thread inherits this mask */
    while (!el_is_scheduled() && started < THREADS_MAX && started + 1 < count &&
           !pthread_create(&threads[started], NULL, sync_rest, &all)) {
        started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    sync_rest(&all);
    for (int at = 0; at < started; at++) {
        pthread_join(threads[at], NULL);
    }
    return EL_OK;
}
