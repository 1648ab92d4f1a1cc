/* The log half of the core: control pages, the append, the tail, index search on files. No
 * preprocessor directive in here: cffi and the C compiler read the same text.
 *
 * Every function returns >= 0, or EL_E... from codec.h, or -(1000 + errno). Threads: every function
 * may be called without the interpreter's lock; a function that needs a lock says so. */

/* ---- control pages in memory ----------------------------------------------------------------- */

enum el_sizes { EL_PAGE_BYTES = 4096, EL_PAGE_VERSION = 5, EL_PRODUCER_SLOTS = 128 };

/* Maps EL_PAGE_BYTES of a file that is at least as long; NULL and the code in *error otherwise. At
 * most 16384 mapped pages. */
uint8_t *el_map(int32_t fd, int32_t writable, int32_t *error);
/* The same without a mapping: a private copy, read and written under a lock on the file. */
uint8_t *el_copy_page(int32_t fd, int32_t writable, int32_t *error);
int32_t el_unmap(uint8_t *page);
/* Replaces a mapped page by zeros, so that its file is no longer in use; el_unmap is still
 * required. */
int32_t el_page_release(uint8_t *page);
/* Count of the pages that this process lost by SIGBUS. */
int64_t el_lost_pages(void);
/* Installs the SIGBUS handler before the present one. Each el_map does this too, as another handler
 * may have been installed. */
int32_t el_install_handler(void);

/* The published tuple in the control page of a partition. Sizes in bytes, times in ms. */
typedef struct {
    int64_t segment_base; /* active segment */
    int64_t segment_size; /* its published bytes */
    int64_t log_start;
    int64_t log_end;
    int64_t high_watermark;
    int64_t first_unstable;       /* -1: no open transaction */
    int64_t purged_to;            /* highest compacted end */
    int64_t max_timestamp;        /* of the active segment, -1 none */
    int64_t max_timestamp_offset; /* last offset of the batch that first reached it */
    /* lower bound of all records in the active segment; -1 unknown, 2^63 - 1 for an empty
     * segment */
    int64_t min_timestamp;
    /* upper bound of how much a record is older than one in an earlier batch */
    int64_t lateness_ms;
    int64_t last_time_entry; /* timestamp of the last time index entry, -1 none */
    int64_t first_timestamp; /* largest timestamp of the segment's first batch, -1 none */
    int64_t created_ms;      /* of the segment, wall clock */
    int64_t roll_jitter_ms;
    int64_t bytes_since_entry; /* since the last index entry */
    uint64_t digest;           /* chain over bytes 0-20 of every batch of the active segment */
    int32_t epoch;
    uint32_t generation; /* odd while files are replaced */
    uint32_t index_entries;
    uint32_t time_entries;
    uint32_t transaction_entries;
    uint32_t flags; /* el_tuple_flags of the active segment */
    /* chain over the entries of the active segment's transaction index, 0 without any */
    uint64_t transaction_digest;
} el_tuple;

enum el_tuple_flags { EL_GAPLESS = 1, EL_DIGESTED = 2 };

typedef struct { /* what identifies a control page */
    uint8_t incarnation[16];
    uint8_t topic_id[16];
    int64_t device;
    int64_t inode;
    int32_t partition;
    int32_t version;
} el_identity;

enum el_page_state {
    EL_PAGE_VALID = 0,
    EL_PAGE_OTHER = 1,
    EL_PAGE_LOST = 2,
    EL_PAGE_NEWER = 3,
    EL_PAGE_DAMAGED = 4,
    EL_PAGE_OLDER = 5 /* of this incarnation, by an embedlog with an older layout */
};
enum el_page_flags {
    EL_FLAG_DELETED = 1,
    EL_FLAG_REPLACED = 2,
    EL_FLAG_KEPT =
        4 /* of a replica: the load found all that it had, and no cut gave any of it up since */
};

/* Fields of a control page outside the tuple; each is read and stored atomically. docs/layout.md
 * has their contents, and the words of a directory's page. */
