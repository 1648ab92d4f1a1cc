/* Search of a byte string in buffers and columns. No preprocessor directive in here: cffi and the C
 * compiler read the same text. The rules of codec.h apply. */

/* Position of the first occurrence of needle in data, or -1. With fold, ASCII letters match in both
 * cases; then the needle is in lower case. REQUIRES: needle_size > 0. */
int64_t el_find(const uint8_t *data, size_t size, const uint8_t *needle, size_t needle_size,
                int fold);

/* Marks the rows that contain the needle: found[row] = 1, other bytes are kept. Row r is
 * data[offsets[r]] up to data[offsets[r + 1]]. Returns the number of rows that contain it.
 * EL_EINVALID: the offsets decrease, or exceed size. REQUIRES: count + 1 offsets, count bytes in
 * found, needle_size > 0, no change of the arrays during the call; fold as in el_find. */
int64_t el_find_rows(const uint8_t *data, size_t size, const int32_t *offsets, int64_t count,
                     const uint8_t *needle, size_t needle_size, int fold, uint8_t *found);
