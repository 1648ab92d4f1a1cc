/* Kafka's murmur2, which chooses the partition of a key. */
#include "api/native.h"

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
        if (size > 1) {
            tail |= (uint32_t)data[1] << 8;
        }
        if (size > 2) {
            tail |= (uint32_t)data[2] << 16;
        }
        h = (h ^ tail) * m;
    }
    h = (h ^ (h >> 13)) * m;
    return h ^ (h >> 15);
}