enum el_word {
    EL_WORD_FLAGS = 0,
    EL_WORD_OWNER = 1,
    EL_WORD_OWNER_SINCE = 2,
    EL_WORD_ROLL_INTENT = 3,
    EL_WORD_SYNC_OWNER = 4,
    EL_WORD_SYNC_FROM = 5,
    EL_WORD_SYNC_TO = 6,
    EL_WORD_DURABLE = 7,
    EL_WORD_POISON = 8,
    EL_WORD_UNSYNCED_SINCE = 9,
    EL_WORD_CACHE = 10,
    EL_WORD_UNSYNCED_COUNT = 11,
    EL_WORD_SNAPSHOT = 12,     /* offset + 1 of the newest producer snapshot, 0 unknown */
    EL_WORD_NO_PRODUCERS = 13, /* offset + 1 below which the log has no producer, 0 unknown */
    EL_WORD_PRODUCED = 14,     /* log end after the last batch with a producer id, or later */
    EL_WORD_CUT_INTENT = 15,   /* an el_cut: the log is being cut below its published end; 0 none */
    EL_WORD_CUT_BASE = 16,     /* the segment in which it is cut */
    EL_WORD_CUT_OFFSET = 17,   /* batches that end above this offset are cut */
    /* number of cuts, stored before the publication: after a cut a name may lead to another file */
    EL_WORD_CUTS = 18,
    /* log end that the next sync awaits for a moment, if several processes wait for syncs */
    EL_WORD_AWAITED = 19,
    EL_WORDS = 20 /* of a directory: `coordination.directory` and others name them */
};

enum el_cut {
    EL_CUT_LOST = 1, /* by a failed sync */
    EL_CUT_END = 2,
    EL_CUT_ALL = 3 /* the log begins again at the offset */
};

/* Writes a whole page: identity, tuple, `durable`, the number of the page cache, flags; clears the
 * other fields. A process that is killed in it leaves an earlier page of the same place with
 * EL_FLAG_KEPT, or the new one, if the new one has that flag. REQUIRES: the append lock. */
int32_t el_page_init(uint8_t *page, const el_identity *identity, const el_tuple *tuple,
                     int64_t durable, int64_t cache, int64_t flags);
/* Compares the page with the `expected` identity; returns an el_page_state. */
int32_t el_page_check(const uint8_t *page, const el_identity *expected);
/* 1 if the memory shows a control page. */
int32_t el_page_alive(const uint8_t *page);
int32_t el_page_identity(const uint8_t *page, el_identity *out);
/* Copies the published tuple: 0, or EL_ECORRUPT if neither slot is readable. */
int32_t el_page_read(const uint8_t *page, el_tuple *out);
/* The number of the newest publication: each one changes it. 0 if the memory shows no page. */
int64_t el_page_sequence(const uint8_t *page);
typedef struct { /* a page, and its number at an earlier look */
    const uint8_t *page;
    int64_t sequence;
} el_look;
/* Index of the first page with a publication since that look; `count` if there is none. */
int64_t el_first_published(const el_look *looks, int64_t count);
/* Publishes a tuple by one store and wakes the waiters. REQUIRES: the append lock. */
int32_t el_page_publish(uint8_t *page, const el_tuple *tuple, uint8_t *directory);
int64_t el_page_word(const uint8_t *page, int32_t word);
int32_t el_page_set(uint8_t *page, int32_t word, int64_t value);
/* Adds to a field, atomically. */
int32_t el_page_add(uint8_t *page, int32_t word, int64_t value);
/* Invalidates all cached producer state: every producer slot gets a number that no append has seen.
 * REQUIRES: the append lock. */
int32_t el_page_invalidate_producers(uint8_t *page);
/* Sleeps while a field of the page equals `seen`, until el_page_wake or the deadline, at most a
 * millisecond. */
int32_t el_page_sleep(const uint8_t *page, int32_t word, int64_t seen, int64_t deadline_ns);
/* Wakes the processes that sleep on a field. */
int32_t el_page_wake(const uint8_t *page, int32_t word);
/* Changes the page's notice word and wakes its waiters, after a change that they must read. */
int32_t el_page_notify(uint8_t *page);
/* The notice word, below 2^32. Order of a reader: this word, then the data, then a wait for another
 * word. */
