/* The latest offset of every key: open addressing in memory of fixed size.
 *
 * - A slot is 16 bytes of hash and 8 of offset + 1; a free slot has zero there.
 * - Keys are compared by their hash only, so the hash has a secret seed: a collision cannot be
 *   constructed.
 * - The table is never full (limit < capacity), so every search ends.
 * - The table is larger than any cache: records are processed in blocks, and the slots of a block
 *   are prefetched during hashing. */
#include "codec/offset_map.h"

/* ---- SipHash-2-4, 128 bits (a published algorithm) ------------------------------------------- */

typedef struct {
    uint64_t a, b, c, d;
} el_sip;

INLINE uint64_t rotated(uint64_t x, int by) { return x << by | x >> (64 - by); }

INLINE void sip_round(el_sip *s) {
    s->a += s->b;
    s->c += s->d;
    s->b = rotated(s->b, 13) ^ s->a;
    s->d = rotated(s->d, 16) ^ s->c;
    s->a = rotated(s->a, 32);
    s->c += s->b;
    s->a += s->d;
    s->b = rotated(s->b, 17) ^ s->c;
    s->d = rotated(s->d, 21) ^ s->a;
    s->c = rotated(s->c, 32);
}

INLINE void sip_take(el_sip *s, uint64_t word) {
    s->d ^= word;
    sip_round(s);
    sip_round(s);
    s->a ^= word;
}

INLINE uint64_t sip_end(el_sip *s) {
    for (int i = 0; i < 4; i++) {
        sip_round(s);
    }
    return s->a ^ s->b ^ s->c ^ s->d;
}

static void hash_key(const uint64_t seed[2], const uint8_t *key, int64_t size, uint64_t out[2]) {
    el_sip s = {seed[0] ^ 0x736f6d6570736575ull, seed[1] ^ 0x646f72616e646f6dull ^ 0xee,
                seed[0] ^ 0x6c7967656e657261ull, seed[1] ^ 0x7465646279746573ull};
    int64_t at = 0;
    for (; at + 8 <= size; at += 8) {
        sip_take(&s, load_le64(key + at));
    }
    uint64_t last = (uint64_t)size << 56;
    for (int shift = 0; at < size; at++, shift += 8) {
        last |= (uint64_t)key[at] << shift;
    }
    sip_take(&s, last);
    s.c ^= 0xee;
    out[0] = sip_end(&s);
    s.b ^= 0xdd;
    out[1] = sip_end(&s);
}

/* ---- slots ----------------------------------------------------------------------------------- */

typedef struct {
    uint64_t hash[2];
    int64_t offset_and_one;
} el_slot;

_Static_assert(sizeof(el_slot) == EL_MAP_SLOT_BYTES, "a slot has the declared size");

/* Finds the slot of the key, or the free slot for it; `slot` gets its content. */
static uint8_t *slot_of(const el_offset_map *map, const uint64_t hash[2], el_slot *slot) {
    uint64_t mask = (uint64_t)map->capacity - 1;
    for (uint64_t number = hash[0] & mask;; number = (number + 1) & mask) {
        uint8_t *place = map->slots + number * EL_MAP_SLOT_BYTES;
        memcpy(slot, place, sizeof *slot);
        if (slot->offset_and_one == 0 || (slot->hash[0] == hash[0] && slot->hash[1] == hash[1])) {
            return place;
        }
    }
}

static int64_t offset_of(const el_offset_map *map, const uint64_t hash[2]) {
    el_slot slot;
    slot_of(map, hash, &slot);
    return slot.offset_and_one - 1;
}

const uint8_t *el_plain_batch(const el_batch *batch, const uint8_t *data, int64_t size,
                              int64_t base) {
    int64_t at = batch->position - base;
    if (batch->size < EL_HEADER_SIZE || at < 0 || at > size - batch->size) {
        return NULL;
    }
    return (batch->attributes & CODEC_MASK) || batch->magic != MAGIC ? NULL : data + at;
}

