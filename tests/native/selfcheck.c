/* Self-check of the C core without Python, for machines with a cross compiler and an emulator only.
 *
 * Prints one line per check and returns 1 if one failed. Checked are checksums by every implementation, encoding and decoding of
 * batches, the control page under threads, appends from two processes. */
#include "api/native.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

static void check(const char *what, int fine) {
    printf("%-6s %s\n", fine ? "ok" : "FAILED", what);
    failures += !fine;
}

/* ---- checksums and hashes ------------------------------------------------------------------------------------------- */

static uint32_t crc_by_bits(const uint8_t *data, size_t size) {
    uint32_t crc = ~0u;
    for (size_t at = 0; at < size; at++) {
        crc ^= data[at];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82f63b78u & (0 - (crc & 1)));
    }
    return ~crc;
}

static void fill(uint8_t *data, size_t size) {
    uint32_t state = 1;
    for (size_t at = 0; at < size; at++) data[at] = (uint8_t)((state = state * 1664525u + 1013904223u) >> 24);
}

static void check_crc(const char *backend) {
    enum { ROOM = 40000 };
    static uint8_t data[ROOM];
    char what[80];
    if (el_crc32c_select(backend) != EL_OK) return;
    fill(data, ROOM);
    int fine = el_crc32c(0, (const uint8_t *)"123456789", 9) == 0xE3069283u;
    for (size_t size = 0; size < 900; size++)
        fine &= el_crc32c(0, data + size % 17, size) == crc_by_bits(data + size % 17, size);
    for (size_t size = 12280; size < ROOM - 64; size += 4093)
        fine &= el_crc32c(0, data + size % 64, size) == crc_by_bits(data + size % 64, size);
    uint32_t first = el_crc32c(0, data, 1000), second = el_crc32c(0, data + 1000, 7001);
    fine &= el_crc32c(first, data + 1000, 7001) == crc_by_bits(data, 8001);
    fine &= el_crc32c_combine(first, second, 7001) == crc_by_bits(data, 8001);
    snprintf(what, sizeof what, "CRC-32C, %s", el_crc32c_backend());
    check(what, fine && strcmp(backend, el_crc32c_backend()) == 0);
}

static void check_hashes(void) {
    static const struct { const char *key; int32_t hash; } known[] = { /* those of Kafka's own tests */
        {"21", -973932308}, {"foobar", -790332482}, {"a-little-bit-long-string", -985981536},
        {"a-little-bit-longer-string", -1486304829}, {"abc", 479470107},
    };
    int fine = 1;
    for (size_t at = 0; at < sizeof known / sizeof *known; at++)
        fine &= (int32_t)el_murmur2((const uint8_t *)known[at].key, strlen(known[at].key)) == known[at].hash;
    check("murmur2", fine);
}

/* ---- batches -------------------------------------------------------------------------------------------------------- */

enum { ROWS = 50, RUN = 8192, BATCHES = 16 };

static int64_t encode_run(uint8_t *run, int64_t batch_bytes, el_batch *batches, int64_t *count) {
    static uint8_t values[ROWS * 20];
    static int32_t offsets[ROWS + 1];
    fill(values, sizeof values);
    for (int row = 0; row <= ROWS; row++) offsets[row] = row * 20;
    el_encoder encoder = {.rows = ROWS, .count = ROWS, .timestamp = 1700000000000, .batch_bytes = batch_bytes};
    encoder.values = (el_bytes){.data = values, .offsets = offsets, .data_size = sizeof values, .count = ROWS, .offset_width = 4};
    return el_encode(&encoder, run, RUN, batches, BATCHES, count);
}

