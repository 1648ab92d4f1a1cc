/* The append: the critical section between the locking and the unlocking of a partition
 * (protocol.md, APPEND-1).
 *
 * - The order is lock, owner field, catch up, check, write, index, publish, clear the owner field,
 *   unlock.
 * - Positions come from the control page, read after locking, never from memory of this process.
 * - Only written bytes are published; a failed write leaves page and file unchanged.
 * - A set owner field requires a repair, which is not done here.
 * - The caller's bytes are never changed: heads are stamped in a buffer of this file and written by
 *   one gathering call. */
#include "log/append.h"
#include "testing/mutants.h"

#include <limits.h>
#include <string.h>

typedef struct { /* the argument of an append: a new run, a marker, or batches of a leader */
    const uint8_t *data;
    int64_t size;
    const el_batch *rows;
    int64_t row_count;
    const el_ending *ending;
    const el_leading *source;
} el_input;

/* ---- one batch ------------------------------------------------------------------------------- */

/* The base offset that a batch gets, or has in the leader's log. */
static int64_t base_of(const el_run *run, const uint8_t *batch) {
    return run->stamped ? (int64_t)load_be64(batch) : run->tuple.log_end;
}

/* Whether the segment must be rolled before a batch of `size` bytes (format.md 2.8). */
static int must_roll(const el_writer *writer, const el_run *run, const uint8_t *batch,
                     int64_t size) {
    const el_tuple *tuple = &run->tuple;
    int64_t last = base_of(run, batch) + (int32_t)load_be32(batch + LAST_DELTA_AT);
    if (tuple->segment_size == 0) {
        return last - tuple->segment_base > INT32_MAX;
    }
    int64_t newest = run->append_time ? run->now_ms : (int64_t)load_be64(batch + MAX_TIMESTAMP_AT);
    int64_t waited = tuple->first_timestamp >= 0 && newest >= 0 ? newest - tuple->first_timestamp
                                                                : run->now_ms - tuple->created_ms;
    return tuple->segment_size > writer->segment_bytes - size ||
           waited > writer->segment_ms - tuple->roll_jitter_ms ||
           (int64_t)tuple->index_entries >= writer->index_bytes / EL_INDEX_ENTRY_SIZE ||
           (int64_t)tuple->time_entries >= writer->index_bytes / EL_TIME_ENTRY_SIZE - 1 ||
           last - tuple->segment_base > INT32_MAX;
}

/* Base offset and epoch are outside the CRC. The append time is inside, but the CRC of a changed
 * head follows from the old CRC without reading the body. */
static int stamp(const el_run *run, const uint8_t *batch, int64_t size, uint8_t *head) {
    int bytes = STAMPED_BYTES;
    memcpy(head, batch, EL_HEADER_SIZE);
    if (run->stamped) {
        return EL_HEADER_SIZE;
    }
    store_be64(head, (uint64_t)run->tuple.log_end);
    store_be32(head + EPOCH_AT, (uint32_t)run->tuple.epoch);
    if (run->append_time) {
        uint64_t body = (uint64_t)size - EL_HEADER_SIZE;
        uint32_t tail =
            el_crc32c_combine(el_crc32c(0, head + ATTRIBUTES_AT, EL_HEADER_SIZE - ATTRIBUTES_AT), 0,
                              body) ^
            load_be32(head + CRC_AT);
        head[ATTRIBUTES_AT + 1] |= LOG_APPEND_TIME;
        store_be64(head + MAX_TIMESTAMP_AT, (uint64_t)run->now_ms);
        uint32_t front = el_crc32c(0, head + ATTRIBUTES_AT, EL_HEADER_SIZE - ATTRIBUTES_AT);
        store_be32(head + CRC_AT, el_crc32c_combine(front, 0, body) ^ tail);
        bytes = EL_HEADER_SIZE;
    }
    return bytes;
}

/* The smallest timestamp of the next batch of the run, whose row is taken; -1: unknown. A header
 * proves it only if all records have the same timestamp. */
static int64_t take_min_timestamp(el_run *run, const uint8_t *head) {
    const el_batch *row = run->row < run->row_end ? run->row++ : NULL;
    if (run->append_time || load_be32(head + RECORDS_AT) == 1) {
        return (int64_t)load_be64(head + MAX_TIMESTAMP_AT);
    }
    return row ? row->min_timestamp : -1;
}

