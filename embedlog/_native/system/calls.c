/* System calls, with the hook of fault injection around each. Every function returns >= 0 or -(1000
 * + errno).
 *
 * - An interrupted call is repeated here only if it cannot wait for long. Calls that may wait
 *   (open, allocate) return to Python, whose signal handlers run before the next attempt.
 * - Only regular files are opened (directories on request), never through a symbolic link, and no
 *   open waits for a peer. A log directory may come from an untrusted source. */
#include "system/system.h"
#include "testing/mutants.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static _Atomic int64_t failed_syncs;

/* Records a successful change, if a recording is active. */
#define RECORDED(kind, fd, path, second, number)                                                   \
    do {                                                                                           \
        if (__builtin_expect(rc >= 0 && el_is_recording(), 0))                                     \
            el_record((kind), (fd), (path), (second), (number), NULL, 0);                          \
    } while (0)

/* The last link of a directory may be followed: directories are only synced. The check follows the
 * open, on the opened file. */
static int open_regular(const char *path, int32_t flags, int32_t mode) {
    if (flags & O_DIRECTORY) {
        return open(path, flags | O_CLOEXEC | O_NONBLOCK);
    }
    int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, (mode_t)mode);
    struct stat found = {0};
    if (fd < 0) {
        return fd;
    }
    int number = fstat(fd, &found) < 0    ? errno
                 : S_ISREG(found.st_mode) ? 0
                 : S_ISDIR(found.st_mode) ? EISDIR
                                          : EINVAL;
    if (number == 0) {
        return fd;
    }
    close(fd);
    errno = number;
    return -1;
}

int32_t el_open(const char *path, int32_t flags, int32_t mode) {
    int hooked = el_before(EL_CALL_OPEN, -1, path, flags);
    if (hooked < 0) {
        return hooked;
    }
    int rc = open_regular(path, flags, mode);
    int number = errno;
    el_after(EL_CALL_OPEN);
    errno = number;
    if (flags & O_CREAT) {
        RECORDED(EL_CALL_OPEN, -1, path, NULL, flags);
    }
    return RESULT(rc);
}

int32_t el_close(int32_t fd) {
    if (fd < 0) {
        return 0;
    }
    int hooked = el_before(EL_CALL_CLOSE, fd, NULL, 0);
    int rc = close(fd); /* never repeated: Linux has freed the descriptor in any case */
    int number = errno;
    el_after(EL_CALL_CLOSE);
    if (hooked < 0) {
        return hooked;
    }
    return rc < 0 && number != EINTR ? EL_SYSTEM_ERROR(number) : 0;
}

int64_t el_pread(int32_t fd, uint8_t *out, int64_t size, int64_t position) {
    int64_t done = 0;
    while (done < size) {
        ssize_t rc;
        HOOKED(EL_CALL_PREAD, fd, NULL, size - done,
               pread(fd, out + done, (size_t)(size - done), position + done));
        if (rc < 0) {
            return EL_SYSTEM_ERROR(errno);
        }
        if (rc == 0) {
            break;
        }
        done += rc;
    }
    return done;
}

/* The leading pieces that contain `size` bytes; the last one may be shortened. */
static int shortened(const struct iovec *pieces, int count, int64_t size, struct iovec *out) {
    int used = 0;
    for (; used < count && size > 0; used++) {
        out[used] = pieces[used];
        if ((int64_t)out[used].iov_len > size) {
            out[used].iov_len = (size_t)size;
        }
        size -= (int64_t)out[used].iov_len;
    }
    return used;
}

static int64_t total(const struct iovec *pieces, int count) {
    int64_t size = 0;
    for (int at = 0; at < count; at++) {
        size += (int64_t)pieces[at].iov_len;
    }
    return size;
}

enum { EL_PIECES_MAX = 256 };

/* One pwritev with the hooks; writes half of the bytes if the hook demands it. */
static int64_t write_once(int fd, const struct iovec *pieces, int count, int64_t position) {
    struct iovec half[EL_PIECES_MAX];
    int64_t size = total(pieces, count);
    int hooked = el_before(EL_CALL_PWRITE, fd, NULL, size);
    if (hooked < 0) {
        return hooked;
    }
    if (hooked == EL_HALF) {
        count = shortened(pieces, count, size / 2, half);
        pieces = half;
    }
    ssize_t rc;
    do {
        rc = count ? pwritev(fd, pieces, count, position) : 0;
    } while (rc < 0 && errno == EINTR);
    int number = errno;
    if (rc > 0 && __builtin_expect(el_is_recording(), 0)) {
        el_record(EL_CALL_PWRITE, fd, NULL, NULL, position, pieces, rc);
    }
    el_after(EL_CALL_PWRITE);
    if (rc < 0) {
        return EL_SYSTEM_ERROR(number);
    }
    return hooked == EL_HALF && rc == 0 ? EL_SYSTEM_ERROR(ENOSPC) : rc;
}

