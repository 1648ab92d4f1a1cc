/* Private copies of control pages, for a log opened with shared="locks": nothing is mapped. A page
 * is read from its file under a lock on that file, and written back before the lock is released.
 *
 * - Every read and every change is between el_page_enter and el_page_leave; for a mapped page both
 *   do nothing.
 * - Every read starts with a read of the file: content from an earlier lock is never used.
 * - A page that cannot be locked or read is zeros: an invalid page instead of an outdated one.
 * - A mapping starts at a multiple of 4096, a private copy 64 bytes after one: the address
 *   distinguishes them. */
#include "log/control_page.h"
#include "testing/mutants.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE_AT = 64, MEMORY_BYTES = 3 * EL_PAGE_BYTES };

static const int64_t LOCK_TIMEOUT_NS = INT64_C(10000000000);

typedef struct {
    pthread_mutex_t mutex; /* the OFD lock does not exclude threads of this process */
    int fd, writable, depth, changed, failed;
} el_private;

int el_page_is_private(const uint8_t *page) {
    return ((uintptr_t)page & (EL_PAGE_BYTES - 1)) == PAGE_AT;
}

static el_private *private_of(const uint8_t *page) {
    return el_page_is_private(page) ? (el_private *)((uintptr_t)page + EL_PAGE_BYTES) : NULL;
}

uint8_t *el_copy_page(int32_t fd, int32_t writable, int32_t *error) {
    pthread_mutexattr_t kind;
    uint8_t *memory =
        mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *error = memory == MAP_FAILED ? EL_SYSTEM_ERROR(errno) : EL_OK;
    if (*error) {
        return NULL;
    }
    el_private *own = private_of(memory + PAGE_AT);
    own->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    own->writable = writable;
    if (own->fd < 0) {
        *error = EL_SYSTEM_ERROR(errno);
        munmap(memory, MEMORY_BYTES);
        return NULL;
    }
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&own->mutex, &kind);
    pthread_mutexattr_destroy(&kind);
    return memory + PAGE_AT;
}

int32_t el_copy_close(uint8_t *page) {
    el_private *own = private_of(page);
    if (pthread_mutex_trylock(&own->mutex)) {
        /* in use by another thread: the descriptor is closed with the last reference */
        return EL_OK;
    }
    if (own->depth == 0 && own->fd >= 0) {
        close(own->fd);
        own->fd = -1; /* it cannot be locked any more: zeros, not an outdated page */
        memset(page, 0, EL_PAGE_BYTES);
    }
    pthread_mutex_unlock(&own->mutex);
    return EL_OK;
}

int32_t el_copy_free(uint8_t *page) {
    el_private *own = private_of(page);
    if (own->fd >= 0) {
        close(own->fd);
    }
    pthread_mutex_destroy(&own->mutex);
    return munmap(page - PAGE_AT, MEMORY_BYTES) < 0 ? EL_SYSTEM_ERROR(errno) : EL_OK;
}

int32_t el_page_enter(const uint8_t *page, int exclusive) {
    el_private *own = private_of(page);
    el_schedule_page(page, exclusive);
    if (!own) {
        return EL_OK;
    }
    pthread_mutex_lock(&own->mutex);
    if (own->depth++ > 0) {
        return own->failed;
    }
    if (el_is_mutant(EL_TRUST_COPY) && ((const el_page *)(uintptr_t)page)->magic && !exclusive) {
        return EL_OK; /* uses the content from an earlier lock */
    }
    own->changed = 0;
    own->failed =
        el_lock_until(own->fd, exclusive && own->writable, NULL, el_boot_ns() + LOCK_TIMEOUT_NS);
    if (own->failed == EL_OK) {
        int64_t got = el_pread(own->fd, (uint8_t *)(uintptr_t)page, EL_PAGE_BYTES, 0);
        if (got == EL_PAGE_BYTES) {
            return EL_OK;
        }
        el_unlock(own->fd);
        own->failed = got < 0 ? (int32_t)got : EL_EMORE;
    }
    memset((void *)(uintptr_t)page, 0, EL_PAGE_BYTES);
    return own->failed;
}

int32_t el_page_leave(const uint8_t *page, int changed) {
    el_private *own = private_of(page);
    if (!own) {
        return EL_OK;
    }
    int32_t rc = own->failed;
    own->changed |= changed;
    if (--own->depth == 0 && rc == EL_OK) {
        int64_t put = own->changed ? el_pwrite(own->fd, page, EL_PAGE_BYTES, 0) : 0;
        rc = put < 0 ? (int32_t)put : EL_OK;
        own->changed = 0;
        el_unlock(own->fd);
    }
    pthread_mutex_unlock(&own->mutex);
    return rc;
}