int64_t el_page_notice(const uint8_t *page);
/* The futex word of the append lock, for el_lock_until. */
uint32_t *el_page_lock_word(uint8_t *page);

/* The control page of a log directory. */
int32_t el_directory_init(uint8_t *page, const el_identity *identity);
/* The topics word of a directory: changes with its topics; odd during a change, or after the
 * changing process was killed. */
int64_t el_topics(const uint8_t *directory);
/* Whether the topics words of several directories are these. */
int32_t el_topics_same(const uint8_t *const *directories, const int64_t *words, int64_t count);
/* Changes the topics word and wakes its waiters: before a change (`done` 0) and after it. REQUIRES:
 * the directory lock. */
int32_t el_topics_move(uint8_t *directory, int32_t done);
/* Changes the word and wakes its waiters; whether topics are being changed stays as it was. Needs
 * no lock. */
int32_t el_topics_touch(uint8_t *directory);

/* ---- appending ------------------------------------------------------------------------------- */

typedef struct {
    uint8_t *page;
    uint8_t *directory; /* the directory's control page, NULL if none */
    const char *lock_path;
    const char *page_path;
    /* `.lock`, which a broker unlinks when it stops; NULL: not checked */
    const char *directory_lock_path;
    int64_t lock_device;
    int64_t lock_inode;
    int64_t page_device;
    int64_t page_inode;
    int64_t directory_lock_device;
    int64_t directory_lock_inode;
    int64_t segment_base; /* segment of the descriptors */
    int64_t segment_bytes;
    int64_t segment_ms;
    int64_t index_bytes;
    int64_t index_interval;
    int64_t flush_ms; /* 0: never by time */
    int32_t lock_fd;
    int32_t log_fd;
    int32_t index_fd;
    int32_t time_fd;
    int32_t digest_fd;    /* interval digests; -1: the segment has none */
    int32_t append_time;  /* 1: LogAppendTime */
    int32_t process;      /* process id, for messages */
    int32_t replicated;   /* 1: the directory belongs to a set, and the next four fields count */
    int32_t node_slot;    /* bit number of the directory in the ISR */
    int32_t leader_epoch; /* the append requires that the page leads in this epoch */
    /* acks=all: the least decided ISR, if the page requires no larger one; 0: the size does not
     * matter */
    int32_t all_in_sync;
    int32_t data_epoch; /* of a follower's last batch that this process copied; -1 unknown */
    int64_t cuts;       /* EL_WORD_CUTS when the descriptors were opened */
    int64_t topics;     /* the directory's topics word before the partition's settings were read, or
                         * EL_UNKNOWN_TOPICS. An odd one counts for one append: its process may have
                         * been killed, and then no other follows */
    /* change time of the lock file, whose path was compared after it; 0 none */
    int64_t lock_changed_ns;
    int64_t directory_lock_changed_ns;
    int32_t directory_lock_fd; /* -1 none */
    /* of a follower: partition epoch and boot time of the last comparison of its paths */
    int32_t compared_epoch;
    int64_t compared_ns;
    int64_t copied_bytes;   /* of batches that a follower took from its leader with this writer */
    int64_t appended_bytes; /* of all other batches that were appended with it, and their offsets */
    int64_t appended_records;
    /* lockings that another process delayed, their total time, and the longest one */
    int64_t lock_waits;
    int64_t lock_waited_ns;
    int64_t lock_waited_max_ns; /* since the caller set it to 0 */
    uint32_t
        is_left; /* 1: a thread that was left behind uses the descriptors (`el_append_together`) */
    uint32_t reserved;
} el_writer;

enum el_topics_values { EL_UNKNOWN_TOPICS = -1 }; /* odd, and no topics word has this value */

