/* The log half of the core: control pages, the append, the tail, index search on files.
 * No preprocessor directive in here: cffi and the C compiler read the same text.
 *
 * Every function returns >= 0, or EL_E... from codec.h, or -(1000 + errno).
 * Threads: every function may be called without the interpreter's lock; a function that needs a lock says so. */

/* ---- mapped pages ------------------------------------------------------------------------------- */

enum el_sizes { EL_PAGE_BYTES = 4096, EL_PAGE_VERSION = 4, EL_PRODUCER_SLOTS = 128 };

/* Map EL_PAGE_BYTES of a file that has at least as many; NULL and the code in *error otherwise. At most 16384 mapped pages. */
uint8_t *el_map(int32_t fd, int32_t writable, int32_t *error);
/* The same for a log that trusts no mapping: a private copy, which is read and written under a lock on the file. */
uint8_t *el_copy_page(int32_t fd, int32_t writable, int32_t *error);
int32_t el_unmap(uint8_t *page);
/* Puts zeros in the place of a mapped page, so that its file is not in use any more; el_unmap is still to come. */
int32_t el_let_go(uint8_t *page);
/* How many pages were lost under us (SIGBUS) since the process began. */
int64_t el_lost_pages(void);
/* Install the handler, chained before whatever handles SIGBUS now. Each el_map does so, too: others may be installed later. */
int32_t el_guard(void);

/* The control page of a partition: the published tuple. Sizes in bytes, times in ms. */
typedef struct {
    int64_t segment_base;            /* active segment */
    int64_t segment_size;            /* its published bytes */
    int64_t log_start;
    int64_t log_end;
    int64_t high_watermark;
    int64_t first_unstable;          /* -1: no open transaction */
    int64_t purged_to;               /* highest cleaned end */
    int64_t max_timestamp;           /* of the active segment, -1 none */
    int64_t max_timestamp_offset;    /* last offset of the batch that first reached it */
    int64_t min_timestamp;           /* no record of the active segment is older; -1 not known, 2^63 - 1 for an empty one */
    int64_t lateness_ms;             /* by how much at most a record there is older than one in a batch before its own */
    int64_t last_time_entry;         /* timestamp of the last time index entry, -1 none */
    int64_t first_timestamp;         /* largest timestamp of the segment's first batch, -1 none */
    int64_t created_ms;              /* of the segment, wall clock */
    int64_t roll_jitter_ms;
    int64_t bytes_since_entry;       /* since the last index entry */
    uint64_t digest;                 /* chain over bytes 0-20 of every batch of the active segment */
    int32_t epoch;
    uint32_t generation;             /* odd while files move */
    uint32_t index_entries;
    uint32_t time_entries;
    uint32_t transaction_entries;
    uint32_t flags;                  /* el_tuple_flags of the active segment */
    uint64_t transaction_digest;     /* chain over the entries of the active segment's transaction index, 0 without any */
} el_tuple;

enum el_tuple_flags { EL_GAPLESS = 1, EL_DIGESTED = 2 };

typedef struct {                     /* what identifies a page */
    uint8_t incarnation[16];
    uint8_t topic_id[16];
    int64_t device;
    int64_t inode;
    int32_t partition;
    int32_t version;
} el_identity;

enum el_page_state { EL_PAGE_VALID = 0, EL_PAGE_FOREIGN = 1, EL_PAGE_LOST = 2, EL_PAGE_NEWER = 3, EL_PAGE_DAMAGED = 4,
                     EL_PAGE_OLDER = 5 /* of this incarnation, by an embedlog that does not know this layout */ };
enum el_page_flags { EL_FLAG_DELETED = 1, EL_FLAG_REPLACED = 2 };

/* The words of a page that stand by themselves; each is read and stored atomically. */
enum el_word {
    EL_WORD_FLAGS = 0, EL_WORD_OWNER = 1, EL_WORD_OWNER_SINCE = 2, EL_WORD_ROLL_INTENT = 3, EL_WORD_SYNC_OWNER = 4,
    EL_WORD_SYNC_FROM = 5, EL_WORD_SYNC_TO = 6, EL_WORD_DURABLE = 7, EL_WORD_POISON = 8, EL_WORD_UNSYNCED_SINCE = 9,
    EL_WORD_CACHE = 10, EL_WORD_UNSYNCED_COUNT = 11,
    EL_WORD_SNAPSHOT = 12,           /* offset + 1 of the newest producers' snapshot, 0 unknown */
    EL_WORD_NO_PRODUCERS = 13,       /* offset + 1 below which no producer is known, 0 unknown */
    EL_WORD_PRODUCED = 14,           /* log end behind the last batch that carries a producer id, at least */
    EL_WORD_CUT_INTENT = 15,         /* base + 1 of the segment that is being cut below the published end, 0 none */
    EL_WORDS = 16
};

