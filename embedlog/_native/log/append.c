/* The append: the critical section between the locking and the unlocking of a partition (protocol.md, APPEND-1).
 *
 * CAPPEND-1  the order is lock, owner field, catch up, check, write, index, publish, clear the owner field, unlock
 * CAPPEND-2  positions come from the control page, read after locking, never from memory of this process
 * CAPPEND-3  only written bytes are published; a failed write leaves page and file unchanged
 * CAPPEND-4  a set owner field requires a repair, which is not done here
 * CAPPEND-5  the caller's bytes are never changed: heads are stamped in a buffer of this file and written by one gathering call */
#include "log/append.h"
#include "testing/mutants.h"

#include <limits.h>
#include <string.h>

/* ---- one batch ---------------------------------------------------------------------------------- */

/* Whether the segment must be rolled before a batch of `size` bytes (format.md 2.8). */
static int must_roll(const el_writer *writer, const el_run *run, const uint8_t *batch, int64_t size) {
    const el_tuple *tuple = &run->tuple;
    int64_t last = tuple->log_end + (int32_t)load_be32(batch + LAST_DELTA_AT);
    if (tuple->segment_size == 0)
        return last - tuple->segment_base > INT32_MAX;
    int64_t newest = writer->append_time ? run->now_ms : (int64_t)load_be64(batch + MAX_TIMESTAMP_AT);
    int64_t waited = tuple->first_timestamp >= 0 && newest >= 0 ? newest - tuple->first_timestamp : run->now_ms - tuple->created_ms;
    return tuple->segment_size > writer->segment_bytes - size || waited > writer->segment_ms - tuple->roll_jitter_ms ||
           (int64_t)tuple->index_entries >= writer->index_bytes / EL_INDEX_ENTRY_SIZE ||
           (int64_t)tuple->time_entries >= writer->index_bytes / EL_TIME_ENTRY_SIZE - 1 || last - tuple->segment_base > INT32_MAX;
}

/* Base offset and epoch are outside the CRC. The append time is inside, but the CRC of a changed head follows from the old CRC without
 * reading the body. */
static int stamp(const el_writer *writer, el_run *run, const uint8_t *batch, int64_t size, uint8_t *head) {
    int bytes = STAMPED_BYTES;
    memcpy(head, batch, EL_HEADER_SIZE);
    store_be64(head, (uint64_t)run->tuple.log_end);
    store_be32(head + EPOCH_AT, (uint32_t)run->tuple.epoch);
    if (writer->append_time) {
        uint64_t body = (uint64_t)size - EL_HEADER_SIZE;
        uint32_t tail = el_crc32c_combine(el_crc32c(0, head + ATTRIBUTES_AT, EL_HEADER_SIZE - ATTRIBUTES_AT), 0, body) ^ load_be32(head + CRC_AT);
        head[ATTRIBUTES_AT + 1] |= LOG_APPEND_TIME;
        store_be64(head + MAX_TIMESTAMP_AT, (uint64_t)run->now_ms);
        uint32_t front = el_crc32c(0, head + ATTRIBUTES_AT, EL_HEADER_SIZE - ATTRIBUTES_AT);
        store_be32(head + CRC_AT, el_crc32c_combine(front, 0, body) ^ tail);
        bytes = EL_HEADER_SIZE;
    }
    return bytes;
}

/* The smallest timestamp of the batch; -1: unknown. A header proves it only if all records have the same timestamp. */
static int64_t min_timestamp_of(const el_writer *writer, el_run *run, const uint8_t *head) {
    const el_batch *row = run->row < run->row_end ? run->row++ : NULL;
    if (writer->append_time || load_be32(head + RECORDS_AT) == 1)
        return (int64_t)load_be64(head + MAX_TIMESTAMP_AT);
    return row ? row->min_timestamp : -1;
}

/* Bounds that allow a reader with a time limit to skip segments, or the end of one. */
static void note_min_timestamp(el_tuple *tuple, int64_t oldest) {
    if (oldest < 0) {
        tuple->min_timestamp = -1;
        return;
    }
    if (oldest < tuple->min_timestamp)
        tuple->min_timestamp = oldest;
    if (tuple->max_timestamp - oldest > tuple->lateness_ms)
        tuple->lateness_ms = tuple->max_timestamp - oldest;
}

