/* Checksums and hashes. No preprocessor directive in here: cffi and the C compiler read the same
 * text. The rules of codec.h apply. */

/* ---- CRC-32C --------------------------------------------------------------------------------- */

/* CRC-32C of data, continued from crc (0 at the start). */
uint32_t el_crc32c(uint32_t crc, const uint8_t *data, size_t size);

/* CRC of a + b from crc(a), crc(b) and the size of b. */
uint32_t el_crc32c_combine(uint32_t crc1, uint32_t crc2, uint64_t size2);

/* Name of the implementation in use: "avx512-vpclmul", "sse42", "armv8" or "software". */
const char *el_crc32c_backend(void);

/* Selects an implementation by its name, for tests. EL_EINVALID: this processor does not support
 * it. */
int el_crc32c_select(const char *name);

/* ---- Hashes ---------------------------------------------------------------------------------- */

/* Kafka's murmur2 (32 bit, its seed). */
uint32_t el_murmur2(const uint8_t *data, size_t size);

/* XXH3 with 64 bits, the default secret and a seed. */
uint64_t el_xxh3_64(const uint8_t *data, size_t size, uint64_t seed);

/* One step of a partition's running digest: XXH3 of bytes 0 .. 20 of a batch, seeded with the
 * previous digest. */
uint64_t el_chain_digest(const uint8_t *batch, uint64_t digest);