/* Write a whole page: identity, tuple, words cleared but for durable. REQUIRES the append lock. */
int32_t el_page_init(uint8_t *page, const el_identity *identity, const el_tuple *tuple, int64_t durable);
/* An el_page_state for the page as `expected` wants it. */
int32_t el_page_check(const uint8_t *page, const el_identity *expected);
/* 1 while the mapping shows a page at all. */
int32_t el_page_alive(const uint8_t *page);
int32_t el_page_identity(const uint8_t *page, el_identity *out);
/* Copy the published tuple: 0, or EL_ECORRUPT if neither slot can be read. */
int32_t el_page_read(const uint8_t *page, el_tuple *out);
/* Publish a tuple by one store and wake who waits. REQUIRES the append lock. */
int32_t el_page_publish(uint8_t *page, const el_tuple *tuple, uint8_t *directory);
int64_t el_page_word(const uint8_t *page, int32_t word);
int32_t el_page_set(uint8_t *page, int32_t word, int64_t value);
/* Add to a word, atomically. */
int32_t el_page_add(uint8_t *page, int32_t word, int64_t value);
/* Who remembers anything of a producer here has to look again: every slot gets a number that no append has seen. REQUIRES the append lock. */
int32_t el_page_doubt(uint8_t *page);
/* Sleep while a word of the page is `seen`: until it moves, somebody stirs it, or the deadline passes; at most a millisecond. */
int32_t el_page_nap(const uint8_t *page, int32_t word, int64_t seen, int64_t deadline_ns);
/* Wake who naps on a word. */
int32_t el_page_stir(const uint8_t *page, int32_t word);
/* Move the page's notice word and wake who waits for it: something that is worth a look was published here before. */
int32_t el_page_notify(uint8_t *page);
/* The word as it is now, below 2^32: read it, then look, then wait for it to move. */
int64_t el_page_notice(const uint8_t *page);
/* The futex word that waits for the append lock, for el_lock_until. */
uint32_t *el_page_lock_word(uint8_t *page);

/* The control page of a log directory. */
int32_t el_directory_init(uint8_t *page, const el_identity *identity);
/* The word that moves with the topics of a directory; odd while they are being changed, or if who did that was killed. */
int64_t el_topics(const uint8_t *directory);
/* Move it and wake who waits: before a change (`done` 0) and behind it. REQUIRES the directory's lock. */
int32_t el_topics_move(uint8_t *directory, int32_t done);

/* ---- appending ---------------------------------------------------------------------------------- */

typedef struct {
    uint8_t *page;
    uint8_t *directory;              /* the directory's control page, NULL if none */
    const char *lock_path;
    const char *page_path;
    const char *directory_lock_path; /* `.lock`, which a broker unlinks when it leaves; NULL: not looked at */
    int64_t lock_device;
    int64_t lock_inode;
    int64_t page_device;
    int64_t page_inode;
    int64_t directory_lock_device;
    int64_t directory_lock_inode;
    int64_t segment_base;            /* the segment that the descriptors belong to */
    int64_t segment_bytes;
    int64_t segment_ms;
    int64_t index_bytes;
    int64_t index_interval;
    int64_t flush_ms;                /* 0: never by time */
    int32_t lock_fd;
    int32_t log_fd;
    int32_t index_fd;
    int32_t time_fd;
    int32_t digest_fd;               /* digests by index interval; -1: the segment has none */
    int32_t reserved;
    int32_t append_time;             /* 1: LogAppendTime */
    int32_t process;                 /* id of this process, for messages */
} el_writer;

enum el_append_code {
    EL_APPENDED = 0, EL_MUST_REPAIR = 1, EL_MUST_ROLL = 2, EL_MUST_REOPEN = 3, EL_MUST_REMAP = 4, EL_IS_DELETED = 5, EL_TOO_LARGE = 6,
    EL_IS_POISONED = 7, EL_LOST_DIRECTORY = 8, EL_MUST_CATCH_UP = 9, EL_NOT_DATA = 10 /* a control batch that is not said to be one */
};

typedef struct {
    int64_t base_offset;             /* of the first record appended */
    int64_t next_offset;             /* log end after it */
    int64_t consumed;                /* bytes of the run that were appended: whole batches */
    int64_t position;                /* where they begin in the segment */
    int64_t append_time_ms;          /* -1 under CreateTime */
    int64_t unsynced_ms;             /* age of the oldest record that is not durable */
    int64_t durable;
    int64_t seen;                    /* number of this publication: what the slots of its producers hold until somebody touches them */
    int32_t next_sequence;           /* behind the last batch that was appended */
    int32_t reserved;
} el_appended;

typedef struct {                     /* what this process's last append or marker of a producer left */
    int64_t producer_id;
    int64_t seen;                    /* it holds while the producer's slot is this; -1: it does not */
    int32_t next_sequence;
    int32_t epoch;
    int32_t open;                    /* a transaction is open */
    int32_t may_open;                /* the next append may open one */
} el_known;