static void gather(const el_writer *writer, el_run *run, const uint8_t *batch, int64_t size) {
    el_tuple *tuple = &run->tuple;
    uint8_t *head = run->heads[run->pieces];
    int stamped = stamp(writer, run, batch, size, head);
    run->gathered[2 * run->pieces] = (struct iovec){.iov_base = head, .iov_len = (size_t)stamped};
    run->gathered[2 * run->pieces + 1] = (struct iovec){.iov_base = (void *)(uintptr_t)(batch + stamped), .iov_len = (size_t)(size - stamped)};
    run->pieces++;
    int64_t last_offset = tuple->log_end + (int32_t)load_be32(head + LAST_DELTA_AT);
    int64_t newest = (int64_t)load_be64(head + MAX_TIMESTAMP_AT);
    if (tuple->segment_size == 0)
        tuple->first_timestamp = newest;
    note_min_timestamp(tuple, min_timestamp_of(writer, run, head));
    if (newest > tuple->max_timestamp) {
        tuple->max_timestamp = newest;
        tuple->max_timestamp_offset = last_offset;
    }
    el_note_producer(run, head);
    el_entries_gather(&run->entries, tuple, writer->index_interval, last_offset);
    tuple->bytes_since_entry += size;
    tuple->digest = el_chain_digest(head, tuple->digest);
    tuple->segment_size += size;
    tuple->log_end = last_offset + 1;
}

/* ---- writing ------------------------------------------------------------------------------------ */

static int64_t write_gathered(const el_writer *writer, el_run *run) {
    if (run->pieces == 0)
        return EL_OK;
    if (el_is_mutant(EL_PUBLISH_FIRST)) {               /* violates CAPPEND-3 */
        el_tuple early = run->tuple;
        early.high_watermark = early.log_end;
        el_page_publish(writer->page, &early, writer->directory);
    }
    int64_t rc = el_write_all(writer->log_fd, run->gathered, 2 * run->pieces, run->piece_position);
    if (rc < 0)
        return rc;
    run->piece_position = run->tuple.segment_size;
    run->pieces = 0;
    return el_entries_write(&run->entries, writer);
}

/* Takes whole batches from the front of the run until one does not fit. Returns the taken bytes, or an error. */
static int64_t take_batches(const el_writer *writer, el_run *run, const uint8_t *data, int64_t size) {
    int64_t taken = 0;
    while (taken < size) {
        if (size - taken < EL_HEADER_SIZE)
            return EL_EINVALID;
        int64_t bytes = (int64_t)(int32_t)load_be32(data + taken + SIZE_AT) + AFTER_SIZE;
        if (bytes < EL_HEADER_SIZE || bytes > size - taken)
            return EL_EINVALID;
        if (!offsets_fit(run->tuple.log_end, (int32_t)load_be32(data + taken + LAST_DELTA_AT), -1))
            return EL_EINVALID;
        if ((data[taken + ATTRIBUTES_AT + 1] & CONTROL_BATCH) && !run->is_marker)
            return CONTROL_INSIDE;
        if (must_roll(writer, run, data + taken, bytes))
            break;
        gather(writer, run, data + taken, bytes);
        taken += bytes;
        if (run->pieces == MAX_PIECES || run->entries.count == EL_ENTRIES_MAX) {
            int64_t rc = write_gathered(writer, run);
            if (rc < 0)
                return rc;
        }
    }
    int64_t rc = write_gathered(writer, run);
    return rc < 0 ? rc : taken;
}

static void start_run(const el_tuple *tuple, el_run *run) {
    run->tuple = *tuple;
    run->now_ms = el_wall_ms();
    run->pieces = 0;
    run->piece_position = tuple->segment_size;
    el_entries_start(&run->entries, tuple);
    memset(run->touched, 0, sizeof run->touched);
    run->produced = run->next_sequence = 0;
}

/* The first record that is not durable starts the interval of flush.ms and is counted for the housekeeper. This happens before
 * the publication, so that a kill between them hides nothing. It happens again after the publication if a sync ended in between: the
 * housekeeper may then have found every record durable. Returns whether it was the first such record. */
