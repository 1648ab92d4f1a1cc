/* Declarations for every C file: the `api` headers, and access to integers in byte streams.
 *
 * - Integers in a byte stream or in a foreign buffer go through load_* and store_*, at any address:
 *   never through a pointer cast.
 * - No allocation, no errno across the interface, no state except tables: the caller owns every
 *   buffer. */
#ifndef EMBEDLOG_NATIVE_H
#define EMBEDLOG_NATIVE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "api/checksum.h"
#include "api/codec.h"
#include "api/compact.h"
#include "api/digests.h"
#include "api/heartbeat.h"
#include "api/log.h"
#include "api/point.h"
#include "api/probe.h"
#include "api/replica.h"
#include "api/search.h"
#include "api/system.h"
#include "api/wait.h"
#ifdef EMBEDLOG_TEST_BUILD
#include "api/testing.h"
#endif

#define EL_LIKELY(x) __builtin_expect(!!(x), 1)
#define EL_UNLIKELY(x) __builtin_expect(!!(x), 0)

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define EL_BE16(x) __builtin_bswap16(x)
#define EL_BE32(x) __builtin_bswap32(x)
#define EL_BE64(x) __builtin_bswap64(x)
#define EL_LE32(x) (x)
#define EL_LE64(x) (x)
#else
#define EL_BE16(x) (x)
#define EL_BE32(x) (x)
#define EL_BE64(x) (x)
#define EL_LE32(x) __builtin_bswap32(x)
#define EL_LE64(x) __builtin_bswap64(x)
#endif

static inline uint16_t load_be16(const uint8_t *at) {
    uint16_t x;
    memcpy(&x, at, sizeof x);
    return EL_BE16(x);
}
static inline uint32_t load_be32(const uint8_t *at) {
    uint32_t x;
    memcpy(&x, at, sizeof x);
    return EL_BE32(x);
}
static inline uint64_t load_be64(const uint8_t *at) {
    uint64_t x;
    memcpy(&x, at, sizeof x);
    return EL_BE64(x);
}
static inline uint32_t load_le32(const uint8_t *at) {
    uint32_t x;
    memcpy(&x, at, sizeof x);
    return EL_LE32(x);
}
static inline uint64_t load_le64(const uint8_t *at) {
    uint64_t x;
    memcpy(&x, at, sizeof x);
    return EL_LE64(x);
}
static inline void store_le64(uint8_t *at, uint64_t x) {
    x = EL_LE64(x);
    memcpy(at, &x, sizeof x);
}

/* Numbers in the byte order of the machine: Arrow's offsets. Another thread may write them, so each
 * is read from memory once (the asm hides the register from the compiler). The checked value is the
 * used value. */
static inline int32_t load_i32(const void *at) {
    int32_t x;
    memcpy(&x, at, sizeof x);
    __asm__("" : "+r"(x));
    return x;
}
static inline int64_t load_i64(const void *at) {
    int64_t x;
    memcpy(&x, at, sizeof x);
    __asm__("" : "+r"(x));
    return x;
}

static inline void store_be16(uint8_t *at, uint16_t x) {
    x = EL_BE16(x);
    memcpy(at, &x, sizeof x);
}
static inline void store_be32(uint8_t *at, uint32_t x) {
    x = EL_BE32(x);
    memcpy(at, &x, sizeof x);
}
static inline void store_be64(uint8_t *at, uint64_t x) {
    x = EL_BE64(x);
    memcpy(at, &x, sizeof x);
}

#endif
