/* The bytes of one record: sizes and encoding. */
#ifndef EL_ENCODE_RECORD_H
#define EL_ENCODE_RECORD_H

#include "codec/varint.h"
#include "objects/producer.h"
#include "objects/record.h"

/* Size of the record after its length field. */
int64_t el_item_size(const el_item *item, int64_t timestamp_delta, int32_t offset_delta);

/* Writes length field and record; returns the byte after it. REQUIRES: memory, and size =
 * el_item_size(...). */
uint8_t *el_item_write(const el_item *item, int64_t size, int64_t timestamp_delta,
                       int32_t offset_delta, uint8_t *out);

#endif
