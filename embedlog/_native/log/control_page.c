/* The control page: two slots for the published tuple, separate fields, futex words.
 *
 * - The tuple changes by one store of `sequence`; slot sequence & 1 is the published one.
 * - A writer fills the other slot first, so the published slot is complete even if the writer is
 *   killed.
 * - A reader copies a slot and then checks `sequence` and the checksum. A tuple with impossible
 *   numbers is rejected, so that sums of its numbers never overflow, whichever process wrote the
 *   page.
 * - Only the holder of the append lock publishes.
 * - A publication of the tuple alone keeps the replica state; in a set it never raises the high
 *   watermark (REPLICA-10). */
#include "codec/batch.h"
#include "log/control_page.h"
#include "testing/mutants.h"

#include <string.h>

static uint32_t check_of(const el_slot *slot) {
    return el_crc32c(0, (const uint8_t *)slot, offsetof(el_slot, check));
}

static int same_identity(const el_identity *one, const el_identity *other) {
    return memcmp(one->incarnation, other->incarnation, 16) == 0 &&
           memcmp(one->topic_id, other->topic_id, 16) == 0 && one->device == other->device &&
           one->inode == other->inode && one->partition == other->partition;
}

static int32_t invalidate_producers(uint8_t *raw) {
    el_page *page = as_page(raw);
    /* the number of the next publication */
    int64_t next = (int64_t)(atomic_load(&page->sequence) + 1);
    for (int slot = 0; slot < EL_PRODUCER_SLOTS; slot++) {
        atomic_store(&page->producers[slot], next);
    }
    return EL_OK;
}

static int32_t notify(uint8_t *raw) {
    _Atomic uint32_t *word = &as_page(raw)->notice_word;
    atomic_fetch_add(word, 1);
    /* waiters are not counted, so read-only mappings are woken too */
    el_futex_wake(word, INT32_MAX);
    return EL_OK;
}

/* Whether the memory shows a page of this place, of any incarnation. */
static int is_in_place(const el_page *page, uint64_t magic, const el_identity *identity) {
    el_identity own = page->identity;
    memcpy(own.incarnation, identity->incarnation, sizeof own.incarnation);
    return page->magic == magic && page->version == EL_PAGE_VERSION &&
           page->bytes == sizeof(el_slot) && same_identity(&own, identity);
}

/* The identity is stored after everything else of a page: from then on it counts in a new
 * incarnation. */
static void identify(el_page *page, uint64_t magic, const el_identity *identity) {
    atomic_thread_fence(memory_order_seq_cst);
    page->version = EL_PAGE_VERSION;
    page->bytes = sizeof(el_slot);
    page->identity = *identity;
    page->identity.version = EL_PAGE_VERSION;
    atomic_thread_fence(memory_order_seq_cst);
    page->magic = magic;
}

static int32_t init(uint8_t *raw, const el_identity *identity, const el_tuple *tuple,
                    int64_t durable, int64_t cache, int64_t flags) {
    el_page *page = as_page(raw);
    if (!(flags & EL_FLAG_KEPT) || !is_in_place(page, EL_PAGE_MAGIC, identity)) {
        /* else the page of before shows that the log is kept, until the new one does */
        page->magic = 0;
    }
    atomic_thread_fence(memory_order_seq_cst);
    /* before the role of the earlier tuple is lost */
    atomic_store(&page->words[EL_WORD_FLAGS], flags);
    atomic_store(&page->words[EL_WORD_CACHE], cache);
    invalidate_producers(raw);
    el_point("page-flags");
    uint64_t next = atomic_load(&page->sequence) + 1;
    el_slot *slot = &page->slots[next & 1];
    slot->tuple = *tuple;
    slot->replica = (el_replica){
        .stable_at = -1, .stable_next = -1, .later_at = -1, .later_next = -1, .leader = -1};
    slot->check = check_of(slot);
    atomic_store(&page->sequence, next);
    el_point("page-tuple");
    for (int word = 0; word < EL_WORDS;
         word++) { /* after the tuple: the intent of a cut says what the earlier one shows */
        if (word != EL_WORD_FLAGS && word != EL_WORD_CACHE) {
            atomic_store(&page->words[word], 0);
        }
    }
    atomic_store(&page->words[EL_WORD_DURABLE], durable);
    atomic_store(&page->words[EL_WORD_PRODUCED], tuple->log_end);
    el_point("page-words");
    identify(page, EL_PAGE_MAGIC, identity);
    atomic_fetch_add(&page->data_word, 1);
    el_futex_wake(&page->data_word, INT32_MAX);
    notify(raw); /* earlier notices may have been lost with the page */
    return EL_OK;
}