/* Bounds that allow a reader with a time limit to skip segments, or the end of one. */
static void note_min_timestamp(el_tuple *tuple, int64_t oldest) {
    if (oldest < 0) {
        tuple->min_timestamp = -1;
        return;
    }
    if (oldest < tuple->min_timestamp) {
        tuple->min_timestamp = oldest;
    }
    if (tuple->max_timestamp - oldest > tuple->lateness_ms) {
        tuple->lateness_ms = tuple->max_timestamp - oldest;
    }
}

static void gather(const el_writer *writer, el_run *run, const uint8_t *batch, int64_t size) {
    el_tuple *tuple = &run->tuple;
    uint8_t *head = run->heads[run->pieces];
    if (base_of(run, batch) > tuple->log_end) {
        tuple->log_end = base_of(run, batch);
        tuple->flags &= ~(uint32_t)EL_GAPLESS;
    }
    int stamped = stamp(run, batch, size, head);
    run->gathered[2 * run->pieces] = (struct iovec){.iov_base = head, .iov_len = (size_t)stamped};
    run->gathered[2 * run->pieces + 1] = (struct iovec){
        .iov_base = (void *)(uintptr_t)(batch + stamped), .iov_len = (size_t)(size - stamped)};
    run->pieces++;
    int64_t last_offset = tuple->log_end + (int32_t)load_be32(head + LAST_DELTA_AT);
    int64_t newest = (int64_t)load_be64(head + MAX_TIMESTAMP_AT);
    int64_t oldest = take_min_timestamp(run, head);
    /* a batch of a leader may be emptied by compaction: it has no timestamp */
    int has_records = load_be32(head + RECORDS_AT) != 0;
    if (tuple->segment_size == 0) {
        tuple->first_timestamp = newest;
    }
    if (has_records) {
        note_min_timestamp(tuple, oldest);
    }
    if (has_records && newest > tuple->max_timestamp) {
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

/* ---- writing --------------------------------------------------------------------------------- */

static int64_t write_gathered(const el_writer *writer, el_run *run) {
    if (run->pieces == 0) {
        return EL_OK;
    }
    if (el_is_mutant(EL_PUBLISH_FIRST)) { /* publishes before the write */
        el_tuple early = run->tuple;
        early.high_watermark = early.log_end;
        el_page_publish(writer->page, &early, writer->directory);
    }
    int64_t rc = el_write_all(writer->log_fd, run->gathered, 2 * run->pieces, run->piece_position);
    if (rc < 0) {
        return rc;
    }
    run->piece_position = run->tuple.segment_size;
    run->pieces = 0;
    return el_entries_write(&run->entries, writer);
}

/* Whether the next batch of a leader may follow the log end: EL_OK, EL_NOT_NEXT or EL_NEW_EPOCH. */
static int32_t continues(const el_run *run, const uint8_t *batch) {
    if (!run->source) {
        return EL_OK;
    }
    int64_t base = base_of(run, batch);
    if (base < run->tuple.log_end || (base > run->tuple.log_end && !run->source->gaps_allowed)) {
        return EL_NOT_NEXT;
    }
    int32_t epoch = run->stamped ? (int32_t)load_be32(batch + EPOCH_AT) : run->tuple.epoch;
    return epoch > run->source->data_epoch   ? EL_NEW_EPOCH
           : epoch < run->source->data_epoch ? EL_NOT_NEXT
                                             : EL_OK;
}

/* Takes whole batches from the front of the run until one does not fit. Returns the taken bytes, or
 * an error; *stop is why it stopped before the end. */
static int64_t take_batches(const el_writer *writer, el_run *run, const uint8_t *data, int64_t size,
                            int32_t *stop) {
    int64_t taken = 0;
    *stop = EL_OK;
    while (taken < size) {
        if (size - taken < EL_HEADER_SIZE) {
            return EL_EINVALID;
        }
        int64_t bytes = (int64_t)(int32_t)load_be32(data + taken + SIZE_AT) + AFTER_SIZE;
        if (bytes < EL_HEADER_SIZE || bytes > size - taken) {
            return EL_EINVALID;
        }
        if (!offsets_fit(base_of(run, data + taken),
                         (int32_t)load_be32(data + taken + LAST_DELTA_AT), -1)) {
            return EL_EINVALID;
        }
        if ((data[taken + ATTRIBUTES_AT + 1] & CONTROL_BATCH) && !run->is_marker) {
            return CONTROL_INSIDE;
        }
        *stop = continues(run, data + taken);
        if (*stop == EL_OK && must_roll(writer, run, data + taken, bytes)) {
            *stop = EL_MUST_ROLL;
        }
        if (*stop != EL_OK) {
            break;
        }
        gather(writer, run, data + taken, bytes);
        taken += bytes;
        if (run->pieces == MAX_PIECES || run->entries.count == EL_ENTRIES_MAX) {
            int64_t rc = write_gathered(writer, run);
            if (rc < 0) {
                return rc;
            }
        }
    }
    int64_t rc = write_gathered(writer, run);
    return rc < 0 ? rc : taken;
}

static void start_run(const el_writer *writer, const el_tuple *tuple, const el_replica *replica,
                      const el_input *input, el_run *run) {
    run->tuple = *tuple;
    run->replica = *replica;
    run->source = input->source;
    run->stamped = input->source && !input->source->fresh;
    run->append_time =
        input->source ? !run->stamped && input->source->append_time_ms >= 0 : writer->append_time;
    run->is_marker = input->ending != NULL;
    run->row = input->rows;
    run->row_end = input->rows ? input->rows + input->row_count : NULL;
    run->now_ms = input->source && run->append_time ? input->source->append_time_ms : el_wall_ms();
    run->pieces = 0;
    run->piece_position = tuple->segment_size;
    el_entries_start(&run->entries, tuple);
    memset(run->touched, 0, sizeof run->touched);
    run->produced = run->next_sequence = 0;
}

/* The first record that is not durable starts the interval of flush.ms and is counted for the
 * housekeeper. This happens before the publication, so that a kill between them hides nothing. It
 * happens again after the publication if a sync ended in between: the housekeeper may then have
 * found every record durable. Returns whether it was the first such record. */
static int mark_unsynced(const el_writer *writer, const el_tuple *before, el_appended *out) {
    el_page *page = page_of(writer);
    int64_t now = el_boot_ns();
    out->durable = atomic_load(&page->words[EL_WORD_DURABLE]);
    int first = out->durable >= before->log_end;
    if (first) {
        atomic_store(&page->words[EL_WORD_UNSYNCED_SINCE], now);
        if (writer->directory) {
            el_page_add(writer->directory, EL_WORD_UNSYNCED_COUNT, 1);
        }
    }
    out->unsynced_ms =
        (int64_t)((uint64_t)now - (uint64_t)atomic_load(&page->words[EL_WORD_UNSYNCED_SINCE])) /
        1000000;
    return first;
}

/* Whether the published state takes the input: EL_OK, or the code of what must happen first. */
static int32_t check_published(const el_writer *writer, const el_input *input,
                               const el_tuple *tuple, const el_replica *replica) {
    if (tuple->segment_base != writer->segment_base ||
        atomic_load(&page_of(writer)->words[EL_WORD_CUTS]) != writer->cuts) {
        return EL_MUST_REOPEN;
    }
    if (tuple->segment_size &&
        el_page_word(writer->page, EL_WORD_POISON) == tuple->segment_base + 1) {
        return EL_IS_POISONED;
    }
    if (!input->source) {
        return el_replica_accepts(writer, tuple, replica);
    }
    if (tuple->epoch > input->source->epoch && !el_is_mutant(EL_NO_FENCE)) {
        return EL_FENCED;
    }
    if (input->source->fresh && tuple->log_end != input->source->base_offset) {
        return EL_NOT_NEXT;
    }
    int follows = tuple->epoch == input->source->epoch || el_is_mutant(EL_NO_FENCE);
    return follows && replica->role == EL_ROLE_FOLLOWER ? EL_OK : EL_NOT_NEXT;
}

/* Whether a name leads to the open segment: EL_OK, EL_MUST_REOPEN, or an error. A program may have
 * removed or replaced the file. */
static int32_t check_segment(const el_writer *writer) {
    el_file_facts found;
    int32_t rc = el_facts(writer->log_fd, &found);
    return rc < 0 ? rc : found.links ? EL_OK : EL_MUST_REOPEN;
}

/* Takes an incomplete append back; the code for the caller. */
static int32_t undo(const el_writer *writer, const el_run *run, const el_tuple *before,
                    int64_t problem) {
    int32_t cut = el_truncate(writer->log_fd, before->segment_size);
    if (cut >= 0) {
        cut = el_entries_undo(&run->entries, writer, before);
    }
    return cut < 0 ? EL_MUST_REPAIR : problem == CONTROL_INSIDE ? EL_NOT_DATA : (int32_t)problem;
}

static int32_t publish_run(el_writer *writer, el_run *run, const el_tuple *before,
                           el_appended *out) {
    el_page *page = page_of(writer);
    int wrote = run->tuple.log_end > before->log_end;
    el_raise_high_watermark(&run->tuple, &run->replica, el_committed_end(writer, run));
    el_page_enter(writer->page, 1);
    int first = wrote && mark_unsynced(writer, before, out);
    out->seen = el_touch_producers(page, run);
    out->next_sequence = run->next_sequence;
    el_page_publish_replica(writer->page, &run->tuple, &run->replica, writer->directory);
    atomic_thread_fence(memory_order_seq_cst);
    if (wrote && !first && atomic_load(&page->words[EL_WORD_DURABLE]) >= before->log_end) {
        mark_unsynced(writer, before, out);
    }
    return el_page_leave(writer->page, 1) < 0 ? EL_MUST_REPAIR : EL_APPENDED;
}

/* After an error the files are unchanged or must be repaired. Entries after the published count
 * have no effect. */
static int32_t append_run(el_writer *writer, const el_input *input, el_appended *out) {
    el_tuple before;
    el_replica replica;
    el_run run;
    int32_t stop;
    if (el_page_read_replica(writer->page, &before, &replica) < 0) {
        return EL_MUST_REMAP;
    }
    int32_t rc = check_published(writer, input, &before, &replica);
    if (rc == EL_OK) {
        rc = check_segment(writer);
    }
    if (rc != EL_OK) {
        return rc;
    }
    start_run(writer, &before, &replica, input, &run);
    int64_t taken = take_batches(writer, &run, input->data, input->size, &stop);
    if (taken == 0 && !(input->source &&
                        stop == EL_OK)) { /* the empty run of a leader carries its high watermark */
        return stop == EL_OK ? EL_EINVALID : stop;
    }
    int64_t ended = taken > 0 && input->ending ? el_write_ending(&run, input->ending) : EL_OK;
    if (taken < 0 || ended < 0) {
        return undo(writer, &run, &before, taken < 0 ? taken : ended);
    }
    rc = publish_run(writer, &run, &before, out);
    if (rc != EL_APPENDED) {
        return rc;
    }
    out->base_offset = before.log_end;
    out->next_offset = run.tuple.log_end;
    out->consumed = taken;
    out->position = before.segment_size;
    out->append_time_ms = run.append_time ? run.now_ms : -1;
    if (!input->source) {
        if (writer->topics & 1) { /* an odd value counts for one append */
            writer->topics = EL_UNKNOWN_TOPICS;
        }
        writer->appended_bytes += taken;
        writer->appended_records += run.tuple.log_end - before.log_end;
    }
    return EL_APPENDED;
}

int32_t el_append_held(el_writer *writer, const uint8_t *data, int64_t size, const el_batch *rows,
                       int64_t row_count, el_appended *out) {
    return append_run(writer, &(el_input){data, size, rows, row_count, NULL, NULL}, out);
}

int32_t el_append_marker(el_writer *writer, const uint8_t *marker, int64_t size,
                         const el_ending *ending, el_appended *out) {
    return append_run(writer, &(el_input){marker, size, NULL, 0, ending, NULL}, out);
}

int32_t el_follow(el_writer *writer, const el_leading *source, const uint8_t *data, int64_t size,
                  const el_batch *rows, int64_t row_count, const el_ending *ending,
                  el_appended *out) {
    int32_t rc = append_run(writer, &(el_input){data, size, rows, row_count, ending, source}, out);
    if (rc == EL_APPENDED && out->consumed) {
        writer->data_epoch = source->data_epoch;
        writer->copied_bytes += out->consumed;
    }
    return rc;
}
