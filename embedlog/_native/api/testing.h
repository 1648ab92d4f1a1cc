/* Fault injection, traces, recordings and mutants: declared and compiled only in the test build (EMBEDLOG_TEST_BUILD=1).
 * No preprocessor directive in here: cffi and the C compiler read the same text. */

enum el_action {
    EL_FAULT_NONE = 0, EL_FAULT_FAIL = 1, EL_FAULT_SHORT = 2, EL_FAULT_TORN_KILL = 3, EL_FAULT_KILL_BEFORE = 4,
    EL_FAULT_KILL_AFTER = 5, EL_FAULT_STOP_BEFORE = 6, EL_FAULT_STOP_AFTER = 7, EL_FAULT_DELAY = 8
};

/* Arm the hook: the nth (1 = next) call whose kind is in `kinds` (bit 1 << el_call) and whose path or point name contains
 * `name` ("" = any) suffers `action` with `error` (an errno; for DELAY microseconds, and every matching call from the nth on).
 * FAIL with `sticky` goes on failing from then on. Off again with kinds = 0. Not for production: one hook a process. */
int32_t el_fault_arm(uint32_t kinds, int64_t nth, int32_t action, int32_t error, int32_t sticky, const char *name);
/* How often each kind of call was made since the last reset; `counts` has EL_CALLS places. Returns how often the fault struck. */
int64_t el_fault_counts(int64_t *counts, int32_t reset);
/* Write a line "KIND SIZE NAME" for each call to descriptor `fd` (-1 = off): the trace of a run. */
int32_t el_fault_trace(int32_t fd);
/* 0, or the error with which the listing of a directory must fail. */
int32_t el_list_hook(const char *path);
/* A named place where a fault may strike. */
int32_t el_point(const char *name);

/* Write every successful change of files by this process to descriptor `fd`, with its bytes, in order (-1 = off): what a
 * simulation of power loss replays. One record: kind, error or number a, lengths of name, second name and data
 * (int32, int64, three int64, host order), then those bytes. */
int32_t el_fault_record(int32_t fd);

/* Sets the rules that are off: bit set of `el_mutant` numbers. Tests must fail while one of them is off. */
int32_t el_mutants(uint64_t off);