static int32_t init_directory(uint8_t *raw, const el_identity *identity) {
    el_page *page = as_page(raw);
    if (!is_in_place(page, EL_DIRECTORY_MAGIC, identity)) {
        page->magic = 0;
    }
    identify(page, EL_DIRECTORY_MAGIC, identity);
    return EL_OK;
}

static int32_t check(const uint8_t *raw, const el_identity *expected) {
    const el_page *page = as_page(raw);
    if (page->magic != EL_PAGE_MAGIC && page->magic != EL_DIRECTORY_MAGIC) {
        return page->magic == 0 ? EL_PAGE_LOST : EL_PAGE_DAMAGED;
    }
    if (page->version !=
        (uint32_t)page->identity.version) { /* stored twice: a flipped bit is not another version */
        return EL_PAGE_DAMAGED;
    }
    if (page->version > EL_PAGE_VERSION) {
        return EL_PAGE_NEWER;
    }
    if (page->version != EL_PAGE_VERSION) {
        return memcmp(page->identity.incarnation, expected->incarnation, 16) == 0 ? EL_PAGE_OLDER
                                                                                  : EL_PAGE_OTHER;
    }
    if (page->bytes != sizeof(el_slot)) { /* another layout has another version */
        return EL_PAGE_DAMAGED;
    }
    return same_identity(&page->identity, expected) ? EL_PAGE_VALID : EL_PAGE_OTHER;
}

static int32_t alive(const uint8_t *raw) { return as_page(raw)->magic == EL_PAGE_MAGIC; }

static int32_t copy_identity(const uint8_t *raw, el_identity *out) {
    const el_page *page = as_page(raw);
    *out = page->identity;
    if (page->version != (uint32_t)page->identity.version) {
        return EL_ECORRUPT;
    }
    return page->magic == EL_PAGE_MAGIC || page->magic == EL_DIRECTORY_MAGIC ? EL_OK : EL_ECORRUPT;
}

enum { EL_READ_TRIES = 1000 };

static int within(int64_t number, int64_t least, int64_t most) {
    return number >= least && number <= most;
}

/* Bounds of the numbers that appends and readers add and subtract. */
static int possible(const el_tuple *tuple) {
    return within(tuple->segment_base, 0, LOG_OFFSET_MAX) &&
           within(tuple->segment_size, 0, INT32_MAX) &&
           within(tuple->log_end, tuple->segment_base, tuple->segment_base + INT32_MAX + 1) &&
           tuple->max_timestamp_offset >= 0 && tuple->max_timestamp >= -1 &&
           tuple->created_ms >= 0 && tuple->roll_jitter_ms >= 0 &&
           within(tuple->bytes_since_entry, 0, INT64_MAX - INT32_MAX);
}

static int possible_replica(const el_slot *slot) {
    const el_replica *replica = &slot->replica;
    return within(replica->role, EL_ROLE_NONE, EL_ROLE_FOLLOWER) &&
           within(replica->epoch_start, 0, LOG_OFFSET_MAX) &&
           within(replica->stable_at, -1, LOG_OFFSET_MAX) &&
           within(replica->stable_next, -1, LOG_OFFSET_MAX) &&
           within(replica->later_at, -1, LOG_OFFSET_MAX) &&
           within(replica->later_next, -1, LOG_OFFSET_MAX);
}

