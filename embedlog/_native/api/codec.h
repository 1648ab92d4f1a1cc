/* The codec half of the native contract: record batches, index search.
 *
 * Read by cffi and by the C compiler alike, so there is no directive in it.
 * Every function returns >= 0, or one of the negative codes; none allocates; the caller owns every buffer;
 * "size" is in bytes, "count" in items, "position" a byte, "offset" a logical offset. All are safe in any number
 * of threads as long as no two write one buffer. */

enum el_code {
    EL_OK = 0,
    EL_ECORRUPT = -2, /* the bytes break the format: el_problem says where */
    EL_EMORE = -3,    /* the input ends too early */
    EL_ESPACE = -4,   /* the output is too small */
    EL_EINVALID = -5, /* an argument breaks the contract */
    EL_ECHANGED = -6  /* the input changed while it was read */
};

enum el_layout {
    EL_HEADER_SIZE = 61,      /* bytes of a batch header, magic 2 */
    EL_DIGEST_SIZE = 21,      /* bytes 0 .. 20, which Kafka's CRC does not cover */
    EL_RECORD_SIZE_MIN = 7,   /* length, attributes, timestamp, offset, key length, value length, header count */
    EL_INDEX_ENTRY_SIZE = 8,
    EL_TIME_ENTRY_SIZE = 12,
    EL_DIGEST_RECORD_SIZE = 16 /* one for each offset index entry, in a file of ours */
};

/* What el_problem.what says is wrong. */
enum el_what {
    EL_FINE = 0,
    EL_BAD_SIZE = 1,       /* the size field is smaller than a header or larger than allowed */
    EL_BAD_MAGIC = 2,
    EL_BAD_CRC = 3,
    EL_BAD_COUNT = 4,      /* records and lastOffsetDelta contradict each other or the size */
    EL_BAD_OFFSET = 5,     /* base offset is not what must follow */
    EL_BAD_EPOCH = 6,      /* the leader epoch falls */
    EL_LEGACY = 7,         /* magic 0 or 1: no error, but not for this function */
    EL_BAD_VARINT = 8,
    EL_BAD_RECORD_SIZE = 9,   /* a record's declared size is not what its fields take */
    EL_BAD_LENGTH = 10,       /* a key's, value's or header's length points outside the record */
    EL_BAD_HEADER_COUNT = 11,
    EL_SURPLUS = 12,       /* bytes behind the last record of a batch */
    EL_BAD_DELTA = 13,     /* offset delta outside 0 .. lastOffsetDelta */
    EL_BAD_TOTAL = 14,     /* more than 2 GiB of keys or values: decode fewer batches at once */
    EL_BAD_DIGEST = 15,    /* the heads of the batches are not those that were written */
    EL_BAD_RANGE = 16      /* a batch has offsets that its segment cannot hold; expected is the bound that it passes */
};

/* One batch header, in the byte order of the machine. numpy sees the same 80 bytes as record.BATCH. */
typedef struct {
    int64_t position;
    int32_t size;
    int32_t leader_epoch;
    int64_t base_offset;
    int64_t base_timestamp;
    int64_t max_timestamp;
    int64_t min_timestamp;    /* no record of it is older; -1: not known. A sealer knows it, a header only proves it sometimes */
    int64_t producer_id;
    int32_t last_offset_delta;
    int32_t base_sequence;
    int32_t records;
    int16_t attributes;
    int16_t producer_epoch;
    int8_t magic, pad[3];
    uint32_t crc;
} el_batch;

typedef struct {
    int64_t position; /* byte within the given buffer */
    int64_t expected;
    int64_t found;
    int32_t what;     /* enum el_what */
    int32_t record;   /* number of the record within its batch, or -1 */
} el_problem;

/* ---- Columns of byte strings (Arrow's layout) ---------------------------------------------------------------- */

typedef struct {
    const uint8_t *data;
    const void *offsets;      /* count + 1 of int32_t or int64_t; NULL: the column is absent */
    const uint8_t *validity;  /* bit set = not null; NULL: no nulls */
    int64_t data_size;
    int64_t validity_offset;  /* in bits */
    int64_t count;
    int32_t offset_width;     /* 4 or 8 */
    int32_t pad;
} el_bytes;

/* Partition of every key: (murmur2 & 0x7fffffff) % partitions; -1 for null. EL_EINVALID if offsets are not rising within the data. */
int el_partitions(const el_bytes *keys, int64_t partitions, int32_t *out);

/* Groups rows by partition number (stable): rows[starts[p] .. starts[p + 1]) are the rows of p; starts has partitions + 1 places.
 * Rows numbered -1 are left out. Returns the count of rows placed, or EL_EINVALID for a number outside 0 .. partitions - 1. */