static void check_batches(void) {
    static uint8_t run[RUN], values[ROWS * 20 + 64], validity[ROWS];
    static int64_t offsets[ROWS];
    static int32_t value_offsets[ROWS + 1];
    el_batch batches[BATCHES], found[BATCHES];
    int64_t count = 0, consumed, need, bad;
    el_problem problem;
    uint64_t digest = 0;
    int64_t size = encode_run(run, 300, batches, &count);
    check("batches are encoded", size > 0 && count > 3);
    check("a run gets its producer", el_stamp_producer(run, size, batches, count, 4711, 5, 2147483640, 1) == ROWS - 8);
    check("a run is stamped", el_stamp(run, size, 70, 3, &digest) == 70 + ROWS);
    el_chain chain = {.next_offset = 70, .epoch = 3};
    int64_t good = el_scan(run, size, &chain, found, BATCHES, &consumed, &need, &problem);
    check("a run is scanned", good == count && consumed == size && chain.next_offset == 70 + ROWS && chain.digest == digest);
    check("... with its producer", found[0].producer_id == 4711 && found[0].producer_epoch == 5 && (found[0].attributes & 16));
    el_columns out = {.offsets = offsets, .value_offsets = value_offsets, .value_data = values, .value_validity = validity,
                      .record_capacity = ROWS, .value_capacity = sizeof values};
    el_window window = {0, INT64_MAX, INT64_MIN, INT64_MAX};
    int code = el_decode_run(run, size, 0, found, good, &window, &out, &bad, &problem);
    static uint8_t expected[ROWS * 20];
    fill(expected, sizeof expected);
    check("a run is decoded", code == EL_OK && out.count == ROWS && offsets[ROWS - 1] == 70 + ROWS - 1 &&
                                  memcmp(values, expected, sizeof expected) == 0);
    int64_t missed = 0;
    for (int64_t bit = 0; bit < size * 8; bit++) {
        el_chain again = {.next_offset = 70, .epoch = 3};
        run[bit / 8] ^= (uint8_t)(1 << bit % 8);
        good = el_scan(run, size, &again, found, BATCHES, &consumed, &need, &problem);
        missed += good == count && again.digest == digest;
        run[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    check("every flipped bit of a run is found", missed == 0);
}

static void check_indexes(void) {
    uint8_t entries[100 * EL_INDEX_ENTRY_SIZE];
    int fine = 1;
    for (uint32_t at = 0; at < 100; at++) {
        store_be32(entries + at * EL_INDEX_ENTRY_SIZE, at * 10);
        store_be32(entries + at * EL_INDEX_ENTRY_SIZE + 4, at * 1000);
    }
    for (int32_t target = 0; target < 1000; target++) fine &= el_index_floor(entries, 100, target) == target / 10;
    check("an index is searched", fine && el_index_floor(entries, 100, -1) == -1);
}

/* ---- the page: one writes, three read and sleep ----------------------------------------------------------------------- */

enum { PUBLICATIONS = 20000 };

static uint8_t *page;

static void *read_page(void *bad) {
    uint32_t wake = 0;
    for (int64_t seen = 0; seen < PUBLICATIONS;) {
        el_tuple now;
        el_tail tail = {page, seen};
        el_wait(&tail, 1, NULL, 0, NULL, 0, 0, &wake, el_boot_ns() + 1000000000);
        if (el_page_read(page, &now) != EL_OK || now.segment_size != now.log_end * 100 || now.log_end < seen) *(int *)bad += 1;
        else seen = now.log_end;
    }
    return NULL;
}

static void check_page(const char *folder) {
    char path[4096];
    int32_t error = 0;
    int bad[3] = {0};
    pthread_t readers[3];
    snprintf(path, sizeof path, "%s/page", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    el_identity identity = {.partition = 0};
    el_tuple tuple = {.first_unstable = -1};
    if (el_allocate(fd, EL_PAGE_BYTES) < 0 || (page = el_map(fd, 1, &error)) == NULL) return check("a page is mapped", 0);
    el_page_init(page, &identity, &tuple, 0, 0, 0);
    check("a page is valid", el_page_check(page, &identity) == EL_PAGE_VALID);
    for (int at = 0; at < 3; at++) pthread_create(&readers[at], NULL, read_page, &bad[at]);
    for (int64_t number = 1; number <= PUBLICATIONS; number++) {
        tuple.log_end = tuple.high_watermark = number;
        tuple.segment_size = number * 100;
        el_page_publish(page, &tuple, NULL);
    }
    for (int at = 0; at < 3; at++) pthread_join(readers[at], NULL);
    check("the published tuple changes as a whole, and wakes", bad[0] + bad[1] + bad[2] == 0);
    close(fd);
}

/* ---- appends from two processes -------------------------------------------------------------------------------------- */

enum { APPENDS = 300 };

static int opened(const char *folder, const char *name, char *path, size_t size) {
    snprintf(path, size, "%s/%s", folder, name);
    return open(path, O_RDWR | O_CREAT, 0600);
}

static int append_often(const char *folder) {
    static char lock_path[4096], page_path[4096], path[4096];
    static uint8_t run[RUN];
    el_batch batches[BATCHES];
    el_appended appended;
    struct stat facts;
    int64_t count = 0, size = encode_run(run, RUN, batches, &count);
    int32_t error = 0;
    el_writer writer = {.lock_path = lock_path, .page_path = page_path, .segment_bytes = 1 << 30, .segment_ms = INT64_MAX,
                        .index_bytes = 1 << 20, .index_interval = 4096, .process = getpid()};
    writer.lock_fd = opened(folder, "lock", lock_path, sizeof lock_path);
    int page_fd = opened(folder, "page", page_path, sizeof page_path);
    writer.page = el_map(page_fd, 1, &error);
    writer.log_fd = opened(folder, "log", path, sizeof path);
    writer.index_fd = opened(folder, "index", path, sizeof path);
    writer.time_fd = opened(folder, "timeindex", path, sizeof path);
    writer.digest_fd = opened(folder, "digests", path, sizeof path);
    fstat(writer.lock_fd, &facts);
    writer.lock_device = (int64_t)facts.st_dev, writer.lock_inode = (int64_t)facts.st_ino;
    fstat(page_fd, &facts);
    writer.page_device = (int64_t)facts.st_dev, writer.page_inode = (int64_t)facts.st_ino;
    for (int number = 0; number < APPENDS; number++) {
        int32_t code = el_append(&writer, run, size, batches, count, NULL, el_boot_ns() + 30000000000, &appended);
        if (code != EL_APPENDED) return fprintf(stderr, "append %d: %d\n", number, code), 1;
    }
    return 0;
}

static void check_appends(const char *folder) {
    char path[4096];
    int status = 0, other = 0;
    el_tuple tuple = {.first_unstable = -1, .last_time_entry = -1, .max_timestamp = -1, .first_timestamp = -1};
    el_identity identity = {.partition = 0};
    el_page_init(page, &identity, &tuple, 0, 0, 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(append_often(folder));
    status = append_often(folder);
    waitpid(child, &other, 0);
    check("two processes append", status == 0 && other == 0);
    int fd = opened(folder, "log", path, sizeof path);
    off_t size = lseek(fd, 0, SEEK_END);
    uint8_t *log = malloc((size_t)size + 1);
    el_batch *found = malloc(sizeof *found * 3 * APPENDS);
    el_chain chain = {.next_offset = 0, .epoch = 0};
    int64_t consumed = 0, need, good = 0;
    el_problem problem;
    if (pread(fd, log, (size_t)size, 0) == size) good = el_scan(log, size, &chain, found, 3 * APPENDS, &consumed, &need, &problem);
    el_page_read(page, &tuple);
    check("... and every batch is there, once", good == 2 * APPENDS && consumed == size && tuple.log_end == 2 * APPENDS * ROWS &&
                                                  tuple.segment_size == size && chain.digest == tuple.digest);
    free(found);
    free(log);
    close(fd);
}

/* ---- notices: a wait for a notice word ends after the announced number is visible --------------------------------------- */

enum { NOTICES = 20000 };

static _Atomic int64_t noticed;

static void *follow(void *bad) {
    uint32_t wake = 0;
    int64_t deadline_ns = el_boot_ns() + 60000000000;
    for (int64_t last = 0; last < NOTICES;) {
        el_notice notice = {page, el_page_notice(page)};
        int64_t now = noticed;                          /* the word is read before the look */
        if (now == last) el_wait(NULL, 0, &notice, 1, NULL, 0, 0, &wake, deadline_ns);
        if (now < last || el_boot_ns() > deadline_ns) return *(int *)bad += 1, NULL;
        last = now;
    }
    return NULL;
}

static void check_notices(void) {
    int bad[2] = {0};
    pthread_t followers[2];
    noticed = 0;
    for (int at = 0; at < 2; at++) pthread_create(&followers[at], NULL, follow, &bad[at]);
    for (int64_t number = 1; number <= NOTICES; number++) {
        noticed = number;
        el_page_notify(page);
    }
    for (int at = 0; at < 2; at++) pthread_join(followers[at], NULL);
    check("no notice is slept through", bad[0] + bad[1] == 0);
}

/* ---- several directories: each publication is seen before the next one, so that none hides a lost wake ------------------ */

enum { DIRECTORIES = 3, STEPS = 1500, TAILS = 200 };

static uint8_t *directories[DIRECTORIES], *partitions[DIRECTORIES];
static _Atomic int64_t step_seen[2];

typedef struct { int number, tails, bad; } el_directory_reader;

static void *follow_directories(void *argument) {
    el_directory_reader *reader = argument;
    uint32_t wake = 0;
    int64_t ends[DIRECTORIES] = {0}, deadline_ns = el_boot_ns() + 120000000000;
    for (int64_t step = 0; step < STEPS && !reader->bad;) {
        el_tail tails[TAILS];
        el_watched_directory watched[DIRECTORIES];
        for (int at = 0; at < reader->tails; at++) tails[at] = (el_tail){partitions[at % DIRECTORIES], ends[at % DIRECTORIES]};
        for (int at = 0; at < DIRECTORIES; at++) watched[at] = (el_watched_directory){directories[at], -1};
        int64_t found = el_wait(tails, reader->tails, NULL, 0, watched, DIRECTORIES, 0, &wake, deadline_ns);
        reader->bad = el_boot_ns() > deadline_ns;
        if (found < 0 || found >= reader->tails) continue;
        ends[found % DIRECTORIES]++;
        step_seen[reader->number] = ++step;
    }
    step_seen[reader->number] = STEPS;
    return NULL;
}

static uint8_t *new_page(const char *folder, int number) {
    char path[4096];
    int32_t error = 0;
    snprintf(path, sizeof path, "%s/page-%d", folder, number);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    uint8_t *made = el_allocate(fd, EL_PAGE_BYTES) < 0 ? NULL : el_map(fd, 1, &error);
    close(fd);
    return made;
}

static void check_directories(const char *folder) {
    el_identity identity = {.partition = 0};
    el_tuple tuples[DIRECTORIES] = {{0}};
    el_directory_reader readers[2] = {{0, DIRECTORIES, 0}, {1, TAILS, 0}};
    pthread_t threads[2];
    uint32_t random = 1;
    for (int at = 0; at < DIRECTORIES; at++) {
        tuples[at].first_unstable = -1;
        directories[at] = new_page(folder, at), partitions[at] = new_page(folder, DIRECTORIES + at);
        if (!directories[at] || !partitions[at]) return check("pages of directories are mapped", 0);
        el_directory_init(directories[at], &identity);
        el_page_init(partitions[at], &identity, &tuples[at], 0, 0, 0);
    }
    for (int at = 0; at < 2; at++) pthread_create(&threads[at], NULL, follow_directories, &readers[at]);
    for (int64_t step = 1; step <= STEPS; step++) {
        random = random * 1664525 + 1013904223;
        int at = (int)((random >> 16) % DIRECTORIES);
        tuples[at].high_watermark = ++tuples[at].log_end;
        el_page_publish(partitions[at], &tuples[at], directories[at]);
        while (step_seen[0] < step || step_seen[1] < step) sched_yield();
    }
    for (int at = 0; at < 2; at++) pthread_join(threads[at], NULL);
    check("no publication in several directories is slept through", readers[0].bad + readers[1].bad == 0);
}

/* ---- leases ------------------------------------------------------------------------------------------------------------- */

static uint64_t beat_of(int fd) {
    uint8_t entry[EL_SLOT_BYTES];
    return el_slot_read(fd, INT64_C(1) << 40, 0, 0, entry) < 0 ? 0 : load_be64(entry + EL_SLOT_BEAT);
}

static int until_left(el_lease *lease, int64_t ns) {
    for (int64_t end_ns = el_boot_ns() + ns; el_boot_ns() < end_ns;)
        if (el_lease_left(lease)) return 1;
    return 0;
}

static void check_leases(const char *folder) {
    char path[4096];
    el_lease lease = {0};
    uint8_t entry[EL_SLOT_BYTES];
    int64_t second = 1000000000;
    int fd = opened(folder, "slots", path, sizeof path);
    check("a lease begins", el_lease_start(&lease, fd, 0, 0, 60 * second, second / 1000, second / 10) == EL_OK && beat_of(fd) >= 1);
    for (int64_t end_ns = el_boot_ns() + 30 * second; beat_of(fd) < 20 && el_boot_ns() < end_ns;) el_lease_polling(&lease);
    check("... and writes heartbeats", beat_of(fd) >= 20 && lease.good_until_ns > el_boot_ns() && !el_lease_left(&lease));
    el_lease_polled(&lease);
    int left = until_left(&lease, 30 * second);
    check("... until its polls stop", left && lease.good_until_ns == 0);
    check("... and again when they go on", el_lease_renew(&lease) == EL_OK && lease.good_until_ns > 0 && !until_left(&lease, second / 5));
    el_slot_read(fd, INT64_C(1) << 40, 0, 0, entry);
    check("... which others see", load_be64(entry + EL_SLOT_LEFT) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(el_lease_end(&lease) != EL_OK || el_lease_renew(&lease) == EL_OK);
    int status = 1;
    waitpid(child, &status, 0);
    uint64_t beat = beat_of(fd);
    for (int64_t end_ns = el_boot_ns() + 30 * second; beat_of(fd) == beat && el_boot_ns() < end_ns;) continue;
    check("a child ends nothing", status == 0 && beat_of(fd) != beat);
    for (int at = 0; at < 200; at++) {
        el_lease_end(&lease);
        el_lease_end(&lease);
        if (el_lease_start(&lease, fd, 0, 0, second, second / 1000000, second) != EL_OK) break;
    }
    el_lease_end(&lease);
    beat = beat_of(fd);
    check("a lease ends", lease.good_until_ns == 0 && !until_left(&lease, second / 50) && beat_of(fd) == beat);
    close(fd);
}

int main(int count, char **arguments) {
    if (count != 2) return fprintf(stderr, "usage: selfcheck FOLDER\n"), 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *backends[] = {"software", "armv8", "sse42", "avx512-vpclmul"};
    for (int at = 0; at < 4; at++) check_crc(backends[at]);
    check_hashes();
    check_batches();
    check_indexes();
    check_page(arguments[1]);
    check_notices();
    check_directories(arguments[1]);
    check_appends(arguments[1]);
    check_leases(arguments[1]);
    printf("%d failed\n", failures);
    return failures != 0;
}
