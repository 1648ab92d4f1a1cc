/* Files that an append writes in addition to the log: entries of both indexes, and interval
 * digests.
 *
 * - Entries are written at number x size, after the log and before the publication; only published
 *   entries count.
 * - An invalid digest is removed from disk before another is written in its place. After a power
 *   loss a record is the right one or missing. */
#include "log/append.h"

void el_entries_start(el_entries *entries, const el_tuple *tuple) {
    entries->count = entries->time_count = 0;
    entries->from = tuple->index_entries;
    entries->time_from = tuple->time_entries;
}

void el_entries_gather(el_entries *entries, el_tuple *tuple, int64_t interval,
                       int64_t last_offset) {
    if (tuple->bytes_since_entry <= interval) {
        return;
    }
    uint8_t *entry = entries->offsets + entries->count * EL_INDEX_ENTRY_SIZE;
    store_be32(entry, (uint32_t)(last_offset - tuple->segment_base));
    store_be32(entry + 4, (uint32_t)tuple->segment_size);
    uint8_t *record = entries->digests + entries->count * EL_DIGEST_RECORD_SIZE;
    el_digest_record(record, tuple->segment_base, tuple->index_entries, tuple->segment_size,
                     tuple->digest);
    entries->count++;
    tuple->index_entries++;
    tuple->bytes_since_entry = 0;
    if (tuple->max_timestamp <= tuple->last_time_entry) {
        return;
    }
    uint8_t *time = entries->times + entries->time_count++ * EL_TIME_ENTRY_SIZE;
    store_be64(time, (uint64_t)tuple->max_timestamp);
    store_be32(time + 8, (uint32_t)(tuple->max_timestamp_offset - tuple->segment_base));
    tuple->time_entries++;
    tuple->last_time_entry = tuple->max_timestamp;
}

static int64_t put(int fd, const uint8_t *entries, int64_t count, int64_t from, int64_t bytes) {
    return count ? el_pwrite(fd, entries, count * bytes, from * bytes) : 0;
}

int64_t el_entries_write(el_entries *entries, const el_writer *writer) {
    int64_t rc =
        put(writer->index_fd, entries->offsets, entries->count, entries->from, EL_INDEX_ENTRY_SIZE);
    if (rc >= 0) {
        rc = put(writer->time_fd, entries->times, entries->time_count, entries->time_from,
                 EL_TIME_ENTRY_SIZE);
    }
    if (rc >= 0 && writer->digest_fd >= 0) {
        rc = put(writer->digest_fd, entries->digests, entries->count, entries->from,
                 EL_DIGEST_RECORD_SIZE);
    }
    entries->from += (uint32_t)entries->count;
    entries->time_from += (uint32_t)entries->time_count;
    entries->count = entries->time_count = 0;
    return rc < 0 ? rc : EL_OK;
}

int32_t el_entries_undo(const el_entries *entries, const el_writer *writer,
                        const el_tuple *before) {
    if (writer->digest_fd < 0 || entries->from == before->index_entries) {
        return EL_OK;
    }
    int32_t rc =
        el_truncate(writer->digest_fd, (int64_t)before->index_entries * EL_DIGEST_RECORD_SIZE);
    return rc < 0 ? rc : el_sync(writer->digest_fd, 1);
}
