/* Locks and unlocks a partition for an append.
 *
 * - After every locking the paths must still lead to the lock file and the control page of this
 *   process (APPEND-1).
 * - The owner field is set after the locking and cleared before the unlocking; a process that finds
 *   it set repairs first (APPEND-2).
 * - A lock file with an unchanged change time has kept its name: a rename and a removal change it.
 *   A moved directory is found at the path of the control page, which every locking reads.
 * - The paths of a follower's files are compared once a millisecond, and after each decision on the
 *   partition. An append in between is the same as one before the removal of the files. A follower
 *   that is opened in their place joins the ISR with a decision, and takes a run only at its own
 *   log end.
 * - A thread that was left behind in a disk that hangs has the lock by the same descriptor. Until
 * it has left, the writer waits for it as for another process, and unlocks nothing. */
#include "log/control_page.h"
#include "testing/mutants.h"

/* a change time that is older differs from that of every later change */
enum { SETTLED_MS = 2000 };
enum { COMPARED_NS = 1000000 }; /* between comparisons of a follower's paths */

typedef struct { /* an open file that must be the one at its path */
    const char *path;
    int32_t fd;
    int64_t device, inode;
    int64_t *changed_ns;
} el_named;

static int same_file(const el_file_facts *one, int64_t device, int64_t inode) {
    return one->device == device && one->inode == inode;
}

/* Whether the path of an open file still leads to it: an unchanged change time is enough. */
static int is_current(const el_named *file) {
    el_file_facts found;
    if (*file->changed_ns && el_facts(file->fd, &found) == EL_OK && found.links &&
        found.changed_ns == *file->changed_ns && same_file(&found, file->device, file->inode)) {
        return 1;
    }
    if (el_facts_of(file->path, &found) < 0 || !same_file(&found, file->device, file->inode)) {
        return 0;
    }
    int settled = file->fd >= 0 && found.changed_ns / 1000000 < el_kernel_ms() - SETTLED_MS;
    *file->changed_ns = settled ? found.changed_ns : 0;
    return 1;
}

/* Whether the paths lead to the files of this process: 0, EL_MUST_REMAP, EL_LOST_DIRECTORY, or an
 * error. */
static int32_t check_identity(el_writer *writer) {
    el_file_facts named;
    if (el_is_mutant(EL_NO_IDENTITY)) {
        return EL_OK;
    }
    if (!is_current(&(el_named){writer->lock_path, writer->lock_fd, writer->lock_device,
                                writer->lock_inode, &writer->lock_changed_ns})) {
        return EL_MUST_REMAP;
    }
    if (el_facts_of(writer->page_path, &named) < 0 ||
        !same_file(&named, writer->page_device, writer->page_inode)) {
        return EL_MUST_REMAP;
    }
    const el_named directory = {writer->directory_lock_path, writer->directory_lock_fd,
                                writer->directory_lock_device, writer->directory_lock_inode,
                                &writer->directory_lock_changed_ns};
    if (directory.path && !is_current(&directory)) {
        return EL_LOST_DIRECTORY;
    }
    return page_of(writer)->magic == EL_PAGE_MAGIC ? EL_OK : EL_MUST_REMAP;
}

static int32_t check_state(const el_writer *writer) {
    const el_page *page = page_of(writer);
    if (atomic_load(&page->words[EL_WORD_FLAGS]) & EL_FLAG_DELETED) {
        return EL_IS_DELETED;
    }
    if (atomic_load(&page->words[EL_WORD_FLAGS]) & EL_FLAG_REPLACED) {
        return EL_MUST_REMAP;
    }
    if (atomic_load(&page->words[EL_WORD_OWNER]) ||
        atomic_load(&page->words[EL_WORD_ROLL_INTENT])) {
        return EL_MUST_REPAIR;
    }
    return EL_OK;
}

