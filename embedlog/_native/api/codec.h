/* The codec half of the native contract: record batches, columns, scanning, decoding. No
 * preprocessor directive in here: cffi and the C compiler read the same text.
 *
 * Every function returns >= 0 or one of the negative codes. No function allocates; the caller owns
 * every buffer. A "size" is in bytes, a "count" in items, a "position" is a byte, an "offset" is
 * logical. Threads: any number, as long as no two write to the same buffer. */

enum el_code {
    EL_OK = 0,
    EL_ECORRUPT = -2, /* the bytes break the format: el_problem has the place */
    EL_EMORE = -3,    /* the input ends too early */
    EL_ESPACE = -4,   /* the output is too small */
    EL_EINVALID = -5, /* an argument breaks the contract */
    EL_ECHANGED = -6  /* the input changed while it was read */
};

enum el_layout {
    EL_HEADER_SIZE = 61, /* bytes of a batch header, magic 2 */
    EL_DIGEST_SIZE = 21, /* bytes 0 .. 20, which Kafka's CRC does not cover */
    /* length, attributes, timestamp, offset, key length, value length, header count */
    EL_RECORD_SIZE_MIN = 7,
    EL_INDEX_ENTRY_SIZE = 8,
    EL_TIME_ENTRY_SIZE = 12,
    /* in embedlog's digest file: one record for each entry of the offset index */
    EL_DIGEST_RECORD_SIZE = 16
};

/* The kind of error in el_problem.what. */
enum el_what {
    EL_FINE = 0,
    EL_BAD_SIZE = 1, /* the size field is smaller than a header or larger than allowed */
    EL_BAD_MAGIC = 2,
    EL_BAD_CRC = 3,
    EL_BAD_COUNT = 4,  /* records and lastOffsetDelta contradict each other or the size */
    EL_BAD_OFFSET = 5, /* base offset does not follow the previous batch */
    EL_BAD_EPOCH = 6,  /* the leader epoch decreases */
    EL_LEGACY = 7,     /* magic 0 or 1: valid, but another function decodes it */
    EL_BAD_VARINT = 8,
    EL_BAD_RECORD_SIZE = 9, /* the declared size of a record differs from the size of its fields */
    EL_BAD_LENGTH = 10,     /* the length of a key, value or header points outside the record */
    EL_BAD_HEADER_COUNT = 11,
    EL_SURPLUS = 12,    /* bytes after the last record of a batch */
    EL_BAD_DELTA = 13,  /* offset delta outside 0 .. lastOffsetDelta */
    EL_BAD_TOTAL = 14,  /* more than 2 GiB of keys or values: decode fewer batches at once */
    EL_BAD_DIGEST = 15, /* the batch heads differ from the written ones */
    /* a batch has offsets that its segment cannot hold; `expected` is the exceeded bound */
    EL_BAD_RANGE = 16
};

/* One batch header, in the byte order of the machine. numpy reads the same 80 bytes as
 * record_columns.batch_dtype. */
typedef struct {
    int64_t position;
    int32_t size;
    int32_t leader_epoch;
    int64_t base_offset;
    int64_t base_timestamp;
    int64_t max_timestamp;
    /* lower bound of all records; -1: unknown. An encoder knows it; a header proves it only
     * sometimes */
    int64_t min_timestamp;
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
    int32_t what;   /* enum el_what */
    int32_t record; /* number of the record within its batch, or -1 */
} el_problem;

/* ---- Columns of byte strings (Arrow's layout) ------------------------------------------------ */

typedef struct {
    const uint8_t *data;
    const void *offsets;     /* count + 1 of int32_t or int64_t; NULL: the column is absent */
    const uint8_t *validity; /* bit set = not null; NULL: no nulls */
    int64_t data_size;
    int64_t validity_offset; /* in bits */
    int64_t count;
    int32_t offset_width; /* 4 or 8 */
    int32_t pad;
} el_bytes;

/* Partition of every key: (murmur2 & 0x7fffffff) % partitions; -1 for null. EL_EINVALID: the
 * offsets do not increase within the data. */
int el_partitions(const el_bytes *keys, int64_t partitions, int32_t *out);

/* Groups rows by partition number (stable): rows[starts[p] .. starts[p + 1]) are the rows of p.
 * `starts` has partitions + 1 elements. Rows with number -1 are left out. Returns the count of
 * grouped rows; EL_EINVALID: a number is outside 0 .. partitions - 1. */
int64_t el_group_rows(const int32_t *numbers, int64_t count, int32_t partitions, int64_t *rows,
                      int64_t *starts);

/* ---- Encoding -------------------------------------------------------------------------------- */

