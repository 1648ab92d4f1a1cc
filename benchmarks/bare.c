/* The bare loops that the benchmarks are measured against: what this machine can do with nothing around it.
 *
 *   bare write PATH BYTES PIECE    pwrite BYTES in pieces into a fresh file; prints nanoseconds
 *   bare read PIECE WORKERS PATH...  pread every file in pieces on that many threads, CRC-32C of each piece on
 *                                  three streams. Prints nanoseconds, bytes and the last checksum, so that nothing is optimised away
 *   bare wake SAMPLES              a process asleep on a futex is woken by another; prints p50 and p99 in nanoseconds
 *   bare spin SAMPLES              the same with a process that does not sleep but reads the word again and again
 *
 * Buffers are warm before the clock starts: page faults in them are not part of the ceiling.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define CRC8(crc, word) _mm_crc32_u64((crc), (word))
#define CRC1(crc, byte) _mm_crc32_u8((uint32_t)(crc), (byte))
#elif defined(__aarch64__)
#include <arm_acle.h>
#define CRC8(crc, word) __crc32cd((uint32_t)(crc), (word))
#define CRC1(crc, byte) __crc32cb((uint32_t)(crc), (byte))
#else
#error "the ceilings need a CRC-32C instruction"
#endif

static uint32_t shift_column[32]; /* what appending `third` zero bytes makes of each bit of a CRC */
static size_t shift_bytes;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void prepare_shift(size_t bytes)
{
    for (int bit = 0; bit < 32; bit++) {
        uint64_t crc = (uint32_t)1 << bit;
        for (size_t at = 0; at < bytes; at += 8)
            crc = CRC8(crc, 0);
        shift_column[bit] = (uint32_t)crc;
    }
    shift_bytes = bytes;
}

static uint32_t shifted(uint32_t crc)
{
    uint32_t result = 0;
    for (int bit = 0; bit < 32; bit++)
        if (crc >> bit & 1)
            result ^= shift_column[bit];
    return result;
}

static uint64_t word_at(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, 8);
    return word;
}

/* CRC-32C of `size` bytes; the three streams run over equal thirds, the rest goes byte by byte.
 * A size that the shift table was not made for (the last piece of a file) takes one stream. */
