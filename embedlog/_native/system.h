/* What the system files of the core share among themselves; nothing here is seen by Python. */
#ifndef EL_SYSTEM_H
#define EL_SYSTEM_H

#include "native.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/uio.h>

#define EL_SYSTEM_ERROR(number) (-(1000 + (number)))

/* Rules that a test may switch off to see itself fail; bit numbers, named in system.py. */
enum el_mutant {
    EL_NO_FSYNC = 0, EL_NO_DIRECTORY_FSYNC = 1, EL_PUBLISH_FIRST = 2, EL_IGNORE_SHORT_WRITE = 3, EL_NO_OWNER_WORD = 4,
    EL_NO_APPEND_LOCK = 5, EL_NO_IDENTITY = 6, EL_TORN_PUBLISH = 7, EL_NO_WAKE = 8,
    EL_NO_CRC_ON_READ = 9, EL_TRUST_COPY = 10, EL_FORGIVE_LAPSE = 11, EL_NO_NOTICE = 12
};
int el_is_mutant(int bit);

/* 0: go on; < 0: fail with it; EL_HALF: do half of it. `struck` calls follow the real one. */
enum { EL_HALF = 1 };
int el_before(int kind, int fd, const char *path, int64_t size);
void el_after(int kind);
int el_is_recording(void);
/* Record one change; `path` NULL: the name behind `fd`. `size` bytes of `pieces` are its data. */
void el_record(int kind, int fd, const char *path, const char *second, int64_t number, const struct iovec *pieces, int64_t size);

int64_t el_write_all(int fd, const struct iovec *pieces, int count, int64_t position);

/* A page as it lies in the file: host byte order, one writer at a time but for the atomics. */
typedef struct {
    el_tuple tuple;
    uint32_t check;                     /* CRC-32C of the tuple */
    uint32_t padding;
} el_slot;

typedef struct {
    uint64_t magic;
    uint32_t version;
    uint32_t bytes;                     /* of an el_slot: another layout is another number */
    el_identity identity;
    _Atomic int64_t words[EL_WORDS];
    _Alignas(64) _Atomic uint64_t sequence;   /* the slot of the published tuple is sequence & 1 */
    _Alignas(64) _Atomic uint32_t data_word;  /* futex: moves with each publication that somebody waits for */
    _Atomic uint32_t data_waiters;
    _Atomic uint32_t lock_word;               /* futex: moves with each release of the append lock; a directory's, with its topics */
    _Atomic uint32_t lock_waiters;
    _Atomic uint32_t notice_word;             /* futex: moves with what el_page_notify tells of */
    _Alignas(64) el_slot slots[2];
    _Alignas(64) _Atomic int64_t producers[EL_PRODUCER_SLOTS];  /* number of the last publication that touched a producer of this slot */
} el_page;

_Static_assert(sizeof(el_page) <= EL_PAGE_BYTES, "the page must hold its layout");
_Static_assert(sizeof(el_tuple) == 18 * 8 + 6 * 4, "no padding inside the checked tuple");

#define EL_PAGE_MAGIC UINT64_C(0x45474150474f4c45)      /* "ELOGPAGE" in little-endian memory */
#define EL_DIRECTORY_MAGIC UINT64_C(0x5249444c474f4c45) /* "ELOGLDIR" */

static inline el_page *page_of(const el_writer *writer) { return (el_page *)(uintptr_t)writer->page; }

/* Entries of an append under way, gathered for one system call a file. */
enum { EL_ENTRIES_MAX = 64 };
typedef struct {
    int count, time_count;
    uint32_t from, time_from;             /* numbers of the first gathered ones */
    uint8_t offsets[EL_ENTRIES_MAX * EL_INDEX_ENTRY_SIZE];
    uint8_t times[EL_ENTRIES_MAX * EL_TIME_ENTRY_SIZE];
    uint8_t digests[EL_ENTRIES_MAX * EL_DIGEST_RECORD_SIZE];
} el_entries;
void el_entries_start(el_entries *entries, const el_tuple *tuple);
/* An entry for the batch that begins at the tuple's end, if one is due; moves the tuple's counters on. */
void el_entries_gather(el_entries *entries, el_tuple *tuple, int64_t interval, int64_t last_offset);
int64_t el_entries_write(el_entries *entries, const el_writer *writer);
/* Behind a failed append: what is not published is not true, and the next append writes others in its place. */
int32_t el_entries_take_back(const el_entries *entries, const el_writer *writer, const el_tuple *before);

/* Around every look at a page and every change of one: of a private copy, its file's lock, and its content from there and back.
 * May be nested, the outer one exclusive if an inner one is. Negative if the file cannot be locked, read or written. */
int32_t el_page_enter(const uint8_t *page, int exclusive);
int32_t el_page_leave(const uint8_t *page, int changed);
int el_page_is_private(const uint8_t *page);
int32_t el_drop_copy(uint8_t *page);
int32_t el_close_copy(uint8_t *page);

void el_futex_wake(_Atomic uint32_t *word, int count);
int el_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns);
void el_announce(_Atomic uint32_t *word, _Atomic uint32_t *waiters);

#endif