int64_t el_group_rows(const int32_t *numbers, int64_t count, int32_t partitions, int64_t *rows, int64_t *starts);

/* ---- Encoding ------------------------------------------------------------------------------------------------ */

typedef struct {
    el_bytes values;
    el_bytes keys;               /* offsets NULL: all keys are null */
    el_bytes header_keys;
    el_bytes header_values;
    const int32_t *header_starts; /* row r has the headers header_starts[r] .. header_starts[r + 1]; NULL: none */
    const int64_t *timestamps;   /* one a row, or NULL: `timestamp` for all */
    const int64_t *selection;    /* row numbers to encode in this order, or NULL: all rows */
    int64_t timestamp;
    int64_t rows;                /* rows of every column that is there */
    int64_t count;               /* rows to encode: length of the selection, or `rows` */
    int64_t next;                /* in and out: first row (place in the selection) not yet encoded */
    int64_t need;                /* out: with EL_ESPACE, bytes that the next record's batch takes */
    int64_t batch_bytes;         /* a batch is at most this large, unless one record alone is larger */
    int32_t attributes;          /* of the batch header */
    int32_t pad;
} el_encoder;

/* Encodes rows from encoder->next on as consecutive batches into out. base offsets count the rows from this call's first, epoch is 0,
 * producer fields are -1, the CRC is set. A further batch is begun only if batch_bytes are left in out.
 * Fills one el_batch each, at most batch_capacity. Returns the size written and sets *batch_count; EL_ESPACE (encoder->need) if not
 * even one batch fits; EL_EINVALID if a column's offsets do not rise within its data, a selected row does not exist or a record is
 * larger than 2^31 - 1 bytes; EL_ECHANGED if somebody wrote into the columns, so that a record is not what was measured; encoder->next
 * is that row's place. What the columns hold need not be aligned. */
int64_t el_encode(el_encoder *encoder, uint8_t *out, int64_t capacity, el_batch *batches, int64_t batch_capacity, int64_t *batch_count);

/* Writes the header of a batch whose records already lie behind it, CRC included. REQUIRES: batch->size bytes at `at`. */
int el_header_seal(uint8_t *at, const el_batch *batch);

/* Sets size, codec bits and CRC of a batch whose records section was replaced (compressed): batch holds 61 header bytes and then
 * body_size bytes. */
int el_reseal(uint8_t *batch, int64_t body_size, int32_t codec);

/* Fields of el_batch that el_set_header_fields takes. */
enum el_field {
    EL_SET_ATTRIBUTES = 1,
    EL_SET_MAX_TIMESTAMP = 2,
    EL_SET_PRODUCER = 4,      /* producer_id, producer_epoch */
    EL_SET_SEQUENCE = 8
};

/* Changes header fields (mask of el_field) and mends the CRC without reading the body again. REQUIRES: size bytes of one sealed batch. */
int el_set_header_fields(uint8_t *batch, int64_t size, const el_batch *fields, int32_t mask);

/* Gives every batch of a sealed run its base offset (consecutive from base_offset) and its epoch, and moves *digest on over each.
 * Outside the CRC, so it may be done again with other numbers. Returns the next offset, or EL_ECORRUPT if the sizes do not add up. */
int64_t el_stamp(uint8_t *run, int64_t size, int64_t base_offset, int32_t leader_epoch, uint64_t *digest);

/* Gives every batch of a sealed run its producer: id, epoch, sequences that run on from `sequence` (2147483647 is followed by 0), the
 * transactional bit; the same into the rows of `batches`, which say where in the run each batch lies. CRCs are mended without reading a
 * body again; may be done again with other values. Returns the sequence that follows, or EL_ECORRUPT if a row lies outside the run. */
int64_t el_stamp_producer(uint8_t *run, int64_t size, el_batch *batches, int64_t count, int64_t producer_id, int32_t epoch,
                          int32_t sequence, int32_t transactional);

/* ---- Scanning ------------------------------------------------------------------------------------------------ */

typedef struct {
    int64_t next_offset;   /* base offset that must follow; -1: any */
    int64_t segment_base;  /* of the segment: offsets lie at most 2^31 - 1 above; -1: unknown */
    uint64_t digest;
    int32_t epoch;         /* least epoch that may follow; -1: any */
    int32_t gaps_allowed;  /* compacted: a larger base offset will do */
} el_chain;

/* Checks consecutive batches: size, magic, CRC, counts, chain. Fills one el_batch each (position: byte in data) and moves the chain on.
 * Stops at capacity batches, at the first bad one (problem->what) or at a partial one at the end (what EL_FINE; *need is its whole size,
 * or 0 if that cannot be seen yet). Returns the count of good batches; *consumed is their size. Reads nothing beyond size bytes. */
