/* Declarations shared by the fuzz harnesses. Bytes are read from the front of an input and numbers from its end, so that a file of a
 * real log is a seed. */
#ifndef EMBEDLOG_FUZZ_H
#define EMBEDLOG_FUZZ_H

#include "codec/batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEMAND(x)                                                                          \
    do {                                                                                   \
        if (!(x)) {                                                                        \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #x);         \
            abort();                                                                       \
        }                                                                                  \
    } while (0)

typedef struct {
    const uint8_t *data;
    size_t size;
} input;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline uint8_t take_byte(input *in) { return in->size ? in->data[--in->size] : 0; }

static inline uint64_t take_raw(input *in, int bytes) {
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++) number = number << 8 | take_byte(in);
    return number;
}

/* Any number: a small one, one at a border, or eight bytes as they come. */
static inline int64_t take_number(input *in) {
    static const int64_t borders[] = {0, -1, 1, INT32_MAX, (int64_t)INT32_MAX + 1, INT32_MIN, INT64_MAX, INT64_MAX - 1, INT64_MIN,
                                      LOG_OFFSET_MAX, LOG_OFFSET_MAX + 1, 1 << 20};
    uint8_t kind = take_byte(in);
    if (kind < 96) return kind;
    if (kind < 192) return borders[kind % (sizeof borders / sizeof *borders)];
    return (int64_t)take_raw(in, 8);
}

/* The bytes that are left, in memory of exactly their size. */
static inline uint8_t *take_rest(const input *in) {
    uint8_t *own = malloc(in->size + !in->size);
    DEMAND(own);
    if (in->size) memcpy(own, in->data, in->size);
    return own;
}

/* Corrects magic, sizes and checksums of batches, so that only later fields are damaged. */
static inline void mend(uint8_t *data, size_t size) {
    while (size >= EL_HEADER_SIZE) {
        int64_t whole = (int64_t)(int32_t)load_be32(data + SIZE_AT) + AFTER_SIZE;
        if (whole < EL_HEADER_SIZE || whole > (int64_t)size) whole = (int64_t)size;
        store_be32(data + SIZE_AT, (uint32_t)(whole - AFTER_SIZE));
        data[MAGIC_AT] = MAGIC;
        store_be32(data + CRC_AT, el_crc32c(0, data + CRC_FROM, (size_t)whole - CRC_FROM));
        data += whole;
        size -= (size_t)whole;
    }
}

/* A file in memory with these bytes; the descriptor is used again and again. */
static inline int file_of(const uint8_t *data, size_t size) {
    static int fd = -1;
    if (fd < 0) fd = memfd_create("fuzz", MFD_CLOEXEC);
    DEMAND(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    return fd;
}

typedef struct {
    el_columns columns;
    int64_t starts[11];
    uint8_t *memory;
} destination;

/* Columns for the largest possible count of records and bytes, in memory of exactly their size. */
static inline void destination_make(destination *made, int32_t wanted, int64_t records, int64_t body_size) {
    memset(made, 0, sizeof *made);
    int64_t size = el_lay_out(&made->columns, wanted, records, body_size, NULL, made->starts);
    DEMAND(posix_memalign((void **)&made->memory, 64, (size_t)size + !size) == 0);
    el_lay_out(&made->columns, wanted, records, body_size, made->memory, made->starts);
}

#endif
