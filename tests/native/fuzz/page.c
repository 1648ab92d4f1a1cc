/* A control page with any bytes, with and without checksums that fit: read, checked, published, appended to, tailed. */
#include "fuzz.h"

#include "log/append.h"

#include <fcntl.h>

enum { UNMENDED = 0x77 }; /* rare: a page without a checksum that fits is read a thousand times */

static _Alignas(EL_PAGE_BYTES) uint8_t page[EL_PAGE_BYTES], directory[EL_PAGE_BYTES];

/* The page's slots from the front of the input; repaired: with correct checksums. */
static void page_fill(input *in, int mended) {
    el_page *made = (el_page *)(void *)page;
    memset(page, 0, sizeof page);
    size_t head = in->size < sizeof(el_slot) + 8 ? in->size : sizeof(el_slot) + 8;
    made->magic = EL_PAGE_MAGIC;
    made->version = EL_PAGE_VERSION;
    made->bytes = sizeof(el_slot);
    made->identity.version = EL_PAGE_VERSION;
    uint64_t sequence = 0;
    if (head > 8) {
        memcpy(&sequence, in->data, 8);
        memcpy(&made->slots[sequence & 1], in->data + 8, head - 8);
    }
    made->sequence = sequence;
    if (mended)
        for (int i = 0; i < 2; i++) made->slots[i].check = el_crc32c(0, (const uint8_t *)&made->slots[i].tuple, sizeof(el_tuple));
    else if (in->size > head)
        memcpy(page, in->data + head, in->size - head < EL_PAGE_BYTES ? in->size - head : EL_PAGE_BYTES);
    in->data += head;
    in->size -= head;
}

/* A tuple that may be, with a few numbers of the input's. */
static void plausible(input *in) {
    el_page *made = (el_page *)(void *)page;
    el_tuple *tuple = &made->slots[0].tuple;
    int64_t base = take_byte(in) & 1 ? take_number(in) : 0;
    *tuple = (el_tuple){.segment_base = base, .segment_size = take_number(in) & INT32_MAX, .first_unstable = -1, .max_timestamp = -1,
                        .max_timestamp_offset = take_number(in), .first_timestamp = take_number(in), .created_ms = take_number(in),
                        .roll_jitter_ms = take_number(in), .bytes_since_entry = take_number(in), .min_timestamp = take_number(in),
                        .lateness_ms = take_number(in), .epoch = take_byte(in)};
    tuple->log_start = base;
    tuple->log_end = (int64_t)((uint64_t)base + take_byte(in));
    tuple->high_watermark = tuple->log_end;
    made->slots[1] = made->slots[0];
    made->sequence = take_byte(in);
    for (int i = 0; i < 2; i++) made->slots[i].check = el_crc32c(0, (const uint8_t *)&made->slots[i].tuple, sizeof(el_tuple));
}

static void append(input *in, uint8_t flags) {
    static int nowhere = -1;
    if (nowhere < 0) nowhere = open("/dev/null", O_RDWR);
    el_tuple before, after;
    el_appended out = {0};
    el_writer writer = {.page = page, .directory = flags & 16 ? directory : NULL, .segment_bytes = take_number(in) & INT32_MAX,
                        .segment_ms = take_number(in) & INT64_MAX, .index_bytes = 1 << 20, .index_interval = take_byte(in),
                        .log_fd = nowhere, .index_fd = nowhere, .time_fd = nowhere, .digest_fd = flags & 32 ? nowhere : -1,
                        .append_time = flags >> 6 & 1};
    el_known known = {.producer_id = take_number(in), .seen = take_number(in), .next_sequence = (int32_t)take_number(in)};
    el_batch rows[2] = {{.min_timestamp = take_number(in)}, {.min_timestamp = take_number(in)}};
    if (el_page_read(page, &before) == EL_OK) writer.segment_base = before.segment_base;
    uint8_t *run = take_rest(in);
    if (flags & 128) mend(run, in->size);
    el_must_catch_up(&writer, run, (int64_t)in->size, &known);
    int32_t code = el_append_held(&writer, run, (int64_t)in->size, rows, 2, &out);
    if (code == EL_APPENDED) {
        DEMAND(el_page_read(page, &after) == EL_OK && after.log_end > before.log_end && out.consumed <= (int64_t)in->size);
        el_known_advance(&known, run, &out);
    }
    free(run);
}