int64_t el_scan(const uint8_t *data, int64_t size, el_chain *chain, el_batch *batches, int64_t capacity, int64_t *consumed,
                int64_t *need, el_problem *problem);

/* ---- Decoding ------------------------------------------------------------------------------------------------ */

typedef struct {
    int64_t start_offset;  /* inclusive */
    int64_t end_offset;    /* exclusive */
    int64_t start_ms;      /* inclusive */
    int64_t end_ms;        /* exclusive */
} el_window;

/* Where records go. A NULL array is not asked for, and its capacity is not looked at. */
typedef struct {
    int64_t *offsets;
    int64_t *timestamps;
    int8_t *timestamp_types;
    int32_t *leader_epochs;
    int32_t *key_offsets;      /* record_capacity + 1 */
    uint8_t *key_data;
    uint8_t *key_validity;     /* (record_capacity + 7) / 8 bytes */
    int32_t *value_offsets;
    uint8_t *value_data;
    uint8_t *value_validity;
    int32_t *header_starts;    /* record_capacity + 1 */
    int64_t record_capacity;
    int64_t key_capacity;
    int64_t value_capacity;
    /* In and out: all 0 at first; a further call goes on behind. */
    int64_t count;
    int64_t key_size;
    int64_t value_size;
    int64_t key_nulls;
    int64_t value_nulls;
    int64_t header_count;      /* headers of the records taken */
    int64_t header_key_size;
    int64_t header_value_size;
} el_columns;

/* What a decoding of some batches needs, by their headers. */
enum el_kind {
    EL_HAS_CONTROL = 1,
    EL_HAS_COMPRESSED = 2,
    EL_HAS_LEGACY = 4,
    EL_UNORDERED = 8       /* positions do not rise */
};

typedef struct {
    int64_t records;
    int64_t body_size;     /* of all records sections as they lie there */
    int64_t bad;           /* the first batch with more records than its uncompressed section can hold, or -1 */
    int32_t kinds;         /* enum el_kind */
    int32_t pad;
} el_survey;

/* Adds up `count` headers. Never fails. */
void el_survey_batches(const el_batch *batches, int64_t count, el_survey *survey);

/* Columns that a reader can ask for. */
enum el_want {
    EL_WANT_OFFSET = 1,
    EL_WANT_TIMESTAMP = 2,
    EL_WANT_TIMESTAMP_TYPE = 4,
    EL_WANT_LEADER_EPOCH = 8,
    EL_WANT_KEY = 16,
    EL_WANT_VALUE = 32,
    EL_WANT_VALUE_DATA = 64,  /* room for the values' bytes: not with values that are moved in place */
    EL_WANT_HEADERS = 128
};

/* Cuts `memory` into the arrays that are wanted (mask of el_want), for as many records and bytes at most, and points `columns` at them;
 * the others are NULL. starts gets the places of offsets, timestamps, timestamp_types, leader_epochs, header_starts, key_offsets,
 * key_validity, value_offsets, value_validity, value_data and key_data. Returns the size it takes; memory may be NULL to ask for that. */
int64_t el_lay_out(el_columns *columns, int32_t wanted, int64_t records, int64_t body_size, uint8_t *memory, int64_t *starts);

/* Decodes the records sections (uncompressed) of batches. bodies[i] is the records section of batches[i], body_sizes[i] bytes of it.
 * Control batches are the caller's to leave out. Takes the records inside the window. Returns EL_OK, EL_ECORRUPT (problem->position: byte
 * in the body of batch *bad), or EL_ESPACE. */
int el_decode(const el_batch *batches, const uint8_t *const *bodies, const int64_t *body_sizes, int64_t batch_count,
              const el_window *window, el_columns *out, int64_t *bad, el_problem *problem);

/* The same for batches that lie uncompressed in one buffer: el_batch.position - base is their first byte in data. */
int el_decode_run(const uint8_t *data, int64_t size, int64_t base, const el_batch *batches, int64_t batch_count,
                  const el_window *window, el_columns *out, int64_t *bad, el_problem *problem);

typedef struct {
    int32_t *key_offsets;
    uint8_t *key_data;
    int32_t *value_offsets;
    uint8_t *value_data;
    uint8_t *value_validity;
    int64_t header_capacity;
    int64_t key_capacity;
    int64_t value_capacity;
    int64_t count;             /* in and out, as in el_columns */
    int64_t key_size;
    int64_t value_size;
} el_headers;

/* Second pass, over one body that el_decode took, with the same window: fills the headers that it counted. EL_ESPACE, or EL_ECORRUPT if
 * the bytes changed meanwhile. */
int el_decode_headers(const el_batch *batch, const uint8_t *body, int64_t body_size, const el_window *window, el_headers *out);