static void release(el_writer *writer) {
    el_page *page = page_of(writer);
    if (!el_is_mutant(EL_NO_APPEND_LOCK)) {
        el_unlock(writer->lock_fd);
    }
    el_announce(&page->lock_word, &page->lock_waiters);
}

/* Takes a lock that another process holds. The time of a wait that ended at its deadline belongs to
 * the next one. */
static int32_t wait_for_lock(el_writer *writer, int64_t deadline_ns) {
    el_page *page = page_of(writer);
    int64_t began_ns = el_boot_ns();
    atomic_fetch_add(&page->lock_waiters, 1);
    int32_t rc = el_lock_until(writer->lock_fd, 1, (uint32_t *)&page->lock_word, deadline_ns);
    atomic_fetch_sub(&page->lock_waiters, 1);
    int64_t waited_ns = el_boot_ns() - began_ns;
    writer->lock_waits += rc >= 0;
    writer->lock_waited_ns += waited_ns;
    if (waited_ns > writer->lock_waited_max_ns) {
        writer->lock_waited_max_ns = waited_ns;
    }
    return rc;
}

static int has_left(const el_writer *writer) {
    return !__atomic_load_n(&writer->is_left, __ATOMIC_SEQ_CST);
}

int32_t el_wait_for_left(el_writer *writer, int64_t deadline_ns) {
    while (EL_UNLIKELY(!has_left(writer))) {
        int64_t left_ns = deadline_ns - el_boot_ns();
        if (left_ns <= 0) {
            return EL_SYSTEM_ERROR(ETIMEDOUT);
        }
        el_futex_wait((_Atomic uint32_t *)&writer->is_left, 1, left_ns);
    }
    return EL_OK;
}

static int32_t begin(el_writer *writer, int64_t deadline_ns, int compared) {
    el_page *page = page_of(writer);
    if (el_wait_for_left(writer, deadline_ns) != EL_OK) {
        return EL_SYSTEM_ERROR(ETIMEDOUT);
    }
    if (!el_is_mutant(EL_NO_APPEND_LOCK)) {
        int32_t rc = el_lock_try(writer->lock_fd, 1);
        if (rc == EL_SYSTEM_ERROR(EAGAIN)) {
            rc = wait_for_lock(writer, deadline_ns);
        }
        if (rc < 0) {
            return rc;
        }
    }
    int32_t rc = el_page_enter(writer->page, 1);
    if (rc == EL_OK && !compared) {
        rc = check_identity(writer);
    }
    if (rc == EL_OK) {
        rc = check_state(writer);
    }
    if (rc == EL_OK && !el_is_mutant(EL_NO_OWNER_WORD)) {
        atomic_store(&page->words[EL_WORD_OWNER_SINCE], el_boot_ns());
        atomic_store(&page->words[EL_WORD_OWNER], writer->process);
    }
    int32_t put = el_page_leave(writer->page, rc == EL_OK);
    if (rc != EL_OK || put < 0) {
        release(writer);
        return rc != EL_OK ? rc : put;
    }
    el_point("locked");
    return EL_OK;
}

int32_t el_append_begin(el_writer *writer, int64_t deadline_ns) {
    return begin(writer, deadline_ns, 0);
}

int32_t el_follow_begin(el_writer *follower, int64_t now_ns, int32_t partition_epoch) {
    int compared =
        follower->compared_epoch == partition_epoch && now_ns - follower->compared_ns < COMPARED_NS;
    int32_t rc = begin(follower, 0, compared);
    if (rc == EL_OK && !compared) {
        follower->compared_ns = now_ns;
        follower->compared_epoch = partition_epoch;
    }
    return rc;
}

int32_t el_append_end(el_writer *writer, int32_t broken) {
    if (EL_UNLIKELY(!has_left(writer))) {
        return EL_OK; /* the lock is that of the thread */
    }
    el_point("before-unlock");
    if (!broken) {
        el_page_set(writer->page, EL_WORD_OWNER, 0);
    }
    release(writer);
    return EL_OK;
}
