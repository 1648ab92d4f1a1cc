/* The system half of the core: system calls, clocks, locks on files. No preprocessor directive in
 * here: cffi and the C compiler read the same text.
 *
 * Every function returns >= 0, or EL_E... from codec.h, or -(1000 + errno). Threads: every function
 * may be called without the interpreter's lock. */

/* ---- system calls, all through one table ----------------------------------------------------- */

typedef struct {
    int64_t size;
    int64_t device;
    int64_t inode;
    int64_t modified_ns;
    int64_t links;
    int64_t mode;
    int64_t changed_ns; /* a rename counts */
} el_file_facts;

/* Opens a regular file (EINVAL, EISDIR, ELOOP for others), or a directory with O_DIRECTORY. The
 * descriptor is closed on exec. */
int32_t el_open(const char *path, int32_t flags, int32_t mode);
int32_t el_close(int32_t fd);
/* bytes read, less than size only at the end */
int64_t el_pread(int32_t fd, uint8_t *out, int64_t size, int64_t position);
/* size, or an error */
int64_t el_pwrite(int32_t fd, const uint8_t *data, int64_t size, int64_t position);
int32_t el_sync(int32_t fd, int32_t data_only);
/* fsync of `count` descriptors, at most EL_SYNCS_MAX, by several threads; results[i] is what
 * el_sync returns for fds[i]. */
enum { EL_SYNCS_MAX = 64 };
int32_t el_sync_all(const int32_t *fds, int32_t count, int32_t *results);
int64_t el_failed_syncs(void); /* of this process, counted before el_sync returns */
int32_t el_truncate(int32_t fd, int64_t size);
int32_t el_rename(const char *from, const char *to);
int32_t el_unlink(const char *path);
int32_t el_link(const char *from, const char *to);
int32_t el_mkdir(const char *path, int32_t mode);
int32_t el_rmdir(const char *path);
int32_t el_allocate(int32_t fd, int64_t size); /* posix_fallocate from 0 */
int32_t el_facts(int32_t fd, el_file_facts *out);
/* of the path itself: a link is not followed */
int32_t el_facts_of(const char *path, el_file_facts *out);
int64_t el_filesystem(const char *path); /* f_type of statfs */
/* 1 and an id unique in this boot; 0: the kernel has none */
int64_t el_mount(const char *path, uint64_t *id);
/* birth time of a file on the wall clock; 0: the file system has none */
int64_t el_created_ns(int32_t fd);
int64_t el_boot_ns(void);   /* CLOCK_BOOTTIME */
int64_t el_kernel_ms(void); /* CLOCK_REALTIME, comparable with times of files */
int64_t el_wall_ms(void);   /* the same, unless el_shift_wall or el_freeze_wall moved it */
void el_shift_wall(int64_t ms);
void el_freeze_wall(int64_t ms); /* stop it at this time; negative: let it run */

/* ---- locks and waiting ----------------------------------------------------------------------- */

/* Tries an OFD lock on the whole file: 0, or -(1000 + EAGAIN) if a conflicting lock exists. */
int32_t el_lock_try(int32_t fd, int32_t exclusive);
/* As el_lock_try, repeated until `deadline_ns` on the boot clock. Sleeps at most a millisecond at a
 * time on `word` (may be NULL). -(1000 + ETIMEDOUT) after the deadline. */
int32_t el_lock_until(int32_t fd, int32_t exclusive, uint32_t *word, int64_t deadline_ns);
int32_t el_unlock(int32_t fd);
/* 0 free, 1 locked shared by others, 2 locked exclusively by others; works on a read-only
 * descriptor. */
int32_t el_lock_probe(int32_t fd);
/* The same for one byte of a file, exclusively. One descriptor can hold many such locks and release
 * them one by one. */
int32_t el_byte_lock_try(int32_t fd, int64_t position);
int32_t el_byte_unlock(int32_t fd, int64_t position);
int32_t el_byte_lock_probe(int32_t fd, int64_t position);
