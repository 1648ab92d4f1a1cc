/* Between crc32c.c and the files with processor instructions. */
#ifndef EMBEDLOG_CRC32C_H
#define EMBEDLOG_CRC32C_H

#include "native.h"

typedef uint32_t (*el_crc_function)(uint32_t crc, const uint8_t *data, size_t size);

typedef struct {
    const char *name;
    int (*usable)(void);
    void (*prepare)(void); /* fills the implementation's constants; may be called again */
    el_crc_function run;
} el_crc_backend;

/* By the processor's CRC instruction, and by folding with wide carry-less multiplication; NULL on machines of another kind. */
const el_crc_backend *el_crc32c_instruction(void);
const el_crc_backend *el_crc32c_folding(void);

/* x^bits modulo the polynomial, bits reflected. */
uint32_t el_crc32c_power(uint64_t bits);

#endif