enum el_append_code {
    EL_APPENDED = 0,
    EL_MUST_REPAIR = 1,
    EL_MUST_ROLL = 2,
    EL_MUST_REOPEN = 3,
    EL_MUST_REMAP = 4,
    EL_IS_DELETED = 5,
    EL_TOO_LARGE = 6,
    EL_IS_POISONED = 7,
    EL_LOST_DIRECTORY = 8,
    EL_MUST_CATCH_UP = 9,
    EL_NOT_DATA = 10,   /* a control batch in a run of data */
    EL_NOT_LEADER = 11, /* the page does not lead in the required epoch, or belongs to a set */
    EL_TOO_FEW = 12,    /* the decided ISR is smaller than min.insync.replicas */
    /* a topic of the directory may have other settings than those by which the records were
     * judged */
    EL_OTHER_SETTINGS = 13
};

typedef struct {
    int64_t base_offset;    /* of the first record appended */
    int64_t next_offset;    /* log end after it */
    int64_t consumed;       /* appended bytes of the run: whole batches */
    int64_t position;       /* where they start in the segment */
    int64_t append_time_ms; /* -1 under CreateTime */
    int64_t unsynced_ms;    /* age of the oldest record that is not durable */
    int64_t durable;
    /* number of this publication: its producers' slots contain it until the next change */
    int64_t seen;
    int32_t next_sequence; /* after the last appended batch */
    int32_t reserved;
} el_appended;

typedef struct { /* cached state of a producer, from its last append or marker in this process */
    int64_t producer_id;
    /* the state is current while the producer's slot has this number; -1: it is not */
    int64_t seen;
    int32_t next_sequence;
    int32_t epoch;
    int32_t open;     /* a transaction is open */
    int32_t may_open; /* the next append may open one */
} el_known;

typedef struct {            /* end of a transaction, in addition to its marker */
    int64_t first_unstable; /* of the transactions that remain open, -1 none */
    /* for the transaction index, EL_TXN_ENTRY_BYTES; NULL: committed, or no data */
    const uint8_t *entry;
    int32_t fd; /* of the active segment's transaction index, if there is an entry */
    int32_t reserved;
} el_ending;

enum el_transaction_sizes { EL_TXN_ENTRY_BYTES = 34 };

/* Locks, checks, sets the owner field. 0 with the lock held; any other code with the lock
 * released. */
int32_t el_append_begin(el_writer *writer, int64_t deadline_ns);
/* Appends whole batches from the front of `run`, as many as the active segment takes. `rows`: one
 * for each batch, for its smallest timestamp. REQUIRES: el_append_begin. After an error nothing is
 * published and the file is unchanged. */
int32_t el_append_held(el_writer *writer, const uint8_t *run, int64_t size, const el_batch *rows,
                       int64_t row_count, el_appended *out);
/* The same for one marker, in this order: marker, entry of the transaction index, publication.
 * REQUIRES: el_append_begin, and an `ending` that describes the present log end. */
int32_t el_append_marker(el_writer *writer, const uint8_t *marker, int64_t size,
                         const el_ending *ending, el_appended *out);
/* Clears the owner field (unless `broken`), unlocks, wakes the next process. */
int32_t el_append_end(el_writer *writer, int32_t broken);
/* Whether no topic of the directory has changed since `topics` of the writer. REQUIRES:
 * el_append_begin. */
int32_t el_settings_are_present(el_writer *writer);
/* The three calls in one, with el_settings_are_present (else EL_OTHER_SETTINGS): the usual path.
 * `known` (NULL: no check) is the cached state of the producer. If the producer's slot has changed,
 * or the run does not continue this state, nothing is written and EL_MUST_CATCH_UP returned.
 * Advances the cached state over the appended run. */
int32_t el_append(el_writer *writer, const uint8_t *run, int64_t size, const el_batch *rows,
                  int64_t row_count, el_known *known, int64_t deadline_ns, el_appended *out);
/* Type of el_append for the other extension module, which gets its address; append.c checks that
 * both agree. */