typedef struct {                     /* how a transaction ends, beside its marker */
    int64_t first_unstable;          /* of the transactions that stay open, -1 none */
    const uint8_t *entry;            /* for the transaction index, EL_TXN_ENTRY_BYTES; NULL: it was committed, or nothing was open */
    int32_t fd;                      /* of the active segment's transaction index, where there is an entry */
    int32_t reserved;
} el_ending;

enum el_transaction_sizes { EL_TXN_ENTRY_BYTES = 34 };

/* Lock, check, mark the owner word; 0 with the lock held, or a code above 0 or below with it released. */
int32_t el_append_begin(el_writer *writer, int64_t deadline_ns);
/* Append whole batches from the front of `run`, as many as the active segment takes. `rows`: one for each of them, in order, of which
 * the smallest timestamp counts. REQUIRES el_append_begin. On an error nothing is published and the file is as it was. */
int32_t el_append_held(el_writer *writer, const uint8_t *run, int64_t size, const el_batch *rows, int64_t row_count, el_appended *out);
/* The same for one marker, in this order: marker, entry of the transaction index, publication. REQUIRES el_append_begin, and that
 * `ending` describes the log end of this moment. */
int32_t el_append_marker(el_writer *writer, const uint8_t *marker, int64_t size, const el_ending *ending, el_appended *out);
/* Clear the owner word (unless `broken`), unlock, wake the next. */
int32_t el_append_end(el_writer *writer, int32_t broken);
/* The three in one: the ordinary path. With `known` (NULL: nothing is checked) EL_MUST_CATCH_UP, and nothing written, unless the run is
 * this producer's, follows on what is known, and nobody touched the producer here since. Moved on by what is appended. */
int32_t el_append(el_writer *writer, const uint8_t *run, int64_t size, const el_batch *rows, int64_t row_count, el_known *known,
                  int64_t deadline_ns, el_appended *out);
/* What the other extension module calls it by: system_append.c holds the two together. */
typedef int32_t (*el_append_call)(el_writer *writer, const uint8_t *run, int64_t size, const el_batch *rows, int64_t row_count,
                                  el_known *known, int64_t deadline_ns, el_appended *out);

/* Headers of the batches that lie in [position, size) of a log file, without their bodies and so without their checksums. Returns how
 * many, at most `capacity`; *end is the first byte behind them. EL_ECORRUPT for what is not a chain of batches of magic 2 with offsets
 * that the segment can hold. */
int64_t el_walk_headers(int32_t fd, int64_t segment_base, int64_t position, int64_t size, el_batch *batches, int64_t capacity, int64_t *end);

/* ---- tailing ------------------------------------------------------------------------------------ */

typedef struct {
    const uint8_t *page;
    int32_t fd;                      /* of the active segment */
    int32_t committed;               /* 1: what an open transaction keeps back is not read */
    int64_t segment_base;
    int64_t position;                /* where the batch at `offset` begins */
    int64_t offset;                  /* what the next batch must begin with */
    uint64_t digest;
    int32_t epoch;                   /* what every batch must carry */
    uint32_t generation;
} el_tailing;

enum el_tail_code { EL_TAIL_DATA = 0, EL_TAIL_NOTHING = 1, EL_TAIL_OTHERWISE = 2 };

/* What was published behind `offset`, read into `room` and verified; moves the state on. Returns EL_TAIL_DATA with *taken > 0,
 * EL_TAIL_NOTHING at the end, EL_TAIL_OTHERWISE for whatever is not the usual case (another segment, epoch or generation, an
 * open transaction between what a committed reader may see, a gap, a bad or too large batch): the ordinary way finds out.
 * *end is the first offset that the reader does not see. */
int32_t el_tail_read(el_tailing *tailing, uint8_t *room, int64_t capacity, int64_t *taken, int64_t *end);

/* ---- Index search -------------------------------------------------------------------------------------------- */

/* Number of the last entry with relative offset <= target, or -1. REQUIRES: count * 8 readable bytes, sorted. */
int64_t el_index_floor(const uint8_t *entries, int64_t count, int32_t target);

/* Number of the last time entry with timestamp <= target, or -1. REQUIRES: count * 12 readable bytes, sorted. */
int64_t el_time_floor(const uint8_t *entries, int64_t count, int64_t timestamp);

/* The same on a descriptor, for `count` entries that begin at byte 0 of the file. entry gets the entry's bytes (8 or 12).
 * Returns its number, -1 if all are greater, EL_EMORE if the file is shorter than that, or -(1000 + errno). */
int64_t el_index_floor_file(int fd, int64_t count, int32_t target, uint8_t *entry);
int64_t el_time_floor_file(int fd, int64_t count, int64_t timestamp, uint8_t *entry);