static void tail(const uint8_t *data, size_t size, uint8_t flags) {
    el_tuple now;
    int64_t taken, end;
    if (el_page_read(page, &now) < 0) return;
    el_tailing state = {.page = page, .fd = file_of(data, size), .committed = flags & 1, .segment_base = now.segment_base,
                        .position = now.segment_size - (int64_t)size, .offset = flags & 2 ? now.log_start : now.segment_base,
                        .epoch = now.epoch, .generation = now.generation, .digest = now.digest};
    if (state.position < 0) state.position = 0;
    uint8_t *buffer = malloc(size + 1);
    int32_t code = el_tail_read(&state, buffer, (int64_t)size, &taken, &end);
    DEMAND(code == EL_TAIL_DATA ? taken > 0 && taken <= (int64_t)size : code == EL_TAIL_NOTHING || code == EL_TAIL_OTHERWISE);
    free(buffer);
}

/* One file as log, index and digests. */
static void read_short(const uint8_t *data, size_t size, uint8_t flags) {
    enum { BATCHES = 8 };
    el_batch batches[BATCHES];
    int fd = file_of(data, size);
    el_short_read segment = {.base = flags & 1 ? (int64_t)size : 0, .size = (int64_t)size, .index_entries = flags & 2 ? (int64_t)size / 8 : 1,
                             .log_fd = fd, .index_fd = fd, .digest_fd = flags & 16 ? fd : -1, .gapless = flags >> 5 & 1};
    uint8_t *buffer = malloc(size + 1);
    int64_t count = el_read_short(&segment, segment.base + (flags >> 6) * 7, buffer, (int64_t)size, batches, BATCHES);
    DEMAND(count >= 0 ? count <= BATCHES && segment.row <= count : count == EL_ESPACE);
    el_tuple now = {0};
    el_place place = {.segment = segment, .page = page, .end = flags & 4 ? (int64_t)size : -1};
    if (el_page_read(page, &now) != EL_OK) now = (el_tuple){0};
    place.generation = now.generation, place.flags = now.flags;
    place.segment.base = place.end < 0 ? now.segment_base : segment.base;
    place.segment.size = (int64_t)size; /* of a closed segment: as the file has */
    el_placed out;
    int64_t timestamp = flags & 2 ? INT64_MIN : now.max_timestamp;
    place.time_entries = (int64_t)size / 12;
    place.lateness_ms = (flags >> 6) - 1;
    if (flags & 64) place.fixed = &now, place.page = NULL;
    int32_t begins = el_place_since(&place, now.max_timestamp - (flags >> 7), flags & 8, fd, &out);
    DEMAND(begins == 0 || (begins == 1 && out.next_offset >= place.segment.base && out.next_offset >= now.log_start));
    int32_t found = el_place_read(&place, place.segment.base + (flags >> 6) * 7, timestamp, flags & 8, buffer, (int64_t)size, &out);
    if (found == 0) DEMAND(out.next_offset >= -1);
    if (found == 1) DEMAND(out.batch.position >= 0 && out.batch.position + out.batch.size <= (int64_t)size);
    else DEMAND(found == 0 || found == EL_ESPACE);
    free(buffer);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    uint8_t flags = take_byte(&in), more = take_byte(&in);
    el_tuple found;
    el_identity identity = {.version = EL_PAGE_VERSION}, other;
    page_fill(&in, flags & 1 || take_byte(&in) != UNMENDED);
    if (flags & 2) plausible(&in);
    int32_t state = el_page_check(page, &identity);
    DEMAND(state >= EL_PAGE_VALID && state <= EL_PAGE_OLDER);
    el_page_identity(page, &other);
    if (el_page_read(page, &found) == EL_OK) {
        DEMAND(found.log_end >= found.segment_base && found.segment_base >= 0);
        if (more & 4) DEMAND(el_page_publish(page, &found, NULL) == EL_OK && el_page_read(page, &found) == EL_OK);
    }
    for (int word = -1; word <= EL_WORDS; word++) el_page_word(page, word);
    if (more & 8) el_page_invalidate_producers(page);
    if (flags & 4) tail(in.data, in.size, more);
    if (flags & 8) read_short(in.data, in.size, more);
    append(&in, flags);
    return 0;
}
