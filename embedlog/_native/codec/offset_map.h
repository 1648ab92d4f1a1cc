/* What the cleaner's two halves share: records in blocks with the hashes of their keys, and what the map knows of them. */
#ifndef EMBEDLOG_OFFSET_MAP_H
#define EMBEDLOG_OFFSET_MAP_H

#include "codec/record.h"

#define EL_BLOCK_RECORDS 32 /* as many loads as a core has under way, and some; a block stays in the first cache */

typedef struct {
    el_wire_record record;
    const uint8_t *at;
    uint64_t hash[2]; /* only of a record with a key */
} el_keyed;

typedef struct {
    el_keyed records[EL_BLOCK_RECORDS];
    int32_t count;
} el_block;

int el_map_usable(const el_offset_map *map);

/* The next records of a walk, as many as a block holds; their slots are being fetched. EL_FINE, or what is wrong with the
 * record behind them. REQUIRES el_map_usable. */
int32_t el_block_take(el_block *block, const el_offset_map *map, el_walk *walk);

/* The latest offset of a key by its hash, or -1. REQUIRES el_map_usable. */
int64_t el_map_latest(const el_offset_map *map, const uint64_t hash[2]);

#endif