typedef int32_t (*el_append_call)(el_writer *writer, const uint8_t *run, int64_t size,
                                  const el_batch *rows, int64_t row_count, el_known *known,
                                  int64_t deadline_ns, el_appended *out);

/* Reads the batch headers in [position, size) of a log file, without bodies and therefore without
 * checksums. Returns the count, at most `capacity`; *end is the first byte after them. EL_ECORRUPT:
 * not a chain of batches of magic 2 with offsets that the segment can hold. */
int64_t el_walk_headers(int32_t fd, int64_t segment_base, int64_t position, int64_t size,
                        el_batch *batches, int64_t capacity, int64_t *end);

/* ---- tailing --------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *page;
    int32_t fd;        /* of the active segment */
    int32_t committed; /* 1: stop at the first open transaction */
    int64_t segment_base;
    int64_t position; /* position of the batch at `offset` */
    int64_t offset;   /* required base offset of the next batch */
    uint64_t digest;
    int32_t epoch; /* required epoch of every batch */
    uint32_t generation;
} el_tailing;

enum el_tail_code { EL_TAIL_DATA = 0, EL_TAIL_NOTHING = 1, EL_TAIL_OTHERWISE = 2 };

/* Reads the published batches from `offset` on into `buffer`, verifies them and advances the state.
 * Returns EL_TAIL_DATA with *taken > 0, EL_TAIL_NOTHING at the end, or EL_TAIL_OTHERWISE for every
 * unusual case. The caller then uses the general reader. Unusual are another segment, epoch or
 * generation, an open transaction below the end of a committed reader, a gap, a bad or too large
 * batch. *end is the first offset that the reader must not see. */
int32_t el_tail_read(el_tailing *tailing, uint8_t *buffer, int64_t capacity, int64_t *taken,
                     int64_t *end);

/* ---- reading around one offset --------------------------------------------------------------- */

typedef struct { /* a segment, as it was published; then what was read of it */
    int64_t base;
    int64_t size;
    int64_t index_entries;
    uint64_t digest; /* chain at its end */
    int32_t log_fd;
    int32_t index_fd;
    int32_t digest_fd; /* -1: the segment has no digests */
    int32_t gapless;   /* 1: no offset is missing between batches */
    int64_t position;  /* out: byte of the first batch */
    int64_t need;      /* out: bytes of the read */
    int64_t number;    /* out: number of the digest record after the read */
    el_compared chain; /* out: the chain after the read */
    int64_t row;       /* out: the batch that holds the offset, and its offsets */
    int64_t first_offset;
    int64_t last_offset;
    int64_t epoch; /* out: leader epoch of all batches, -1 if they differ */
} el_short_read;

/* Reads the batch that holds `offset`, and the least that must be read and verified with it.
 * Batches that end before the offset may come first. Returns the count of batches, or 0 for every
 * unusual case: the caller then uses the general reader. EL_ESPACE: `need` is larger than the
 * buffer. REQUIRES: the segment does not change up to its `size`, which the caller checks before
 * and after. */
int64_t el_read_short(el_short_read *segment, int64_t offset, uint8_t *buffer, int64_t capacity,
                      el_batch *batches, int64_t batch_capacity);

/* ---- Index search ---------------------------------------------------------------------------- */

/* Number of the last entry with relative offset <= target, or -1. REQUIRES: count * 8 readable
 * bytes, sorted. */
int64_t el_index_floor(const uint8_t *entries, int64_t count, int32_t target);

/* Number of the last time entry with timestamp <= target, or -1. REQUIRES: count * 12 readable
 * bytes, sorted. */
int64_t el_time_floor(const uint8_t *entries, int64_t count, int64_t timestamp);

/* The same on a descriptor, for the `count` entries from byte 0 of the file. `entry` gets the bytes
 * of the entry (8 or 12). Returns its number, -1 if all are greater, EL_EMORE if the file is too
 * short, or -(1000 + errno). */
int64_t el_index_floor_file(int fd, int64_t count, int32_t target, uint8_t *entry);
int64_t el_time_floor_file(int fd, int64_t count, int64_t timestamp, uint8_t *entry);
