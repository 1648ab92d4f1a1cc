/* Probes: whether a disk takes a write now, asked without waiting for a disk that hangs. No
 * preprocessor directive in here: cffi and the C compiler read the same text.
 *
 * A system call on a disk that hangs returns when the disk continues, and nothing ends it before.
 * So a thread of the probe makes it, and the callers wait for the thread for a limited time. */

enum {
    EL_PROBES_MAX = 64,
    EL_PROBE_NS = 20000000 /* for an answer, before a slower way is taken */
};
typedef struct el_probe el_probe;

/* A probe that writes a newline at `position` of the file at `path`; NULL without memory. Its
 * thread starts with a question, and leaves some seconds after the last one. */
el_probe *el_probe_new(const char *path, int64_t position);
/* Lets the thread leave as soon as it has answered: no question is expected. Threads: any. */
void el_probe_rest(el_probe *probe);
/* Ends the probe. A thread that is inside the disk ends, and gives the memory back, when the disk
 * continues. */
void el_probe_end(el_probe *probe);
/* Asks `count` probes, at most EL_PROBES_MAX, at the same time. codes[i]: EL_OK if a write of
 * probes[i] has ended after the call began, or as it began (its thread had not told it yet); -(1000
 * + errno) of its error; -(1000 + ETIMEDOUT) if there was no answer within `timeout_ns`. Threads:
 * any. In a forked child, which has no such threads, all answers are missing. */
int32_t el_probe_ask(el_probe *const *probes, int32_t count, int64_t timeout_ns, int32_t *codes);
