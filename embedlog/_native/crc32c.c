/* CRC-32C (Castagnoli): the software fallback, the choice at run time, and putting two checksums together.
 *
 * C1  all implementations give one result; the fastest that this processor has is taken, once, at load
 * C2  a CRC here is the finished one (complemented at both ends), so results chain: crc(b, going on from crc(a)) */
#include "crc32c.h"

/* ---- Polynomial arithmetic, bits reflected: bit 31 is x^0 ------------------------------------------------------- */

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
uint32_t el_crc32c_power(uint64_t bits) {
    uint32_t result = 1u << 31, square = 1u << 30;
    for (; bits > 0; bits >>= 1) {
        if (bits & 1) result = multiply(result, square);
        square = multiply(square, square);
    }
    return result;
}

uint32_t el_crc32c_combine(uint32_t crc1, uint32_t crc2, uint64_t size2) {
    /* Bits wrap in 64: a size of 2^61 bytes cannot be. */
    return multiply(el_crc32c_power(size2 * 8), crc1) ^ crc2;
}

/* ---- Software: eight bytes a step from eight tables ------------------------------------------------------------- */

static uint32_t tables[8][256];

static void fill_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = times_x(crc);
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
        for (int k = 0; k < 8; k++) crc ^= tables[7 - k][word >> (8 * k) & 0xff];
    }
    while (size-- > 0) crc = crc >> 8 ^ tables[0][(crc ^ *data++) & 0xff];
    return ~crc;
}

/* ---- The choice ------------------------------------------------------------------------------------------------- */

static el_crc_function chosen = crc_software;
static const char *chosen_name = "software";

/* The first usable one of that name; NULL: of any name. */
static int select_hardware(const char *name) {
    const el_crc_backend *fastest_first[] = {el_crc32c_folding(), el_crc32c_instruction()};
    for (size_t i = 0; i < sizeof fastest_first / sizeof *fastest_first; i++) {
        const el_crc_backend *backend = fastest_first[i];
        if (!backend || (name && strcmp(name, backend->name) != 0) || !backend->usable()) continue;
        backend->prepare();
        chosen = backend->run;
        chosen_name = backend->name;
        return EL_OK;
    }
    return EL_EINVALID;
}

__attribute__((constructor)) static void choose(void) {
    fill_tables();
    select_hardware(NULL);
}

int el_crc32c_select(const char *name) {
    if (strcmp(name, "software") == 0) {
        chosen = crc_software;
        chosen_name = "software";
        return EL_OK;
    }
    return select_hardware(name);
}

const char *el_crc32c_backend(void) { return chosen_name; }

uint32_t el_crc32c(uint32_t crc, const uint8_t *data, size_t size) { return chosen(crc, data, size); }