int el_map_usable(const el_offset_map *map) {
    return map->capacity > 0 && (map->capacity & (map->capacity - 1)) == 0 &&
           map->limit < map->capacity && map->count <= map->limit;
}

int64_t el_map_find(const el_offset_map *map, const uint8_t *key, int64_t size) {
    uint64_t hash[2];
    if (!el_map_usable(map) || size < 0) {
        return -1;
    }
    hash_key(map->seed, key, size, hash);
    return offset_of(map, hash);
}

int64_t el_map_latest(const el_offset_map *map, const uint64_t hash[2]) {
    return offset_of(map, hash);
}

static int put(el_offset_map *map, const uint64_t hash[2], int64_t offset) {
    el_slot slot;
    uint8_t *place = slot_of(map, hash, &slot);
    if (slot.offset_and_one == 0) {
        if (map->count == map->limit) {
            return EL_ESPACE;
        }
        slot.hash[0] = hash[0];
        slot.hash[1] = hash[1];
        map->count++;
    }
    if (offset >= slot.offset_and_one) {
        slot.offset_and_one = offset + 1;
    }
    memcpy(place, &slot, sizeof slot);
    return EL_OK;
}

/* ---- records --------------------------------------------------------------------------------- */

int32_t el_block_take(el_block *block, const el_offset_map *map, el_walk *shared) {
    uint64_t mask = (uint64_t)map->capacity - 1;
    el_walk walk = *shared;
    int32_t what = EL_FINE;
    for (block->count = 0; walk.taken < walk.records && block->count < EL_BLOCK_RECORDS;
         block->count++) {
        el_keyed *keyed = &block->records[block->count];
        keyed->at = walk.at;
        what = walk_next(&walk, &keyed->record, EL_MEASURED);
        if (what) {
            break;
        }
        if (keyed->record.key_size >= 0) {
            hash_key(map->seed, keyed->record.key, keyed->record.key_size, keyed->hash);
            __builtin_prefetch(map->slots + (keyed->hash[0] & mask) * EL_MAP_SLOT_BYTES);
        }
    }
    *shared = walk;
    return what;
}

int el_map_add(el_offset_map *map, const el_batch *batch, const uint8_t *body, int64_t body_size,
               int64_t start_offset, el_problem *problem) {
    el_walk walk;
    el_block block;
    if (!el_map_usable(map)) {
        return EL_EINVALID;
    }
    int32_t what = walk_begin(&walk, batch, body, body_size);
    if (what) {
        return walk_fail(problem, walk, what);
    }
    while (walk.taken < walk.records) {
        what = el_block_take(&block, map, &walk);
        if (what) {
            return walk_fail(problem, walk, what);
        }
        for (int32_t i = 0; i < block.count; i++) {
            const el_wire_record *record = &block.records[i].record;
            int64_t offset = batch->base_offset + record->offset_delta;
            if (offset < start_offset) {
                continue;
            }
            if (record->key_size >= 0 && put(map, block.records[i].hash, offset) < 0) {
                return EL_ESPACE;
            }
            if (offset > map->latest) {
                map->latest = offset;
            }
        }
    }
    what = walk_end(&walk);
    return what ? walk_fail(problem, walk, what) : EL_OK;
}

int el_map_add_run(el_offset_map *map, const uint8_t *data, int64_t size, int64_t base,
                   const el_batch *batches, int64_t batch_count, int64_t start_offset,
                   int64_t *done, el_problem *problem) {
    for (*done = 0; *done < batch_count; ++*done) {
        const el_batch *batch = &batches[*done];
        const uint8_t *at = el_plain_batch(batch, data, size, base);
        if (!at) {
            return EL_EINVALID;
        }
        int result = el_map_add(map, batch, at + EL_HEADER_SIZE, batch->size - EL_HEADER_SIZE,
                                start_offset, problem);
        if (result < 0) {
            return result;
        }
    }
    return EL_OK;
}