static int mark_unsynced(const el_writer *writer, const el_tuple *before, el_appended *out) {
    el_page *page = page_of(writer);
    int64_t now = el_boot_ns();
    out->durable = atomic_load(&page->words[EL_WORD_DURABLE]);
    int first = out->durable >= before->log_end;
    if (first) {
        atomic_store(&page->words[EL_WORD_UNSYNCED_SINCE], now);
        if (writer->directory)
            el_page_add(writer->directory, EL_WORD_UNSYNCED_COUNT, 1);
    }
    out->unsynced_ms = (int64_t)((uint64_t)now - (uint64_t)atomic_load(&page->words[EL_WORD_UNSYNCED_SINCE])) / 1000000;
    return first;
}

/* After an error the files are unchanged or must be repaired. Entries after the published count have no effect. */
static int32_t append_run(el_writer *writer, const uint8_t *data, int64_t size, const el_batch *rows, int64_t row_count,
                          const el_ending *ending, el_appended *out) {
    el_page *page = page_of(writer);
    el_tuple before;
    el_run run;
    int32_t rc = el_page_read(writer->page, &before);
    if (rc < 0)
        return EL_MUST_REMAP;
    if (before.segment_base != writer->segment_base)
        return EL_MUST_REOPEN;
    if (before.segment_size && el_page_word(writer->page, EL_WORD_POISON) == before.segment_base + 1)
        return EL_IS_POISONED;
    start_run(&before, &run);
    run.is_marker = ending != NULL;
    run.row = rows;
    run.row_end = rows ? rows + row_count : NULL;
    int64_t taken = take_batches(writer, &run, data, size);
    if (taken == 0)
        return EL_MUST_ROLL;
    int64_t rc_ending = taken > 0 && ending ? el_write_ending(&run, ending) : EL_OK;
    if (taken < 0 || rc_ending < 0) {
        int32_t cut = el_truncate(writer->log_fd, before.segment_size);
        if (cut >= 0)
            cut = el_entries_undo(&run.entries, writer, &before);
        rc = (int32_t)(taken < 0 ? taken : rc_ending);
        return cut < 0 ? EL_MUST_REPAIR : rc == CONTROL_INSIDE ? EL_NOT_DATA : rc;
    }
    run.tuple.high_watermark = run.tuple.log_end;
    el_page_enter(writer->page, 1);
    int first = mark_unsynced(writer, &before, out);
    out->seen = el_touch_producers(page, &run);
    out->next_sequence = run.next_sequence;
    el_page_publish(writer->page, &run.tuple, writer->directory);
    atomic_thread_fence(memory_order_seq_cst);
    if (!first && atomic_load(&page->words[EL_WORD_DURABLE]) >= before.log_end)
        mark_unsynced(writer, &before, out);
    if (el_page_leave(writer->page, 1) < 0)
        return EL_MUST_REPAIR;
    out->base_offset = before.log_end;
    out->next_offset = run.tuple.log_end;
    out->consumed = taken;
    out->position = before.segment_size;
    out->append_time_ms = writer->append_time ? run.now_ms : -1;
    return EL_APPENDED;
}

int32_t el_append_held(el_writer *writer, const uint8_t *data, int64_t size, const el_batch *rows, int64_t row_count, el_appended *out) {
    return append_run(writer, data, size, rows, row_count, NULL, out);
}

int32_t el_append_marker(el_writer *writer, const uint8_t *marker, int64_t size, const el_ending *ending, el_appended *out) {
    return append_run(writer, marker, size, NULL, 0, ending, out);
}

int32_t el_append(el_writer *writer, const uint8_t *data, int64_t size, const el_batch *rows, int64_t row_count, el_known *known,
                  int64_t deadline_ns, el_appended *out) {
    int32_t rc = el_append_begin(writer, deadline_ns);
    if (rc != EL_OK)
        return rc;
    if (known && el_must_catch_up(writer, data, size, known))
        rc = EL_MUST_CATCH_UP;
    else
        rc = append_run(writer, data, size, rows, row_count, NULL, out);
    if (known && rc == EL_APPENDED)
        el_known_advance(known, data, out);
    el_append_end(writer, rc == EL_MUST_REPAIR);
    return rc;
}

_Static_assert(_Generic(&el_append, el_append_call: 1, default: 0), "the other extension calls it by this type");
