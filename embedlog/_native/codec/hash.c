/* Hashes: Kafka's murmur2 for partitions of keys, and XXH3 for the digests of what Kafka's CRC does not cover.
 *
 * XXH3 (64 bit, default secret, a seed) is a published algorithm; this file contains only its branch for 17 .. 128 bytes. */
#include "api/native.h"

/* ---- murmur2 ------------------------------------------------------------------------------------------------ */

uint32_t el_murmur2(const uint8_t *data, size_t size) {
    const uint32_t m = 0x5bd1e995u;
    uint32_t h = 0x9747b28cu ^ (uint32_t)size;
    while (size >= 4) {
        uint32_t k = load_le32(data) * m;
        h = (h * m) ^ ((k ^ (k >> 24)) * m);
        data += 4;
        size -= 4;
    }
    if (size > 0) {
        uint32_t tail = data[0];
        if (size > 1) tail |= (uint32_t)data[1] << 8;
        if (size > 2) tail |= (uint32_t)data[2] << 16;
        h = (h ^ tail) * m;
    }
    h = (h ^ (h >> 13)) * m;
    return h ^ (h >> 15);
}

/* ---- XXH3, 17 .. 128 bytes ----------------------------------------------------------------------------------- */

#define PRIME64_1 0x9E3779B185EBCA87ull
#define PRIME_MX1 0x165667919E3779F9ull

/* The first 128 bytes of XXH3's default secret. */
static const uint8_t SECRET[128] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
};

static inline uint64_t fold(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t mix16(const uint8_t *at, const uint8_t *secret, uint64_t seed) {
    return fold(load_le64(at) ^ (load_le64(secret) + seed), load_le64(at + 8) ^ (load_le64(secret + 8) - seed));
}

uint64_t el_xxh3_64(const uint8_t *data, size_t size, uint64_t seed) {
    if (size < 17 || size > 128) return 0;
    uint64_t sum = (uint64_t)size * PRIME64_1;
    const uint8_t *end = data + size;
    size_t pairs = (size + 31) / 32; /* 1 .. 4: 16 bytes from each end per pair, outermost first */
    for (size_t i = pairs; i-- > 0;) {
        sum += mix16(data + 16 * i, SECRET + 32 * i, seed);
        sum += mix16(end - 16 * (i + 1), SECRET + 32 * i + 16, seed);
    }
    sum = (sum ^ (sum >> 37)) * PRIME_MX1;
    return sum ^ (sum >> 32);
}

uint64_t el_chain_digest(const uint8_t *batch, uint64_t digest) {
    return el_xxh3_64(batch, EL_DIGEST_SIZE, digest);
}