int64_t el_write_all(int fd, const struct iovec *pieces, int count, int64_t position) {
    int64_t size = total(pieces, count);
    int64_t done = 0;
    struct iovec rest[EL_PIECES_MAX];
    if (count > EL_PIECES_MAX) {
        return EL_EINVALID;
    }
    while (done < size) {
        int64_t rc = write_once(fd, pieces, count, position + done);
        if (rc < 0) {
            return rc;
        }
        if (rc == 0) {
            /* a regular file that takes nothing, without an error */
            return EL_SYSTEM_ERROR(ENOSPC);
        }
        done += rc;
        if (el_is_mutant(EL_IGNORE_SHORT_WRITE)) {
            return size;
        }
        int from = 0;
        while (from < count && rc >= (int64_t)pieces[from].iov_len) {
            rc -= (int64_t)pieces[from++].iov_len;
        }
        for (int at = from; at < count; at++) {
            rest[at - from] = pieces[at];
        }
        count -= from;
        if (count) {
            rest[0].iov_base = (uint8_t *)rest[0].iov_base + rc;
            rest[0].iov_len -= (size_t)rc;
        }
        pieces = rest;
    }
    return size;
}

int64_t el_pwrite(int32_t fd, const uint8_t *data, int64_t size, int64_t position) {
    struct iovec piece = {.iov_base = (void *)(uintptr_t)data, .iov_len = (size_t)size};
    return el_write_all(fd, &piece, 1, position);
}

static int32_t sync_once(int32_t fd, int32_t data_only) {
    int rc;
    int kind = data_only ? EL_CALL_FDATASYNC : EL_CALL_FSYNC;
    if (el_is_mutant(EL_NO_FSYNC)) {
        return EL_OK;
    }
    HOOKED(kind, fd, NULL, 0, data_only ? fdatasync(fd) : fsync(fd));
    RECORDED(kind, fd, NULL, NULL, 0);
    return RESULT(rc);
}

int32_t el_sync(int32_t fd, int32_t data_only) {
    int32_t rc = sync_once(fd, data_only);
    if (rc < 0) {
        atomic_fetch_add_explicit(&failed_syncs, 1, memory_order_relaxed);
    }
    return rc;
}

int64_t el_failed_syncs(void) { return atomic_load_explicit(&failed_syncs, memory_order_relaxed); }

int32_t el_truncate(int32_t fd, int64_t size) {
    int rc;
    HOOKED(EL_CALL_FTRUNCATE, fd, NULL, size, ftruncate(fd, size));
    RECORDED(EL_CALL_FTRUNCATE, fd, NULL, NULL, size);
    return RESULT(rc);
}

int32_t el_rename(const char *from, const char *to) {
    int rc;
    HOOKED(EL_CALL_RENAME, -1, from, 0, rename(from, to));
    RECORDED(EL_CALL_RENAME, -1, from, to, 0);
    return RESULT(rc);
}

int32_t el_unlink(const char *path) {
    int rc;
    HOOKED(EL_CALL_UNLINK, -1, path, 0, unlink(path));
    RECORDED(EL_CALL_UNLINK, -1, path, NULL, 0);
    return RESULT(rc);
}

int32_t el_link(const char *from, const char *to) {
    int rc;
    HOOKED(EL_CALL_LINK, -1, to, 0, link(from, to));
    RECORDED(EL_CALL_LINK, -1, from, to, 0);
    return RESULT(rc);
}

int32_t el_mkdir(const char *path, int32_t mode) {
    int rc;
    HOOKED(EL_CALL_MKDIR, -1, path, 0, mkdir(path, (mode_t)mode));
    RECORDED(EL_CALL_MKDIR, -1, path, NULL, 0);
    return RESULT(rc);
}

int32_t el_rmdir(const char *path) {
    int rc;
    HOOKED(EL_CALL_RMDIR, -1, path, 0, rmdir(path));
    RECORDED(EL_CALL_RMDIR, -1, path, NULL, 0);
    return RESULT(rc);
}

int32_t el_allocate(int32_t fd, int64_t size) {
    int hooked = el_before(EL_CALL_FALLOCATE, fd, NULL, size);
    if (hooked < 0) {
        return hooked;
    }
    int rc = posix_fallocate(fd, 0, size);
    el_after(EL_CALL_FALLOCATE);
    if (rc == 0 && el_is_recording()) {
        el_record(EL_CALL_FALLOCATE, fd, NULL, NULL, size, NULL, 0);
    }
    return rc ? EL_SYSTEM_ERROR(rc) : EL_OK;
}