typedef struct {
    el_bytes values;
    el_bytes keys; /* offsets NULL: all keys are null */
    el_bytes header_keys;
    el_bytes header_values;
    /* row r has the headers header_starts[r] .. header_starts[r + 1]; NULL: none */
    const int32_t *header_starts;
    const int64_t *timestamps; /* one per row, or NULL: `timestamp` for all */
    const int64_t *selection;  /* row numbers to encode in this order, or NULL: all rows */
    int64_t timestamp;
    int64_t rows;  /* rows of every present column */
    int64_t count; /* rows to encode: length of the selection, or `rows` */
    int64_t next;  /* in and out: first row (index in the selection) not yet encoded */
    int64_t need;  /* out: with EL_ESPACE, the bytes needed for the batch of the next record */
    int64_t batch_bytes; /* upper bound of a batch, unless a single record is larger */
    int32_t attributes;  /* of the batch header */
    int32_t pad;
} el_encoder;

/* Encodes rows from encoder->next on as consecutive batches into out. Base offsets count from the
 * first row of this call, the epoch is 0, producer fields are -1, the CRC is set. A further batch
 * starts only if batch_bytes are free in out. Fills one el_batch per batch, at most batch_capacity.
 * Returns the written size and sets *batch_count. Errors: EL_ESPACE    not even one batch fits
 * (encoder->need has the size) EL_EINVALID  the offsets of a column do not increase within its
 * data, a selected row does not exist, or a record exceeds 2^31 - 1 bytes EL_ECHANGED  another
 * thread wrote into the columns, so that a record differs from its measured size
 *
 * After an error encoder->next is the row. Columns need no alignment. */
int64_t el_encode(el_encoder *encoder, uint8_t *out, int64_t capacity, el_batch *batches,
                  int64_t batch_capacity, int64_t *batch_count);

/* Writes the header of a batch, CRC included. REQUIRES: batch->size bytes at `at`, with the records
 * after the header in place. */
int el_header_seal(uint8_t *at, const el_batch *batch);

/* Sets size, codec bits and CRC after the records section was replaced (compressed). REQUIRES: 61 +
 * body_size bytes at `batch`. */
int el_reseal(uint8_t *batch, int64_t body_size, int32_t codec);

/* Mask of the fields that el_set_header_fields changes. */
enum el_field {
    EL_SET_ATTRIBUTES = 1,
    EL_SET_MAX_TIMESTAMP = 2,
    EL_SET_PRODUCER = 4, /* producer_id, producer_epoch */
    EL_SET_SEQUENCE = 8
};

/* Changes header fields (mask of el_field) and updates the CRC without reading the body. REQUIRES:
 * size bytes of one sealed batch. */
int el_set_header_fields(uint8_t *batch, int64_t size, const el_batch *fields, int32_t mask);

/* Stamps every batch of a sealed run with its base offset (consecutive from base_offset) and its
 * epoch, and advances *digest. These fields are outside the CRC, so the call may be repeated with
 * other values. Returns the next offset; EL_ECORRUPT: the sizes do not add up. */
int64_t el_stamp(uint8_t *run, int64_t size, int64_t base_offset, int32_t leader_epoch,
                 uint64_t *digest);

/* Stamps every batch of a sealed run with its producer: id, epoch, consecutive sequences from
 * `sequence` (0 follows 2147483647), the transactional bit. Sets the same fields in the rows of
 * `batches`, which locate the batches in the run. Updates the CRCs without reading a body; may be
 * repeated with other values. Returns the next sequence; EL_ECORRUPT: a row is outside the run. */
int64_t el_stamp_producer(uint8_t *run, int64_t size, el_batch *batches, int64_t count,
                          int64_t producer_id, int32_t epoch, int32_t sequence,
                          int32_t transactional);

/* ---- Scanning -------------------------------------------------------------------------------- */

typedef struct {
    int64_t next_offset;  /* required base offset of the next batch; -1: any */
    int64_t segment_base; /* of the segment: offsets are at most 2^31 - 1 above it; -1: unknown */
    uint64_t digest;
    int32_t epoch;        /* lower bound of the next epoch; -1: any */
    int32_t gaps_allowed; /* compacted log: a larger base offset is valid */
} el_chain;

/* Checks consecutive batches: size, magic, CRC, counts, chain. Fills one el_batch per batch
 * (position: byte in data), advances the chain. Stops at capacity batches, at the first bad batch
 * (problem->what), or at a partial one at the end (what EL_FINE). *need is its whole size, or 0 if
 * its size field is cut off. Returns the count of good batches; *consumed is their size. Never
 * reads beyond size bytes. */
