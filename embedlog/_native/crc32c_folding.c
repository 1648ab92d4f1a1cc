/* CRC-32C by carry-less multiplication, 256 bytes a step: twice and more as fast as the processor's own instruction.
 *
 * F1  bytes are folded onto those that follow: multiplied by x^distance modulo the polynomial, which leaves the remainder as it was
 * F2  what is left after folding is 64 bytes with the remainder of the whole; the instruction finishes them, and the tail
 *
 * A lane of 128 bits is two polynomials of 64 bits, the first to be multiplied by x^(distance + 64), the second by x^distance. The product
 * of two reflected words has x^1 too much, and a constant of 32 bits in a word of 64 x^32: hence the constants' exponents and shift. */
#include "crc32c.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define FOLD_TARGET __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2")))
#define STEP 256
#define FOLD_SIZE_MIN 256 /* below, the instruction alone is faster */

typedef struct {
    uint64_t first;
    uint64_t second;
} el_fold;

static el_fold fold_256, fold_192, fold_128, fold_64; /* by distance in bytes */

static el_fold constants(uint64_t distance) {
    el_fold fold = {(uint64_t)el_crc32c_power(distance * 8 + 32) << 1, (uint64_t)el_crc32c_power(distance * 8 - 32) << 1};
    return fold;
}

static void prepare(void) {
    el_crc32c_instruction()->prepare();
    fold_256 = constants(256);
    fold_192 = constants(192);
    fold_128 = constants(128);
    fold_64 = constants(64);
}

FOLD_TARGET static int usable(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("vpclmulqdq")
        && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.2");
}

FOLD_TARGET static inline __m512i spread(const el_fold *fold) {
    return _mm512_broadcast_i32x4(_mm_set_epi64x((long long)fold->second, (long long)fold->first));
}

FOLD_TARGET static inline __m512i fold_onto(__m512i bytes, __m512i by, __m512i next) {
    __m512i first = _mm512_clmulepi64_epi128(bytes, by, 0x00), second = _mm512_clmulepi64_epi128(bytes, by, 0x11);
    return _mm512_ternarylogic_epi64(first, second, next, 0x96); /* xor of three */
}

FOLD_TARGET static uint32_t run(uint32_t crc, const uint8_t *data, size_t size) {
    if (size < FOLD_SIZE_MIN) return el_crc32c_instruction()->run(crc, data, size);
    __m512i a = _mm512_loadu_si512(data), b = _mm512_loadu_si512(data + 64);
    __m512i c = _mm512_loadu_si512(data + 128), d = _mm512_loadu_si512(data + 192);
    const __m512i by = spread(&fold_256);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    for (data += STEP, size -= STEP; size >= STEP; data += STEP, size -= STEP) {
        a = fold_onto(a, by, _mm512_loadu_si512(data));
        b = fold_onto(b, by, _mm512_loadu_si512(data + 64));
        c = fold_onto(c, by, _mm512_loadu_si512(data + 128));
        d = fold_onto(d, by, _mm512_loadu_si512(data + 192));
    }
    d = fold_onto(a, spread(&fold_192), d);
    d = fold_onto(b, spread(&fold_128), d);
    d = fold_onto(c, spread(&fold_64), d);
    uint8_t rest[64];
    _mm512_storeu_si512(rest, d);
    /* The remainder of `rest` from a register of zeroes; a finished CRC that goes on is complemented at both ends. */
    crc = el_crc32c_instruction()->run(~0u, rest, sizeof rest);
    return el_crc32c_instruction()->run(crc, data, size);
}

static const el_crc_backend backend = {"avx512-vpclmul", usable, prepare, run};

const el_crc_backend *el_crc32c_folding(void) { return &backend; }

#else

const el_crc_backend *el_crc32c_folding(void) { return NULL; }

#endif