static int32_t read_slot(const uint8_t *raw, el_slot *out) {
    el_page *page = as_page(raw);
    for (int tries = 0; tries < EL_READ_TRIES; tries++) {
        uint64_t sequence = atomic_load_explicit(&page->sequence, memory_order_acquire);
        memcpy(out, (const void *)&page->slots[sequence & 1], sizeof *out);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&page->sequence, memory_order_relaxed) != sequence) {
            continue;
        }
        if (check_of(out) == out->check) {
            return possible(&out->tuple) && possible_replica(out) ? EL_OK : EL_ECORRUPT;
        }
    }
    return EL_ECORRUPT;
}

/* Without `replica` its present state is kept. */
static int32_t publish(uint8_t *raw, const el_tuple *tuple, const el_replica *replica,
                       uint8_t *directory) {
    el_page *page = as_page(raw);
    uint64_t next = atomic_load_explicit(&page->sequence, memory_order_relaxed) + 1;
    const el_slot *present = &page->slots[(next - 1) & 1];
    if (el_is_mutant(EL_TORN_PUBLISH)) { /* changes the size alone, in place */
        el_slot *now = &page->slots[(next - 1) & 1];
        now->tuple.segment_base = tuple->segment_base;
        now->tuple.segment_size = tuple->segment_size;
        now->check = check_of(now);
        el_point("torn-publish");
    }
    /* the slot changes after the previous store of `sequence`, never before */
    atomic_thread_fence(memory_order_release);
    el_slot *slot = &page->slots[next & 1];
    slot->tuple = *tuple;
    slot->replica = replica ? *replica : present->replica;
    if (!replica && present->replica.role != EL_ROLE_NONE &&
        tuple->high_watermark > present->tuple.high_watermark) {
        slot->tuple.high_watermark = present->tuple.high_watermark;
    }
    slot->check = check_of(slot);
    el_point("before-publish");
    atomic_store_explicit(&page->sequence, next, memory_order_release);
    el_point("after-publish");
    el_announce(&page->data_word, &page->data_waiters);
    if (directory) {
        el_announce(&as_page(directory)->data_word, &as_page(directory)->data_waiters);
    }
    return EL_OK;
}

/* ---- complete reads and changes, for both kinds of page -------------------------------------- */

static int32_t end_change(uint8_t *raw, int32_t rc) {
    int32_t put = el_page_leave(raw, 1);
    return rc < 0 ? rc : put;
}

/* A read ignores the results of el_page_enter and el_page_leave: a page that cannot be locked or
 * read is zeros, and zeros are no page. */
static int64_t end_read(const uint8_t *raw, int64_t answer) {
    el_page_leave(raw, 0);
    return answer;
}

int32_t el_page_invalidate_producers(uint8_t *raw) {
    el_page_enter(raw, 1);
    return end_change(raw, invalidate_producers(raw));
}

int32_t el_page_init(uint8_t *raw, const el_identity *identity, const el_tuple *tuple,
                     int64_t durable, int64_t cache, int64_t flags) {
    el_page_enter(raw, 1);
    return end_change(raw, init(raw, identity, tuple, durable, cache, flags));
}

int32_t el_directory_init(uint8_t *raw, const el_identity *identity) {
    el_page_enter(raw, 1);
    return end_change(raw, init_directory(raw, identity));
}

int32_t el_page_check(const uint8_t *raw, const el_identity *expected) {
    el_page_enter(raw, 0);
    return (int32_t)end_read(raw, check(raw, expected));
}

int32_t el_page_alive(const uint8_t *raw) {
    el_page_enter(raw, 0);
    return (int32_t)end_read(raw, alive(raw));
}

int32_t el_page_identity(const uint8_t *raw, el_identity *out) {
    el_page_enter(raw, 0);
    return (int32_t)end_read(raw, copy_identity(raw, out));
}

