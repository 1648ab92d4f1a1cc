/* Partitions of keys: murmur2 over a column, and the rows of each partition grouped. */
#include "codec/varint.h"

int el_partitions(const el_bytes *keys, int64_t partitions, int32_t *out) {
    if (partitions <= 0 || partitions > INT64_C(1) + INT32_MAX) {
        return EL_EINVALID;
    }
    for (int64_t row = 0; row < keys->count; row++) {
        if (bytes_is_null(keys, row)) {
            out[row] = -1;
            continue;
        }
        int64_t start = bytes_offset(keys, row);
        int64_t end = bytes_offset(keys, row + 1);
        if (start < 0 || end < start || end > keys->data_size) {
            return EL_EINVALID;
        }
        uint32_t hash = el_murmur2(keys->data + start, (size_t)(end - start)) & 0x7fffffffu;
        out[row] = (int32_t)(hash % (uint32_t)partitions);
    }
    return EL_OK;
}

int64_t el_group_rows(const int32_t *numbers, int64_t count, int32_t partitions, int64_t *rows,
                      int64_t *starts) {
    for (int32_t p = 0; p <= partitions; p++) {
        starts[p] = 0;
    }
    for (int64_t row = 0; row < count; row++) {
        if (numbers[row] < -1 || numbers[row] >= partitions) {
            return EL_EINVALID;
        }
        starts[numbers[row] + 1] += numbers[row] >= 0;
    }
    for (int32_t p = 0; p < partitions; p++) {
        starts[p + 1] += starts[p];
    }
    /* Now starts[p] is the end of p's rows, which was the start of p + 1: the shift restores the
     * starts. */
    for (int64_t row = 0; row < count; row++) {
        if (numbers[row] >= 0) {
            rows[starts[numbers[row]]++] = row;
        }
    }
    int64_t placed = partitions > 0 ? starts[partitions - 1] : 0;
    for (int32_t p = partitions; p > 0; p--) {
        starts[p] = starts[p - 1];
    }
    starts[0] = 0;
    return placed;
}
