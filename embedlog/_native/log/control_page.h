/* The layout of a control page, and access to pages of both kinds: mapped pages and private
 * copies. docs/layout.md has a table of the words of the pages of partitions and directories. */
#ifndef EL_CONTROL_PAGE_H
#define EL_CONTROL_PAGE_H

#include "system/system.h"

/* The control page in its file: host byte order, one writer at a time except for the atomics. */
typedef struct {
    el_tuple tuple;
    el_replica replica;
    uint32_t check; /* CRC-32C of both */
    uint32_t padding;
} el_slot;

typedef struct {
    uint64_t magic;
    uint32_t version;
    uint32_t bytes; /* size of an el_slot: differs for every layout */
    el_identity identity;
    _Atomic int64_t words[EL_WORDS];
    _Alignas(64) _Atomic uint64_t sequence; /* the slot of the published tuple is sequence & 1 */
    /* futex: changes with each publication that has waiters */
    _Alignas(64) _Atomic uint32_t data_word;
    _Atomic uint32_t data_waiters;
    /* futex: changes with each release of the append lock; in a directory's page, with its
     * topics */
    _Atomic uint32_t lock_word;
    _Atomic uint32_t lock_waiters;
    _Atomic uint32_t notice_word; /* futex: changes with el_page_notify */
    _Alignas(64) el_slot slots[2];
    /* number of the last publication with a producer of this slot */
    _Alignas(64) _Atomic int64_t producers[EL_PRODUCER_SLOTS];
} el_page;

_Static_assert(sizeof(el_page) <= EL_PAGE_BYTES, "the layout must fit into the page");
_Static_assert(sizeof(el_tuple) == 18 * 8 + 6 * 4 && sizeof(el_replica) == 7 * 8 + 4 * 4,
               "no padding inside the checked fields");
_Static_assert(offsetof(el_slot, check) == sizeof(el_tuple) + sizeof(el_replica),
               "the checked fields are contiguous");

#define EL_PAGE_MAGIC UINT64_C(0x45474150474f4c45)      /* "ELOGPAGE" in little-endian memory */
#define EL_DIRECTORY_MAGIC UINT64_C(0x5249444c474f4c45) /* "ELOGLDIR" */

static inline el_page *as_page(const uint8_t *page) { return (el_page *)(uintptr_t)page; }
static inline el_page *page_of(const el_writer *writer) {
    return (el_page *)(uintptr_t)writer->page;
}

/* Brackets every read and every change of a page. For a private copy they lock its file, read the
 * content and write it back. May be nested; the outer call must be exclusive if an inner one is.
 * Negative: the file could not be locked, read or written. */
int32_t el_page_enter(const uint8_t *page, int exclusive);
int32_t el_page_leave(const uint8_t *page, int changed);
int el_page_is_private(const uint8_t *page);
int32_t el_copy_free(uint8_t *page);
int32_t el_copy_close(uint8_t *page);

#endif
