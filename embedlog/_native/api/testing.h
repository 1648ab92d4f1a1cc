/* Fault injection, traces, recordings and mutants: declared and compiled only in the test build
 * (EMBEDLOG_TEST_BUILD=1). No preprocessor directive in here: cffi and the C compiler read the same
 * text. */

enum el_action {
    EL_FAULT_NONE = 0,
    EL_FAULT_FAIL = 1,
    EL_FAULT_SHORT = 2,
    EL_FAULT_TORN_KILL = 3,
    EL_FAULT_KILL_BEFORE = 4,
    EL_FAULT_KILL_AFTER = 5,
    EL_FAULT_STOP_BEFORE = 6,
    EL_FAULT_STOP_AFTER = 7,
    EL_FAULT_DELAY = 8,
    EL_FAULT_HANG = 9
};

/* Arms the hook: the nth (1 = next) matching call is subjected to `action`. A call matches if its
 * kind is in `kinds` (bit 1 << el_call) and its path or point name contains `name` ("" = any).
 * `error` is an errno; for DELAY it is microseconds, and every matching call from the nth on is
 * delayed. With HANG, every matching call from the nth on returns only after the hook is armed anew
 * or disarmed. FAIL with `sticky` also fails every later matching call. kinds = 0 disarms. There is
 * one hook per process. */
int32_t el_fault_arm(uint32_t kinds, int64_t nth, int32_t action, int32_t error, int32_t sticky,
                     const char *name);
/* Counts of the calls of each kind since the last reset; `counts` has EL_CALLS elements. Returns
 * how often the fault was applied. */
int64_t el_fault_counts(int64_t *counts, int32_t reset);
/* Writes a line "KIND SIZE NAME" for each call to descriptor `fd` (-1 = off). */
int32_t el_fault_trace(int32_t fd);
/* 0, or the injected error of a directory listing. */
int32_t el_list_hook(const char *path);
/* A named place where a fault can be injected. */
int32_t el_point(const char *name);

/* Writes every successful change of files by this process to descriptor `fd`, with its bytes, in
 * order (-1 = off), for simulations of a power loss. One record: kind, padding, position or size or
 * flags, lengths of name, second name and data (int32, int32, four int64, host order), then those
 * bytes. */
int32_t el_fault_record(int32_t fd);

/* Disables rules: bit set of `el_mutant` numbers. Tests must fail while a rule is disabled. */
int32_t el_mutants(uint64_t off);

/* ---- a controller that runs one of several processes at a time (testing/schedule.c) ---------- */

enum el_schedule_state {
    EL_ABSENT = 0,
    EL_STOPPED = 1,
    EL_RUNS = 2,
    EL_WAITS_FOR_LOCK = 3,
    EL_WAITS_FOR_WORD = 4,
    EL_SLEEPS = 5,
    EL_ENDED = 6
};
enum el_schedule_size { EL_SCHEDULE_SLOTS = 6 };

/* One process. `turn` is a futex word: 1 while it may run. `budget`: the steps that are left in its
 * turn. `error`: an errno that its next call returns instead of being made. `until_ns`,
 * `seen_wakes` and the fields of the lock: what it waits for. */
typedef struct {
    uint32_t turn, state;
    int32_t number, kind, error, lock_exclusive;
    int64_t budget, steps, until_ns, seen_wakes, lock_at, lock_size;
    char lock_path[256];
} el_schedule_slot;

/* The shared mapping; `trace_max` entries follow it. `reports` is the futex word of the
 * controller. */
typedef struct {
    uint32_t reports, reserved;
    int64_t clock_ns, wakes, trace_max, traced;
    el_schedule_slot slots[6];
} el_schedule;

/* A passed step. */
typedef struct {
    int32_t slot, kind;
    int64_t step, size;
    char name[232];
} el_schedule_entry;

/* This process takes a slot; returns with its first turn. From now on it passes hooks only in its
 * turns. */
int32_t el_schedule_join(el_schedule *schedule, int32_t slot);
/* Ends the turn of this process: the calling thread passes hooks without one, the others stay at
 * theirs. */
int32_t el_schedule_leave(void);
/* For the controller: gives `slot` a turn of `steps` (0: it has one), of which the first call
 * returns `error`, and waits until it ends. Returns the state, which is EL_RUNS after the
 * timeout. */
int32_t el_schedule_run(el_schedule *schedule, int32_t slot, int64_t steps, int32_t error,
                        int64_t timeout_ns);
/* Sleeps on the clock of the schedule; `is_woken`: until any process wakes a word. */
void el_schedule_sleep(int64_t duration_ns, int is_woken);
/* `el_boot_ns` is this number from now on; NULL: the clock of the kernel. */
void el_follow_clock(const int64_t *ns);