int32_t el_page_read_replica(const uint8_t *raw, el_tuple *tuple, el_replica *replica) {
    el_slot slot;
    el_page_enter(raw, 0);
    int32_t rc = read_slot(raw, &slot);
    el_page_leave(raw, 0);
    *tuple = slot.tuple;
    *replica = slot.replica;
    return rc;
}

int32_t el_page_read(const uint8_t *raw, el_tuple *out) {
    el_replica unused;
    return el_page_read_replica(raw, out, &unused);
}

int64_t el_page_sequence(const uint8_t *raw) {
    el_page_enter(raw, 0);
    return end_read(raw, (int64_t)atomic_load(&as_page(raw)->sequence));
}

int64_t el_first_published(const el_look *looks, int64_t count) {
    for (int64_t at = 0; at < count; at++) {
        if (el_page_sequence(looks[at].page) != looks[at].sequence) {
            return at;
        }
    }
    return count;
}

int32_t el_page_notify(uint8_t *raw) {
    int32_t rc = el_page_enter(raw, 1);
    if (rc == EL_OK && !el_is_mutant(EL_NO_NOTICE)) {
        notify(raw);
    }
    return end_change(raw, rc);
}

int64_t el_page_notice(const uint8_t *raw) {
    el_page_enter(raw, 0);
    return end_read(raw, atomic_load(&as_page(raw)->notice_word));
}

int32_t el_page_publish_replica(uint8_t *raw, const el_tuple *tuple, const el_replica *replica,
                                uint8_t *directory) {
    el_page_enter(raw, 1);
    return end_change(raw, publish(raw, tuple, replica, directory));
}

int32_t el_page_publish(uint8_t *raw, const el_tuple *tuple, uint8_t *directory) {
    return el_page_publish_replica(raw, tuple, NULL, directory);
}

int64_t el_page_word(const uint8_t *page, int32_t word) {
    if (word < 0 || word >= EL_WORDS) {
        return EL_EINVALID;
    }
    el_page_enter(page, 0);
    return end_read(page, atomic_load(&as_page(page)->words[word]));
}

int32_t el_page_set(uint8_t *page, int32_t word, int64_t value) {
    if (word < 0 || word >= EL_WORDS) {
        return EL_EINVALID;
    }
    el_page_enter(page, 1);
    atomic_store(&as_page(page)->words[word], value);
    return el_page_leave(page, 1);
}

int32_t el_page_add(uint8_t *page, int32_t word, int64_t value) {
    if (word < 0 || word >= EL_WORDS) {
        return EL_EINVALID;
    }
    el_page_enter(page, 1);
    atomic_fetch_add(&as_page(page)->words[word], value);
    return el_page_leave(page, 1);
}

uint32_t *el_page_lock_word(uint8_t *page) { return (uint32_t *)&as_page(page)->lock_word; }

/* The low half of a field, usable as a futex: every supported machine is little-endian. */
static _Atomic uint32_t *low_half(const uint8_t *page, int32_t word) {
    return (_Atomic uint32_t *)(uintptr_t)&as_page(page)->words[word];
}

int32_t el_page_sleep(const uint8_t *page, int32_t word, int64_t seen, int64_t deadline_ns) {
    int64_t left = deadline_ns - el_boot_ns();
    if (word < 0 || word >= EL_WORDS) {
        return EL_EINVALID;
    }
    if (left <= 0) {
        return EL_SYSTEM_ERROR(ETIMEDOUT);
    }
    if (el_page_is_private(page)) { /* a private copy has no futex that others could wake */
        el_sleep(left);
    } else {
        el_futex_wait(low_half(page, word), (uint32_t)seen,
                      left < EL_SLEEP_NS ? left : EL_SLEEP_NS);
    }
    return EL_OK;
}

int32_t el_page_wake(const uint8_t *page, int32_t word) {
    if (word < 0 || word >= EL_WORDS) {
        return EL_EINVALID;
    }
    if (!el_page_is_private(page)) {
        el_futex_wake(low_half(page, word), INT32_MAX);
    }
    return EL_OK;
}
