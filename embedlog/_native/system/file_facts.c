/* Facts of files and mounts. Every function returns >= 0 or -(1000 + errno).
 *
 * - Fields of struct statx that headers of an older system lack are read by their word in the
 *   kernel's structure. */
#include "system/system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Since Linux 6.8: an id that is unique among mounts. Headers may be older: word 18 of struct
 * statx, its mask in word 0. */
enum { EL_STATX_MNT_ID_UNIQUE = 0x4000, EL_STATX_MNT_ID_WORD = 18 };

/* Since Linux 4.11: seconds in word 10, nanoseconds in the lower half of word 11. */
enum {
    EL_STATX_BTIME = 0x800,
    EL_STATX_BTIME_WORD = 10,
    EL_AT_EMPTY_PATH = 0x1000,
    EL_STATX_WORDS = 32
};
static const uint64_t EL_SECONDS_MAX = 1ull << 33;

static void fill(const struct stat *from, el_file_facts *out) {
    out->size = from->st_size;
    out->device = (int64_t)from->st_dev;
    out->inode = (int64_t)from->st_ino;
    out->modified_ns = (int64_t)from->st_mtim.tv_sec * 1000000000 + from->st_mtim.tv_nsec;
    out->links = (int64_t)from->st_nlink;
    out->mode = (int64_t)from->st_mode;
    out->changed_ns = (int64_t)from->st_ctim.tv_sec * 1000000000 + from->st_ctim.tv_nsec;
}

int32_t el_facts(int32_t fd, el_file_facts *out) {
    struct stat found;
    int rc;
    HOOKED(EL_CALL_STAT, fd, NULL, 0, fstat(fd, &found));
    if (rc == 0) {
        fill(&found, out);
    }
    return RESULT(rc);
}

int32_t el_facts_of(const char *path, el_file_facts *out) {
    struct stat found;
    int rc;
    HOOKED(EL_CALL_STAT, -1, path, 0, lstat(path, &found));
    if (rc == 0) {
        fill(&found, out);
    }
    return RESULT(rc);
}

int64_t el_filesystem(const char *path) {
    struct statfs found;
    return statfs(path, &found) < 0 ? EL_SYSTEM_ERROR(errno) : (int64_t)(uint32_t)found.f_type;
}

int64_t el_mount(const char *path, uint64_t *id) {
    /* struct statx is 256 bytes; older headers lack the field */
    uint64_t found[EL_STATX_WORDS] = {0};
    _Static_assert(sizeof found == 256, "the kernel writes a struct statx");
    if (syscall(SYS_statx, AT_FDCWD, path, 0, EL_STATX_MNT_ID_UNIQUE, found) < 0) {
        return errno == ENOSYS ? 0 : EL_SYSTEM_ERROR(errno);
    }
    *id = found[EL_STATX_MNT_ID_WORD];
    return ((uint32_t)found[0] & EL_STATX_MNT_ID_UNIQUE) != 0;
}

int64_t el_created_ns(int32_t fd) {
    uint64_t found[EL_STATX_WORDS] = {0};
    int rc;
    HOOKED(EL_CALL_STAT, fd, NULL, 0,
           (int)syscall(SYS_statx, fd, "", EL_AT_EMPTY_PATH, EL_STATX_BTIME, found));
    if (rc < 0) {
        /* EPERM: a filter of system calls */
        return errno == ENOSYS || errno == EPERM ? 0 : EL_SYSTEM_ERROR(errno);
    }
    uint64_t seconds = found[EL_STATX_BTIME_WORD];
    if (((uint32_t)found[0] & EL_STATX_BTIME) == 0 || seconds >= EL_SECONDS_MAX) {
        return 0;
    }
    return (int64_t)seconds * 1000000000 + (uint32_t)found[EL_STATX_BTIME_WORD + 1];
}
