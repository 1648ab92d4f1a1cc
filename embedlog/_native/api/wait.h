/* Waiting for data, for notices, for changes of the topics. No preprocessor directive in here: cffi
 * and the C compiler read the same text. */

typedef struct {
    const uint8_t *page;
    int64_t offset; /* wait until the published end (read_committed: stable end) passes it */
} el_tail;
typedef struct {
    const uint8_t *page;
    int64_t seen; /* of el_page_notice, read before the caller read the data */
} el_notice;
typedef struct {
    uint8_t *page;
    /* the topics word that the caller has processed; another value ends the wait; -1: ignored */
    int64_t topics;
} el_watched_directory;
enum el_wait_limits { EL_NOTICES_MAX = 4, EL_DIRECTORIES_MAX = 60 };
/* Sleeps until a page publishes more than its tail's offset or changes its generation. A notice
 * word that differs from `seen`, a `wake` other than 0, and the deadline also end the sleep.
 * Returns the index of a ready tail (0 to count - 1), `count` for any other wake (also a spurious
 * one: the caller looks again), EL_SYSTEM_ERROR(ETIMEDOUT) = -(1000 + ETIMEDOUT) at the deadline,
 * or EL_EINVALID, without a sleep, for more notices or directories than el_wait_limits.
 * `directories`: the pages of all directories of the tails, used for their topics, and for data if
 * there are more tails than words. `wake`: the caller's own word, which el_wake sets. `flags`: 1:
 * use the stable end; 2: a page is read-only or a private copy, so the waiter cannot be counted
 * and checks every millisecond. */
int64_t el_wait(const el_tail *tails, int64_t count, const el_notice *notices, int64_t notice_count,
                const el_watched_directory *directories, int64_t directory_count, int32_t flags,
                uint32_t *wake, int64_t deadline_ns);
/* As el_wait, but without sleep: reads the pages and words again and again until `until_ns` (boot
 * clock). Takes a processor meanwhile. */
int64_t el_spin(const el_tail *tails, int64_t count, const el_notice *notices, int64_t notice_count,
                const el_watched_directory *directories, int64_t directory_count, int32_t flags,
                uint32_t *wake, int64_t until_ns);
int32_t el_wake(uint32_t *wake);
int32_t el_wake_reset(uint32_t *wake);
int32_t el_is_woken(uint32_t *wake);
/* The futex word at this byte of a control page. */
enum el_page_word_kind {
    EL_OTHER_WORD = 0,
    EL_DATA_WORD = 1,
    EL_LOCK_WORD = 2,
    EL_NOTICE_WORD = 3
};
int32_t el_page_word_kind(int64_t position);
