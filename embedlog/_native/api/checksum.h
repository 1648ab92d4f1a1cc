/* Checksums and hashes. Read by cffi and by the C compiler alike, so there is no directive in it; the rules of api_codec.h hold. */

/* ---- CRC-32C ------------------------------------------------------------------------------------------------ */

/* CRC-32C of data, going on from crc (0 at the start). */
uint32_t el_crc32c(uint32_t crc, const uint8_t *data, size_t size);

/* CRC of a + b from crc(a), crc(b) and the size of b. */
uint32_t el_crc32c_combine(uint32_t crc1, uint32_t crc2, uint64_t size2);

/* Name of the implementation in use: "avx512-vpclmul", "sse42", "armv8" or "software". */
const char *el_crc32c_backend(void);

/* Chooses an implementation by its name, for tests; EL_EINVALID if this processor does not have it. */
int el_crc32c_select(const char *name);

/* ---- Hashes ------------------------------------------------------------------------------------------------- */

/* Kafka's murmur2 (32 bit, its seed). */
uint32_t el_murmur2(const uint8_t *data, size_t size);

/* XXH3, 64 bit, with a seed, for 17 .. 128 bytes. Returns 0 for other sizes (REQUIRES: not asked). */
uint64_t el_xxh3_64(const uint8_t *data, size_t size, uint64_t seed);

/* One step of a partition's running digest: bytes 0 .. 20 of a batch, seeded with the digest before. */
uint64_t el_chain_digest(const uint8_t *batch, uint64_t digest);
