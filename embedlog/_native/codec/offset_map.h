/* Declarations shared by offset_map.c and compact.c: blocks of records with the hashes of their
 * keys, and lookups. */
#ifndef EMBEDLOG_OFFSET_MAP_H
#define EMBEDLOG_OFFSET_MAP_H

#include "codec/record.h"

#define EL_BLOCK_RECORDS                                                                           \
    32 /* slightly more than the parallel loads of a core; a block fits into the first cache */

typedef struct {
    el_wire_record record;
    const uint8_t *at;
    uint64_t hash[2]; /* only of a record with a key */
} el_keyed;

typedef struct {
    el_keyed records[EL_BLOCK_RECORDS];
    int32_t count;
} el_block;

/* The first byte of an uncompressed batch: data + batch->position - base. NULL: it is compressed,
 * of an old format, or not inside. */
const uint8_t *el_plain_batch(const el_batch *batch, const uint8_t *data, int64_t size,
                              int64_t base);

int el_map_usable(const el_offset_map *map);

/* Takes the next records of a walk, at most a block, and prefetches their slots. EL_FINE, or the
 * error of the next record. REQUIRES: el_map_usable. */
int32_t el_block_take(el_block *block, const el_offset_map *map, el_walk *walk);

/* The latest offset of a key by its hash, or -1. REQUIRES: el_map_usable. */
int64_t el_map_latest(const el_offset_map *map, const uint64_t hash[2]);

#endif
