/* CRC-32C by the processor's own instruction, three streams at a time: its latency is three cycles, its rate one a cycle.
 *
 * The streams' checksums are put together by multiplying with powers of x, which tables by byte make cheap. */
#include "crc32c.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#define CRC_TARGET __attribute__((target("sse4.2")))
#define CRC_STEP_8(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC_STEP_1(crc, byte) _mm_crc32_u8((crc), (byte))
#define CRC_NAME "sse42"
static int crc_usable(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define CRC_TARGET __attribute__((target("+crc")))
#define CRC_STEP_8(crc, word) __crc32cd((crc), (word))
#define CRC_STEP_1(crc, byte) __crc32cb((crc), (byte))
#define CRC_NAME "armv8"
static int crc_usable(void) { return (getauxval(AT_HWCAP) >> 7 & 1) != 0; /* HWCAP_CRC32 */ }
#endif

#ifdef CRC_TARGET

/* Long pieces amortise the joining, short ones serve small batches. */
#define LONG_PIECE 4096
#define SHORT_PIECE 256

typedef uint32_t el_shift[4][256]; /* by byte of a CRC: that byte times x^(8 * piece) */

static el_shift shift_long, shift_short;

static uint32_t shift(const el_shift table, uint32_t crc) {
    return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^ table[3][crc >> 24];
}

static void fill_shift(el_shift table, size_t piece) {
    for (int k = 0; k < 4; k++) {
        table[k][0] = 0;
        for (uint32_t bit = 1; bit < 256; bit <<= 1) table[k][bit] = el_crc32c_combine(bit << (8 * k), 0, piece);
        for (uint32_t byte = 1; byte < 256; byte++) {
            uint32_t lowest = byte & (0 - byte);
            table[k][byte] = table[k][lowest] ^ table[k][byte ^ lowest];
        }
    }
}

static void crc_prepare(void) {
    fill_shift(shift_long, LONG_PIECE);
    fill_shift(shift_short, SHORT_PIECE);
}

CRC_TARGET static inline __attribute__((always_inline)) uint32_t three_streams(uint32_t crc, const uint8_t *data, size_t piece,
                                                                              const el_shift table) {
    uint32_t b = 0, c = 0;
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
    for (; size >= 8; size -= 8, data += 8) crc = CRC_STEP_8(crc, load_le64(data));
    while (size-- > 0) crc = CRC_STEP_1(crc, *data++);
    return ~crc;
}

static const el_crc_backend backend = {CRC_NAME, crc_usable, crc_prepare, crc_instruction};

const el_crc_backend *el_crc32c_instruction(void) { return &backend; }

#else

const el_crc_backend *el_crc32c_instruction(void) { return NULL; }

#endif