static uint32_t crc32c(const uint8_t *bytes, size_t size)
{
    size_t third = size / 24 * 8 == shift_bytes ? shift_bytes : 0;
    uint64_t a = 0xFFFFFFFFu, b = 0, c = 0;
    for (size_t at = 0; at < third; at += 8) {
        a = CRC8(a, word_at(bytes + at));
        b = CRC8(b, word_at(bytes + third + at));
        c = CRC8(c, word_at(bytes + 2 * third + at));
    }
    if (third)
        a = shifted(shifted((uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)c;
    size_t at = 3 * third;
    for (; at + 8 <= size; at += 8)
        a = CRC8(a, word_at(bytes + at));
    for (; at < size; at++)
        a = CRC1(a, bytes[at]);
    return ~(uint32_t)a;
}

static int fail(const char *what)
{
    perror(what);
    return 1;
}

/* Memory at the start of a page. On some processors (AMD EPYC) the kernel copies four times slower if the target is a few bytes further
 * within its page than the source. Memory of malloc is: the bound was lower than what it bounds. */
static uint8_t *page_aligned(size_t size) { return aligned_alloc(4096, (size + 4095) / 4096 * 4096); }

static int bare_write(const char *path, size_t bytes, size_t piece)
{
    uint8_t *buffer = page_aligned(piece);
    if (!buffer)
        return fail("aligned_alloc");
    memset(buffer, 0x5A, piece);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (fd < 0)
        return fail(path);
    int64_t began = now_ns();
    for (size_t at = 0; at < bytes;) {
        size_t want = bytes - at < piece ? bytes - at : piece;
        ssize_t got = pwrite(fd, buffer, want, (off_t)at);
        if (got <= 0)
            return fail("pwrite");
        at += (size_t)got;
    }
    printf("%lld %zu 0\n", (long long)(now_ns() - began), bytes);
    return close(fd);
}

/* One file, read by all workers: each takes the next piece. */
struct reading {
    int fd;
    size_t piece;
    _Atomic int64_t next;       /* position of the next piece */
    _Atomic int64_t total;
    _Atomic uint32_t crc;
    _Atomic int failed;
    pthread_barrier_t *turn;    /* before and after each file */
    const int *more;
};

static void *read_pieces(void *argument)
{
    struct reading *reading = argument;
    uint8_t *buffer = page_aligned(reading->piece);
    if (buffer)
        memset(buffer, 0, reading->piece);
    for (;;) {
        pthread_barrier_wait(reading->turn);
        if (!*reading->more)
            break;
        for (ssize_t got = buffer ? 1 : -1; got > 0;) {
            int64_t position = atomic_fetch_add(&reading->next, (int64_t)reading->piece);
            got = pread(reading->fd, buffer, reading->piece, position);
            if (got < 0)
                reading->failed = 1;
            if (got > 0) {
                atomic_fetch_xor(&reading->crc, crc32c(buffer, (size_t)got));
                atomic_fetch_add(&reading->total, got);
            }
        }
        if (!buffer)
            reading->failed = 1;
        pthread_barrier_wait(reading->turn);
    }
    free(buffer);
    return NULL;
}

/* Nanoseconds in which the workers read the file, or -1. */
static int64_t read_file(struct reading *reading, const char *path)
{
    reading->fd = open(path, O_RDONLY);
    if (reading->fd < 0)
        return -1;
    reading->next = 0;
    int64_t began = now_ns();
    pthread_barrier_wait(reading->turn);
    pthread_barrier_wait(reading->turn);
    int64_t spent = now_ns() - began;
    close(reading->fd);
    return reading->failed ? -1 : spent;
}

static int bare_read(char **paths, int count, size_t piece, int workers)
{
    enum { WORKERS_MAX = 256 };
    pthread_t threads[WORKERS_MAX];
    pthread_barrier_t turn;
    int more = 1, status = 0;
    struct reading reading = {.piece = piece, .turn = &turn, .more = &more};
    if (workers < 1 || workers > WORKERS_MAX || pthread_barrier_init(&turn, NULL, (unsigned)workers + 1))
        return fail("workers");
    prepare_shift(piece / 24 * 8);
    for (int at = 0; at < workers; at++)
        if (pthread_create(&threads[at], NULL, read_pieces, &reading))
            exit(fail("pthread_create"));
    int64_t spent = 0;
    for (int at = 0; at < count && !status; at++) {
        int64_t one = read_file(&reading, paths[at]);
        spent += one;
        status = one < 0;
    }
    more = 0;
    pthread_barrier_wait(&turn);
    for (int at = 0; at < workers; at++)
        pthread_join(threads[at], NULL);
    if (status)
        return fail("read");
    printf("%lld %lld %u\n", (long long)spent, (long long)reading.total, reading.crc);
    return 0;
}

static int by_size(const void *a, const void *b)
{
    int64_t one = *(const int64_t *)a, other = *(const int64_t *)b;
    return (one > other) - (one < other);
}

/* The child sleeps on a futex in shared memory, or spins on it; how long after each wake does it run? The parent spins between wakes. */
static int bare_wake(int samples, int spins)
{
    struct shared { _Atomic int32_t word, seen; _Atomic int64_t sent; } *shared;
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int64_t *times = mmap(NULL, (size_t)samples * 8, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || times == MAP_FAILED)
        return fail("mmap");
    pid_t child = fork();
    for (int at = 0; at < samples && child == 0; at++) {
        while (shared->word == at)
            if (!spins)
                syscall(SYS_futex, &shared->word, FUTEX_WAIT, at, NULL, NULL, 0);
        times[at] = now_ns() - shared->sent;
        shared->seen = at + 1;
    }
    if (child == 0)
        _exit(0);
    for (int at = 0; at < samples; at++) {
        for (int64_t until = now_ns() + 500000; now_ns() < until;)
            ;
        shared->sent = now_ns();
        shared->word = at + 1;
        if (!spins)
            syscall(SYS_futex, &shared->word, FUTEX_WAKE, 1, NULL, NULL, 0);
        while (shared->seen != at + 1)
            sched_yield();
    }
    waitpid(child, NULL, 0);
    qsort(times, (size_t)samples, 8, by_size);
    printf("%lld %lld\n", (long long)times[samples / 2], (long long)times[samples * 99 / 100]);
    return 0;
}

int main(int count, char **words)
{
    if (count == 5 && !strcmp(words[1], "write"))
        return bare_write(words[2], strtoull(words[3], NULL, 10), strtoull(words[4], NULL, 10));
    if (count >= 5 && !strcmp(words[1], "read"))
        return bare_read(words + 4, count - 4, strtoull(words[2], NULL, 10), atoi(words[3]));
    if (count == 3 && !strcmp(words[1], "wake"))
        return bare_wake(atoi(words[2]), 0);
    if (count == 3 && !strcmp(words[1], "spin"))
        return bare_wake(atoi(words[2]), 1);
    if (count == 2 && !strcmp(words[1], "check")) { /* one text of 48 bytes by three streams and by one */
        const uint8_t *text = (const uint8_t *)"123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNO";
        uint32_t one = crc32c(text, 48);
        prepare_shift(16);
        printf("%08x %08x %08x\n", crc32c((const uint8_t *)"123456789", 9), one, crc32c(text, 48));
        return 0;
    }
    fprintf(stderr, "usage: bare write PATH BYTES PIECE | bare read PIECE WORKERS PATH... | bare wake SAMPLES | bare spin SAMPLES | bare check\n");
    return 2;
}
