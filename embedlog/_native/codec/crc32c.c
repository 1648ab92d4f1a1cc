/* CRC-32C (Castagnoli): software, the processor's CRC instruction, and folding by carry-less
 * multiplication.
 *
 * - All implementations give the same result; the fastest that this processor supports is chosen
 *   once, at load.
 * - A CRC here is finished (complemented at both ends), so results chain: crc(b) continued from
 *   crc(a) is crc(a + b). */
#include "api/native.h"

typedef uint32_t (*el_crc_function)(uint32_t crc, const uint8_t *data, size_t size);

typedef struct {
    const char *name;
    int (*usable)(void);
    void (*prepare)(void); /* fills the constants of the implementation */
    el_crc_function run;
} el_crc_backend;

/* ---- Polynomial arithmetic, bits reflected: bit 31 is x^0 ------------------------------------ */

#define POLYNOMIAL 0x82f63b78u

static uint32_t times_x(uint32_t a) { return (a >> 1) ^ (POLYNOMIAL & (0 - (a & 1))); }

/* Product modulo the polynomial. */
static uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (int bit = 31; bit >= 0; bit--) {
        product ^= b & (0 - (a >> bit & 1));
        b = times_x(b);
    }
    return product;
}

/* x^bits modulo the polynomial. */
static uint32_t power(uint64_t bits) {
    uint32_t result = 1u << 31;
    uint32_t square = 1u << 30;
    for (; bits > 0; bits >>= 1) {
        if (bits & 1) {
            result = multiply(result, square);
        }
        square = multiply(square, square);
    }
    return result;
}

uint32_t el_crc32c_combine(uint32_t crc1, uint32_t crc2, uint64_t size2) {
    /* The product has 64 bits: no buffer has 2^61 bytes. */
    return multiply(power(size2 * 8), crc1) ^ crc2;
}

/* ---- Software: eight bytes a step from eight tables ------------------------------------------ */

static uint32_t tables[8][256];

static void fill_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) {
            crc = times_x(crc);
        }
        tables[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++) {
        for (int byte = 0; byte < 256; byte++) {
            tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 0xff];
        }
    }
}

static uint32_t crc_software(uint32_t crc, const uint8_t *data, size_t size) {
    crc = ~crc;
    for (; size >= 8; size -= 8, data += 8) {
        uint64_t word = load_le64(data) ^ crc;
        crc = 0;
        for (int k = 0; k < 8; k++) {
            crc ^= tables[7 - k][word >> (8 * k) & 0xff];
        }
    }
    while (size-- > 0) {
        crc = crc >> 8 ^ tables[0][(crc ^ *data++) & 0xff];
    }
    return ~crc;
}

static int always_usable(void) { return 1; }

/* ---- Instruction: three streams at a time, as its latency is three cycles and its rate one a
 * cycle  */

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#ifdef __clang__
#define CRC_FEATURES                                                                               \
    "sse4.2,crc32" /* clang has the instruction as a feature of its own, which GCC 10 does not     \
                      know */
#else
#define CRC_FEATURES "sse4.2"
#endif
#define CRC_TARGET __attribute__((target(CRC_FEATURES)))
#define CRC_STEP_8(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC_STEP_1(crc, byte) _mm_crc32_u8((crc), (byte))
#define CRC_NAME "sse42"

/* CPUID itself: `__builtin_cpu_supports` needs data of the compiler's run-time library, which zig
 * fills with zeros. */
static unsigned leaf_1_ecx(void) {
    unsigned eax;
    unsigned ebx;
    unsigned ecx = 0;
    unsigned edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) ? ecx : 0;
}

static int instruction_usable(void) { return (leaf_1_ecx() & bit_SSE4_2) != 0; }
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define CRC_TARGET __attribute__((target("+crc")))
#define CRC_STEP_8(crc, word) __crc32cd((crc), (word))
#define CRC_STEP_1(crc, byte) __crc32cb((crc), (byte))
#define CRC_NAME "armv8"
static int instruction_usable(void) {
    return (getauxval(AT_HWCAP) >> 7 & 1) != 0; /* HWCAP_CRC32 */
}
#endif

#ifdef CRC_TARGET

/* Long pieces amortise the joining, short ones serve small batches. */
#define LONG_PIECE 4096
#define SHORT_PIECE 256

typedef uint32_t el_shift[4][256]; /* by byte of a CRC: that byte times x^(8 * piece) */

static el_shift shift_long, shift_short;

static uint32_t shift(const el_shift table, uint32_t crc) {
    return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^
           table[3][crc >> 24];
}

static void fill_shift(el_shift table, size_t piece) {
    for (int k = 0; k < 4; k++) {
        table[k][0] = 0;
        for (uint32_t bit = 1; bit < 256; bit <<= 1) {
            table[k][bit] = el_crc32c_combine(bit << (8 * k), 0, piece);
        }
        for (uint32_t byte = 1; byte < 256; byte++) {
            uint32_t lowest = byte & (0 - byte);
            table[k][byte] = table[k][lowest] ^ table[k][byte ^ lowest];
        }
    }
}

static void prepare_instruction(void) {
    fill_shift(shift_long, LONG_PIECE);
    fill_shift(shift_short, SHORT_PIECE);
}

CRC_TARGET static inline __attribute__((always_inline)) uint32_t
three_streams(uint32_t crc, const uint8_t *data, size_t piece, const el_shift table) {
    uint32_t b = 0;
    uint32_t c = 0;
    for (const uint8_t *end = data + piece; data < end; data += 8) {
        crc = CRC_STEP_8(crc, load_le64(data));
        b = CRC_STEP_8(b, load_le64(data + piece));
        c = CRC_STEP_8(c, load_le64(data + 2 * piece));
    }
    return shift(table, shift(table, crc) ^ b) ^ c;
}

