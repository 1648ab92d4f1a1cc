/* Producer state in an append: producer slots of the control page, start and end of transactions.
 *
 * - A slot changes with every publication that contains a batch of one of its producers, and with
 *   every repair. While it is unchanged, the cached state of its producer is current.
 * - A marker's entry is in the transaction index before the marker is published. */
#include "log/append.h"
#include "testing/mutants.h"

static unsigned slot_of(int64_t producer_id) {
    return (unsigned)(((uint64_t)producer_id * UINT64_C(0x9E3779B97F4A7C15)) >> 57);
}

_Static_assert(EL_PRODUCER_SLOTS == 128, "seven bits of a hash select the slot");

void el_note_producer(el_run *run, const uint8_t *head) {
    int64_t producer = (int64_t)load_be64(head + PRODUCER_ID_AT);
    if (producer < 0) {
        return;
    }
    unsigned slot = slot_of(producer);
    unsigned bits = head[ATTRIBUTES_AT + 1];
    run->touched[slot >> 6] |= UINT64_C(1) << (slot & 63);
    run->produced = 1;
    run->next_sequence = el_sequence_after((int32_t)load_be32(head + BASE_SEQUENCE_AT),
                                           (int32_t)load_be32(head + LAST_DELTA_AT));
    if (!(bits & TRANSACTIONAL_BATCH) || (bits & CONTROL_BATCH)) {
        return;
    }
    el_note_transaction(&run->tuple, &run->replica, run->tuple.log_end);
}

int64_t el_touch_producers(el_page *page, const el_run *run) {
    int64_t next = (int64_t)(atomic_load(&page->sequence) + 1);
    if (!run->produced) {
        return next;
    }
    for (int slot = 0; slot < EL_PRODUCER_SLOTS; slot++) {
        if (run->touched[slot >> 6] >> (slot & 63) & 1) {
            atomic_store(&page->producers[slot], next);
        }
    }
    atomic_store(&page->words[EL_WORD_PRODUCED], run->tuple.log_end);
    return next;
}

int64_t el_write_ending(el_run *run, const el_ending *ending) {
    if (ending->entry) {
        int64_t rc = el_pwrite(ending->fd, ending->entry, EL_TXN_ENTRY_BYTES,
                               (int64_t)run->tuple.transaction_entries * EL_TXN_ENTRY_BYTES);
        if (rc < 0) {
            return rc;
        }
        run->tuple.transaction_entries++;
        run->tuple.transaction_digest =
            el_xxh3_64(ending->entry, EL_TXN_ENTRY_BYTES, run->tuple.transaction_digest);
    }
    if (el_is_mutant(EL_STABLE_AT_MARKER)) {
        run->tuple.first_unstable = ending->first_unstable;
    } else {
        el_note_marker(&run->replica, run->tuple.log_end, ending->first_unstable);
    }
    return EL_OK;
}

int el_must_catch_up(const el_writer *writer, const uint8_t *data, int64_t size,
                     const el_known *known) {
    el_page_enter(writer->page, 0);
    int64_t touched = atomic_load(&page_of(writer)->producers[slot_of(known->producer_id)]);
    el_page_leave(writer->page, 0);
    if (size < EL_HEADER_SIZE || touched != known->seen) {
        return 1;
    }
    int transactional = data[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BATCH;
    return (int64_t)load_be64(data + PRODUCER_ID_AT) != known->producer_id ||
           (int16_t)load_be16(data + PRODUCER_EPOCH_AT) != known->epoch ||
           (int32_t)load_be32(data + BASE_SEQUENCE_AT) != known->next_sequence ||
           (transactional ? !known->open && !known->may_open : known->open);
}

void el_known_advance(el_known *known, const uint8_t *data, const el_appended *out) {
    known->seen = out->seen;
    known->next_sequence = out->next_sequence;
    known->open = (data[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BATCH) != 0;
}
