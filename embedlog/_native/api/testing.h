/* Fault injection, traces, recordings and mutants: declared and compiled only in the test build (EMBEDLOG_TEST_BUILD=1).
 * No preprocessor directive in here: cffi and the C compiler read the same text. */

enum el_action {
    EL_FAULT_NONE = 0, EL_FAULT_FAIL = 1, EL_FAULT_SHORT = 2, EL_FAULT_TORN_KILL = 3, EL_FAULT_KILL_BEFORE = 4,
    EL_FAULT_KILL_AFTER = 5, EL_FAULT_STOP_BEFORE = 6, EL_FAULT_STOP_AFTER = 7, EL_FAULT_DELAY = 8
};

/* Arms the hook: the nth (1 = next) matching call is subjected to `action`. A call matches if its kind is in `kinds` (bit 1 << el_call)
 * and its path or point name contains `name` ("" = any). `error` is an errno; for DELAY it is microseconds, and every matching call from
 * the nth on is delayed.
 * FAIL with `sticky` also fails every later matching call. kinds = 0 disarms. There is one hook per process. */
int32_t el_fault_arm(uint32_t kinds, int64_t nth, int32_t action, int32_t error, int32_t sticky, const char *name);
/* Counts of the calls of each kind since the last reset; `counts` has EL_CALLS elements. Returns how often the fault was applied. */
int64_t el_fault_counts(int64_t *counts, int32_t reset);
/* Writes a line "KIND SIZE NAME" for each call to descriptor `fd` (-1 = off). */
int32_t el_fault_trace(int32_t fd);
/* 0, or the injected error of a directory listing. */
int32_t el_list_hook(const char *path);
/* A named place where a fault can be injected. */
int32_t el_point(const char *name);

/* Writes every successful change of files by this process to descriptor `fd`, with its bytes, in order (-1 = off), for simulations of a
 * power loss. One record: kind, padding, position or size or flags, lengths of name, second name and data (int32, int32, four int64, host
 * order), then those bytes. */
int32_t el_fault_record(int32_t fd);

/* Disables rules: bit set of `el_mutant` numbers. Tests must fail while a rule is disabled. */
int32_t el_mutants(uint64_t off);
