/* XXH3 with 64 bits, the default secret and a seed: a published algorithm, in scalar C.
 *
 * The digest of a batch header (21 bytes) is on the path of every append. Longer data are small
 * files, so no vector code is worth its size. */
#include "api/native.h"

#define PRIME32_1 0x9E3779B1u
#define PRIME32_2 0x85EBCA77u
#define PRIME32_3 0xC2B2AE3Du
#define PRIME64_1 0x9E3779B185EBCA87ull
#define PRIME64_2 0xC2B2AE3D27D4EB4Full
#define PRIME64_3 0x165667B19E3779F9ull
#define PRIME64_4 0x85EBCA77C2B2AE63ull
#define PRIME64_5 0x27D4EB2F165667C5ull
#define PRIME_MX1 0x165667919E3779F9ull
#define PRIME_MX2 0x9FB21C651E98DF25ull

enum {
    SECRET_SIZE = 192,
    LANES = 8,
    STRIPE = 8 * LANES,
    BLOCK_STRIPES = (SECRET_SIZE - STRIPE) / 8
};

/* The default secret of XXH3. */
static const uint8_t SECRET[SECRET_SIZE] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static inline uint64_t fold(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t avalanche(uint64_t sum) {
    sum = (sum ^ (sum >> 37)) * PRIME_MX1;
    return sum ^ (sum >> 32);
}

static inline uint64_t mix16(const uint8_t *at, const uint8_t *secret, uint64_t seed) {
    return fold(load_le64(at) ^ (load_le64(secret) + seed),
                load_le64(at + 8) ^ (load_le64(secret + 8) - seed));
}

/* ---- Up to 240 bytes ------------------------------------------------------------------------- */

static inline uint64_t secret_pair(size_t at) {
    return load_le64(SECRET + at) ^ load_le64(SECRET + at + 8);
}

static inline uint64_t avalanche_64(uint64_t sum) { /* of XXH64 */
    sum = (sum ^ (sum >> 33)) * PRIME64_2;
    sum = (sum ^ (sum >> 29)) * PRIME64_3;
    return sum ^ (sum >> 32);
}

static uint64_t hash_16(const uint8_t *data, size_t size, uint64_t seed) {
    if (size == 0) {
        return avalanche_64(seed ^ secret_pair(56));
    }
    if (size < 4) {
        uint64_t combined = (uint64_t)data[0] << 16 | (uint64_t)data[size / 2] << 24 |
                            data[size - 1] | (uint64_t)size << 8;
        return avalanche_64(combined ^
                            ((uint64_t)(load_le32(SECRET) ^ load_le32(SECRET + 4)) + seed));
    }
    if (size < 9) {
        seed ^= (uint64_t)__builtin_bswap32((uint32_t)seed) << 32;
        uint64_t keyed =
            ((uint64_t)load_le32(data + size - 4) + ((uint64_t)load_le32(data) << 32)) ^
            (secret_pair(8) - seed);
        keyed ^= (keyed << 49 | keyed >> 15) ^ (keyed << 24 | keyed >> 40);
        keyed *= PRIME_MX2;
        keyed = (keyed ^ ((keyed >> 35) + size)) * PRIME_MX2;
        return keyed ^ (keyed >> 28);
    }
    uint64_t low = load_le64(data) ^ (secret_pair(24) + seed);
    uint64_t high = load_le64(data + size - 8) ^ (secret_pair(40) - seed);
    return avalanche(size + __builtin_bswap64(low) + high + fold(low, high));
}

static inline uint64_t hash_128(const uint8_t *data, size_t size, uint64_t seed) {
    uint64_t sum = (uint64_t)size * PRIME64_1;
    const uint8_t *end = data + size;
    size_t pairs = (size + 31) / 32; /* 1 .. 4: 16 bytes from each end per pair, outermost first */
    for (size_t i = pairs; i-- > 0;) {
        sum += mix16(data + 16 * i, SECRET + 32 * i, seed);
        sum += mix16(end - 16 * (i + 1), SECRET + 32 * i + 16, seed);
    }
    return avalanche(sum);
}

static uint64_t hash_240(const uint8_t *data, size_t size, uint64_t seed) {
    uint64_t sum = (uint64_t)size * PRIME64_1;
    for (size_t i = 0; i < 8; i++) {
        sum += mix16(data + 16 * i, SECRET + 16 * i, seed);
    }
    sum = avalanche(sum);
    for (size_t i = 8; i < size / 16; i++) {
        sum += mix16(data + 16 * i, SECRET + 16 * (i - 8) + 3, seed);
    }
    return avalanche(sum + mix16(data + size - 16, SECRET + 136 - 17, seed));
}

/* ---- More than 240 bytes --------------------------------------------------------------------- */

static inline void add_stripe(uint64_t *lanes, const uint8_t *stripe, const uint8_t *secret) {
    for (size_t i = 0; i < LANES; i++) {
        uint64_t value = load_le64(stripe + 8 * i);
        uint64_t keyed = value ^ load_le64(secret + 8 * i);
        lanes[i ^ 1] += value;
        lanes[i] += (keyed & UINT32_MAX) * (keyed >> 32);
    }
}

static inline void scramble(uint64_t *lanes, const uint8_t *secret) {
    for (size_t i = 0; i < LANES; i++) {
        lanes[i] = (lanes[i] ^ (lanes[i] >> 47) ^ load_le64(secret + 8 * i)) * PRIME32_1;
    }
}

static uint64_t hash_long(const uint8_t *data, size_t size, const uint8_t *secret) {
    uint64_t lanes[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                             PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    size_t stripes = (size - 1) / STRIPE;
    for (size_t i = 0; i < stripes; i++) {
        add_stripe(lanes, data + STRIPE * i, secret + 8 * (i % BLOCK_STRIPES));
        if (i % BLOCK_STRIPES == BLOCK_STRIPES - 1) {
            scramble(lanes, secret + SECRET_SIZE - STRIPE);
        }
    }
    add_stripe(lanes, data + size - STRIPE, secret + SECRET_SIZE - STRIPE - 7);
    uint64_t sum = (uint64_t)size * PRIME64_1;
    for (size_t i = 0; i < LANES; i += 2) {
        sum += fold(lanes[i] ^ load_le64(secret + 11 + 8 * i),
                    lanes[i + 1] ^ load_le64(secret + 19 + 8 * i));
    }
    return avalanche(sum);
}

static uint64_t hash_long_seeded(const uint8_t *data, size_t size, uint64_t seed) {
    uint8_t secret[SECRET_SIZE];
    for (size_t i = 0; i < SECRET_SIZE; i += 16) {
        store_le64(secret + i, load_le64(SECRET + i) + seed);
        store_le64(secret + i + 8, load_le64(SECRET + i + 8) - seed);
    }
    return hash_long(data, size, secret);
}

uint64_t el_xxh3_64(const uint8_t *data, size_t size, uint64_t seed) {
    if (size <= 16) {
        return hash_16(data, size, seed);
    }
    if (size <= 128) {
        return hash_128(data, size, seed);
    }
    if (size <= 240) {
        return hash_240(data, size, seed);
    }
    return seed ? hash_long_seeded(data, size, seed) : hash_long(data, size, SECRET);
}

uint64_t el_chain_digest(const uint8_t *batch, uint64_t digest) {
    return hash_128(batch, EL_DIGEST_SIZE, digest);
}
