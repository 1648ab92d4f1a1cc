/* Recording of all changes to files, for simulations of a power loss.
 *
 * - Off by default: one relaxed load per call.
 * - A record is written after its call has succeeded, under a mutex: the order of the records is a
 *   possible order of the calls.
 * - Changes of a mapped page are not recorded: no guarantee depends on a page after a reboot. */
#include "system/system.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Atomic int record_fd = -1;
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;

typedef struct {
    int32_t kind;
    int32_t padding;
    int64_t number; /* position, size or flags */
    int64_t name_size, second_size, data_size;
} el_record_head;

_Static_assert(sizeof(el_record_head) == 40, "read by tests as <iiqqqq");

int32_t el_fault_record(int32_t fd) {
    atomic_store(&record_fd, fd);
    return EL_OK;
}

int el_is_recording(void) { return atomic_load_explicit(&record_fd, memory_order_relaxed) >= 0; }

static void put(int fd, const void *bytes, size_t size) {
    const uint8_t *at = bytes;
    while (size > 0) {
        ssize_t rc = write(fd, at, size);
        if (rc <= 0) {
            return;
        }
        at += rc;
        size -= (size_t)rc;
    }
}

void el_record(int kind, int fd, const char *path, const char *second, int64_t number,
               const struct iovec *pieces, int64_t size) {
    char link[64], memory[4097];
    int out = atomic_load_explicit(&record_fd, memory_order_relaxed);
    if (!path) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, memory, sizeof memory - 1);
        memory[length < 0 ? 0 : length] = 0;
        path = memory;
    }
    el_record_head head = {.kind = kind,
                           .number = number,
                           .name_size = (int64_t)strlen(path),
                           .second_size = second ? (int64_t)strlen(second) : 0,
                           .data_size = size};
    pthread_mutex_lock(&order);
    put(out, &head, sizeof head);
    put(out, path, (size_t)head.name_size);
    put(out, second, (size_t)head.second_size);
    for (int at = 0; size > 0; at++) {
        int64_t part = (int64_t)pieces[at].iov_len < size ? (int64_t)pieces[at].iov_len : size;
        put(out, pieces[at].iov_base, (size_t)part);
        size -= part;
    }
    pthread_mutex_unlock(&order);
}
