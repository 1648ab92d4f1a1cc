/* Waiting: for data, for notices, for changes of the topics.
 * No preprocessor directive in here: this text is read by cffi and by the C compiler. */

typedef struct {
    const uint8_t *page;
    int64_t offset;                  /* wait until the published end (isolation: stable end) passes it */
} el_tail;
typedef struct {
    const uint8_t *page;
    int64_t seen;                    /* of el_page_notice, before the caller looked */
} el_notice;
enum el_wait_limits { EL_NOTICES_MAX = 4 };
/* Sleep until one of the pages has published more than its tail's offset, the generation moves, one of the notice words is not what was
 * seen, `wake` is not 0, or the deadline passes. Returns the index of a ready tail, count if woken otherwise (spurious included),
 * -(1000 + ETIMEDOUT). `directory` is the directory's page, used where more than 120 tails are given or the kernel has no futex_waitv.
 * `wake` is a word of the caller's own that el_wake sets. `flags`: 1 the stable end counts; 2 a page is mapped for reading only, or is a
 * private copy, so the waiter cannot be counted or woken and looks every millisecond instead. `topics`: the value of the directory's
 * topics word that the caller has acted upon, -1 if it does not follow them; another value ends the wait. */
int64_t el_wait(const el_tail *tails, int64_t count, const el_notice *notices, int64_t notice_count, int32_t flags, uint8_t *directory,
                int64_t topics, uint32_t *wake, int64_t deadline_ns);
int32_t el_wake(uint32_t *wake);
