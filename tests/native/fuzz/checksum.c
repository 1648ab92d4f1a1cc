/* Checksums and hashes: one result by every implementation, whole, in parts and put together. */
#include "fuzz.h"

static const char *const names[] = {"software", "sse42", "armv8", "avx512-vpclmul"};

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    size_t split = (size_t)take_raw(&in, 2);
    uint32_t start = take_byte(&in) & 1 ? (uint32_t)take_raw(&in, 4) : 0;
    uint64_t seed = take_raw(&in, 8);
    uint8_t *data = take_rest(&in);
    if (split > in.size) split = in.size;
    el_crc32c_select(names[0]);
    uint32_t expected = el_crc32c(start, data, in.size);
    for (size_t i = 1; i < sizeof names / sizeof *names; i++) {
        if (el_crc32c_select(names[i]) != EL_OK) continue;
        DEMAND(el_crc32c(start, data, in.size) == expected);
        DEMAND(el_crc32c(el_crc32c(start, data, split), data + split, in.size - split) == expected);
    }
    el_crc32c_select(names[0]);
    uint32_t first = el_crc32c(start, data, split), second = el_crc32c(0, data + split, in.size - split);
    DEMAND(el_crc32c_combine(first, second, in.size - split) == expected);
    el_murmur2(data, in.size);
    el_xxh3_64(data, in.size, seed);
    if (in.size >= EL_DIGEST_SIZE) DEMAND(el_chain_digest(data, seed) == el_xxh3_64(data, EL_DIGEST_SIZE, seed));
    free(data);
    return 0;
}
