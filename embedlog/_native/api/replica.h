/* The replica half of the core: the part of a control page that concerns a set of directories, the
 * copy of batches, the commit. No preprocessor directive in here: cffi and the C compiler read the
 * same text.
 *
 * Every function returns >= 0, or EL_E... from codec.h, or -(1000 + errno). */

enum el_role {
    /* the partition has one directory; or the page was made anew, and serves nothing in a set */
    EL_ROLE_NONE = 0,
    EL_ROLE_LEADER = 1,
    EL_ROLE_FOLLOWER = 2
};

/* The replica state in a control page. It changes in the same store as the tuple, whose `epoch` is
 * the leader epoch. */
typedef struct {
    int64_t epoch_start; /* of a leader: first offset of its epoch */
    /* `stable_next` becomes the first unstable offset when the high watermark reaches this; -1
     * none */
    int64_t stable_at;
    int64_t stable_next;
    int64_t later_at; /* the same for the last of the markers above `stable_at` */
    int64_t later_next;
    /* of a leader: all members for which the high watermark waits, a bit for each directory */
    uint64_t maximal_isr;
    uint64_t decided_isr;    /* of a leader: the ISR of the installed decision */
    int32_t role;            /* an el_role */
    int32_t leader;          /* node of the leader, -1 none */
    int32_t partition_epoch; /* number of the installed decision */
    int32_t min_in_sync; /* min.insync.replicas: a smaller decided ISR stops the high watermark */
} el_replica;

/* Copies the published tuple and the replica state of the same publication: 0, or EL_ECORRUPT. */
int32_t el_page_read_replica(const uint8_t *page, el_tuple *tuple, el_replica *replica);
/* Publishes both by one store. REQUIRES: the append lock. */
int32_t el_page_publish_replica(uint8_t *page, const el_tuple *tuple, const el_replica *replica,
                                uint8_t *directory);

enum el_follow_code {
    EL_FENCED = 20, /* the page is in a later epoch than the source */
    /* the page is in an earlier epoch, or is no follower, or the first batch does not continue its
     * log */
    EL_NOT_NEXT = 21,
    /* the next batch has a later epoch than `data_epoch`: its start must be in the checkpoint
     * first */
    EL_NEW_EPOCH = 22,
    EL_UNCOMMITTED = 23, /* the run is in the leader's log; a follower did not take it */
    /* the given followers are not those of the maximal ISR: nothing was written */
    EL_OTHER_ISR = 24,
    /* el_append_inline: a follower does not answer, and the caller copies: nothing was written */
    EL_APART = 25,
    /* the leader does not answer: a thread is inside it, and whether the run gets into the log is
     * not known */
    EL_IN_DOUBT = 26
};

typedef struct { /* a leader, as the source of batches */
    int64_t high_watermark;
    int32_t epoch;
    /* of the follower's last batch: the latest epoch in its leader-epoch-checkpoint below the log
     * end */
    int32_t data_epoch;
    int32_t gaps_allowed; /* 1: offsets may be missing between batches, as after a compaction */
    /* 1: the batches are as the leader got them, without offset, epoch and append time */
    int32_t fresh;
    int64_t base_offset;    /* of the first fresh batch */
    int64_t append_time_ms; /* of fresh batches, -1 under CreateTime */
} el_leading;

/* Appends whole batches of a leader unchanged, from the front of `run`: as many as the active
 * segment takes. Publishes the log end and the high watermark. With an `ending` the run is one
 * marker. An empty run publishes the high watermark only. Returns EL_APPENDED, an el_append_code or
 * an el_follow_code; in every other case nothing is published. The caller has checked the batches
 * (CRC, chain). REQUIRES: el_append_begin on the follower. */
int32_t el_follow(el_writer *writer, const el_leading *leading, const uint8_t *run, int64_t size,
                  const el_batch *rows, int64_t row_count, const el_ending *ending,
                  el_appended *out);

typedef struct { /* the control page of a member of the ISR */
    const uint8_t *page;
    const char *path; /* of the page's file: a mapped page that was replaced does not count */
    int64_t device;
    int64_t inode;
    int32_t node_slot;
    int32_t reserved;
} el_member;

/* Raises the leader's high watermark to the smallest log end of the maximal ISR. Each of its
 * members must be given and must follow in the leader's epoch; else nothing changes.
 * *high_watermark is the resulting one. Returns 0 or EL_NOT_LEADER. REQUIRES: el_append_begin on
 * the leader. */
int32_t el_commit(el_writer *leader, int32_t node_slot, int32_t epoch, const el_member *members,
                  int64_t count, int64_t *high_watermark);

typedef struct { /* a leader with the followers to which it is appended in the same call */
    el_writer *leader;
    el_writer **followers;
    int32_t count;
    int32_t epoch;       /* of the leader */
    int32_t all_in_sync; /* acks=all: as of el_writer; 0: only the leader takes the run */
    /* the directory in which a thread was left behind: 0 the leader, 1 the first follower; -1: none
     * was. Then writers, pages and paths must stay as long as a writer `is_left`, and the run, too,
     * if it `lasts` */
    int32_t left;
    int64_t
        apart_until_ns; /* a directory did not answer: until then (boot clock) the caller copies */
    /* the last time at which the followers had all records, as far as this process knows */
    int64_t answered_ns;
    int64_t patience_ns; /* of el_append_together with a leader that does not answer */
} el_together;

/* Appends as el_append to a leader, then to each follower, and raises the high watermark
 * (REPLICA-15), by a thread: a caller does not wait for a disk that hangs. The leader's lock is
 * kept meanwhile, unless a follower does not answer in a moment. A follower's lock is tried, for a
 * moment. EL_APPENDED: the run is committed, or in the leader's log without `all_in_sync`.
 * EL_UNCOMMITTED: it is in the leader's log, and *out is filled. EL_IN_DOUBT: not known.
 * EL_OTHER_ISR and the other codes: nothing was written. The bytes of run and rows stay as they
 * are. REQUIRES: the mutexes of all writers. */
int32_t el_append_together(el_together *together, const uint8_t *run, int64_t size,
                           const el_batch *rows, int64_t row_count, el_known *known,
                           int64_t deadline_ns, el_appended *out);
/* The same for a caller that changes run and rows after the call: they are copied. It waits for the
 * leader only for a moment, and may return EL_APART: nothing was written. */
int32_t el_append_inline(el_together *together, const uint8_t *run, int64_t size,
                         const el_batch *rows, int64_t row_count, el_known *known,
                         int64_t deadline_ns, el_appended *out);
/* Ends the threads that wait for appends of this process. The next append starts another one. */
void el_append_rest(void);
/* Type of el_append_inline for the other extension module. */
typedef int32_t (*el_together_call)(el_together *together, const uint8_t *run, int64_t size,
                                    const el_batch *rows, int64_t row_count, el_known *known,
                                    int64_t deadline_ns, el_appended *out);