int64_t el_scan(const uint8_t *data, int64_t size, el_chain *chain, el_batch *batches,
                int64_t capacity, int64_t *consumed, int64_t *need, el_problem *problem);

/* ---- Decoding -------------------------------------------------------------------------------- */

typedef struct {
    int64_t start_offset; /* inclusive */
    int64_t end_offset;   /* exclusive */
    int64_t start_ms;     /* inclusive */
    int64_t end_ms;       /* exclusive */
} el_window;

/* Destination of the records. NULL: the column is not wanted, and its capacity is ignored. */
typedef struct {
    int64_t *offsets;
    int64_t *timestamps;
    int8_t *timestamp_types;
    int32_t *leader_epochs;
    int32_t *key_offsets; /* record_capacity + 1 */
    uint8_t *key_data;
    uint8_t *key_validity; /* (record_capacity + 7) / 8 bytes */
    int32_t *value_offsets;
    uint8_t *value_data;
    uint8_t *value_validity;
    int32_t *header_starts; /* record_capacity + 1 */
    int64_t record_capacity;
    int64_t key_capacity;
    int64_t value_capacity;
    /* In and out: all 0 at first; a further call appends. */
    int64_t count;
    int64_t key_size;
    int64_t value_size;
    int64_t key_nulls;
    int64_t value_nulls;
    int64_t header_count; /* headers of the decoded records */
    int64_t header_key_size;
    int64_t header_value_size;
} el_columns;

/* Properties of a set of batches, derived from their headers. */
enum el_kind {
    EL_HAS_CONTROL = 1,
    EL_HAS_COMPRESSED = 2,
    EL_HAS_LEGACY = 4,
    EL_UNORDERED = 8 /* positions do not increase */
};

typedef struct {
    int64_t records;
    int64_t body_size; /* of all records sections as stored */
    /* the first batch with more records than its uncompressed section can hold, or -1 */
    int64_t bad;
    int32_t kinds; /* enum el_kind */
    int32_t pad;
} el_survey;

/* Adds up `count` headers. Never fails. */
void el_survey_batches(const el_batch *batches, int64_t count, el_survey *survey);

/* Columns that a reader can request. */
enum el_want {
    EL_WANT_OFFSET = 1,
    EL_WANT_TIMESTAMP = 2,
    EL_WANT_TIMESTAMP_TYPE = 4,
    EL_WANT_LEADER_EPOCH = 8,
    EL_WANT_KEY = 16,
    EL_WANT_VALUE = 32,
    EL_WANT_VALUE_DATA = 64, /* memory for the values' bytes; not needed if values move in place */
    EL_WANT_HEADERS = 128
};

/* Divides `memory` into the requested arrays (mask of el_want), for at most so many records and
 * bytes, and sets the pointers of `columns`. The others are NULL. `starts` gets the positions of
 * offsets, timestamps, timestamp_types, leader_epochs, header_starts, key_offsets, key_validity,
 * value_offsets, value_validity, value_data and key_data. Returns the size; `memory` may be NULL to
 * get only it. */
int64_t el_lay_out(el_columns *columns, int32_t wanted, int64_t records, int64_t body_size,
                   uint8_t *memory, int64_t *starts);

/* Decodes uncompressed records sections: bodies[i], body_sizes[i] bytes, belongs to batches[i].
 * Takes the records inside the window. REQUIRES: no control batches. Returns EL_OK, EL_ECORRUPT
 * (problem->position: byte in the body of batch *bad), or EL_ESPACE. */
int el_decode(const el_batch *batches, const uint8_t *const *bodies, const int64_t *body_sizes,
              int64_t batch_count, const el_window *window, el_columns *out, int64_t *bad,
              el_problem *problem);

/* The same for uncompressed batches in one buffer: batch i starts at data + batches[i].position -
 * base. */
int el_decode_run(const uint8_t *data, int64_t size, int64_t base, const el_batch *batches,
                  int64_t batch_count, const el_window *window, el_columns *out, int64_t *bad,
                  el_problem *problem);

typedef struct {
    int32_t *key_offsets;
    uint8_t *key_data;
    int32_t *value_offsets;
    uint8_t *value_data;
    uint8_t *value_validity;
    int64_t header_capacity;
    int64_t key_capacity;
    int64_t value_capacity;
    int64_t count; /* in and out, as in el_columns */
    int64_t key_size;
    int64_t value_size;
} el_headers;

/* Second pass over one body that el_decode accepted, with the same window: fills the counted
 * headers. EL_ESPACE, or EL_ECORRUPT if the bytes have changed. */
int el_decode_headers(const el_batch *batch, const uint8_t *body, int64_t body_size,
                      const el_window *window, el_headers *out);