CRC_TARGET static uint32_t crc_instruction(uint32_t crc, const uint8_t *data, size_t size) {
    crc = ~crc;
    for (; size >= 3 * LONG_PIECE; size -= 3 * LONG_PIECE, data += 3 * LONG_PIECE) {
        crc = three_streams(crc, data, LONG_PIECE, shift_long);
    }
    for (; size >= 3 * SHORT_PIECE; size -= 3 * SHORT_PIECE, data += 3 * SHORT_PIECE) {
        crc = three_streams(crc, data, SHORT_PIECE, shift_short);
    }
    for (; size >= 8; size -= 8, data += 8) {
        crc = CRC_STEP_8(crc, load_le64(data));
    }
    while (size-- > 0) {
        crc = CRC_STEP_1(crc, *data++);
    }
    return ~crc;
}

#endif

/* ---- Folding: 256 bytes per step, at least twice as fast as the instruction ------------------ */

/* - Bytes are folded onto later bytes: a multiplication by x^distance modulo the polynomial keeps
 *   the remainder.
 * - Folding leaves 64 bytes with the remainder of the whole; the instruction finishes them, and the
 *   tail.
 *
 * 128 bits are two polynomials of 64 bits: the first is multiplied by x^(distance + 64), the second
 * by x^distance. The product of two reflected numbers has one factor x too many, and a constant of
 * 32 bits in 64 has x^32. Hence the exponents and the shift of the constants. */

#if defined(__x86_64__)

#define FOLD_TARGET __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul," CRC_FEATURES)))
#define STEP 256
#define FOLD_SIZE_MIN 256 /* the instruction alone is faster for less */

typedef struct {
    uint64_t first;
    uint64_t second;
} el_fold;

static el_fold fold_256, fold_192, fold_128, fold_64; /* by distance in bytes */

static el_fold constants(uint64_t distance) {
    el_fold fold = {(uint64_t)power(distance * 8 + 32) << 1, (uint64_t)power(distance * 8 - 32)
                                                                 << 1};
    return fold;
}

static void prepare_folding(void) {
    prepare_instruction();
    fold_256 = constants(256);
    fold_192 = constants(192);
    fold_128 = constants(128);
    fold_64 = constants(64);
}

/* Register state that the system saves: XMM, YMM, the masks and both halves of ZMM. */
#define ZMM_STATE 0xe6u

static unsigned saved_state(void) {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static int folding_usable(void) {
    const unsigned basic = bit_SSE4_2 | bit_PCLMUL | bit_OSXSAVE;
    const unsigned wide = bit_AVX512F | bit_AVX512VL;
    unsigned eax;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx;
    if ((leaf_1_ecx() & basic) != basic || (saved_state() & ZMM_STATE) != ZMM_STATE) {
        return 0;
    }
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ebx & wide) == wide &&
           (ecx & bit_VPCLMULQDQ) != 0;
}

FOLD_TARGET static inline __m512i spread(const el_fold *fold) {
    return _mm512_broadcast_i32x4(_mm_set_epi64x((long long)fold->second, (long long)fold->first));
}

FOLD_TARGET static inline __m512i fold_onto(__m512i bytes, __m512i by, __m512i next) {
    __m512i first = _mm512_clmulepi64_epi128(bytes, by, 0x00);
    __m512i second = _mm512_clmulepi64_epi128(bytes, by, 0x11);
    return _mm512_ternarylogic_epi64(first, second, next, 0x96); /* xor of three */
}

FOLD_TARGET static uint32_t crc_folding(uint32_t crc, const uint8_t *data, size_t size) {
    if (size < FOLD_SIZE_MIN) {
        return crc_instruction(crc, data, size);
    }
    __m512i a = _mm512_loadu_si512(data);
    __m512i b = _mm512_loadu_si512(data + 64);
    __m512i c = _mm512_loadu_si512(data + 128);
    __m512i d = _mm512_loadu_si512(data + 192);
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
    /* The remainder of `rest` from a register of zeros; a finished CRC that is continued is
     * complemented at both ends. */
    crc = crc_instruction(~0u, rest, sizeof rest);
    return crc_instruction(crc, data, size);
}

#endif

/* ---- Choice of the implementation ------------------------------------------------------------ */

static const el_crc_backend fastest_first[] = {
#if defined(__x86_64__)
    {"avx512-vpclmul", folding_usable, prepare_folding, crc_folding},
#endif
#ifdef CRC_TARGET
    {CRC_NAME, instruction_usable, prepare_instruction, crc_instruction},
#endif
    {"software", always_usable, fill_tables, crc_software},
};

static el_crc_backend chosen;

/* Chooses the fastest usable implementation of this name; NULL: of any name. */
static int choose(const char *name) {
    for (size_t i = 0; i < sizeof fastest_first / sizeof *fastest_first; i++) {
        const el_crc_backend *backend = &fastest_first[i];
        if ((name && strcmp(name, backend->name) != 0) || !backend->usable()) {
            continue;
        }
        chosen = *backend;
        return EL_OK;
    }
    return EL_EINVALID;
}

__attribute__((constructor)) static void prepare_all(void) {
    for (size_t i = 0; i < sizeof fastest_first / sizeof *fastest_first; i++) {
        if (fastest_first[i].usable()) {
            fastest_first[i].prepare();
        }
    }
    choose(NULL);
}

int el_crc32c_select(const char *name) { return choose(name); }

const char *el_crc32c_backend(void) { return chosen.name; }

uint32_t el_crc32c(uint32_t crc, const uint8_t *data, size_t size) {
    return chosen.run(crc, data, size);
}
