/* Heartbeat leases: a thread writes a heartbeat into the process's entry of `embedlog.slots`; other
 * processes read it. No preprocessor directive in here: cffi and the C compiler read the same text.
 *
 * An entry has EL_SLOT_BYTES, big-endian: nonce u64 | heartbeat u64 (changes with every heartbeat)
 * | left u64 (1: polls stopped for too long) | reserved u64. */

enum el_slot_layout { EL_SLOT_BYTES = 32, EL_SLOT_BEAT = 8, EL_SLOT_LEFT = 16 };

typedef struct {
    /* boot clock: the lease expires at this moment; 0 after it expired or was left, until it is
     * renewed */
    int64_t good_until_ns;
    int64_t reserved[31];
} el_lease;

/* Writes a first heartbeat and starts a thread that writes the next ones every `heartbeat_ns` until
 * el_lease_end; it takes no signals. The lease expires `session_ns` after the last written
 * heartbeat. It is left `poll_ns` after el_lease_polled. Both last until el_lease_renew.
 * `position`: of the entry, which has its nonce already. `guard_at` > 0: every write holds a lock
 * on this byte, so that a network file system shows it to others. REQUIRES: `fd` and the zeroed
 * `lease` live until el_lease_end; el_lease_end and el_lease_renew are never called at the same
 * time. */
int32_t el_lease_start(el_lease *lease, int32_t fd, int64_t position, int64_t guard_at,
                       int64_t session_ns, int64_t heartbeat_ns, int64_t poll_ns);
/* During a poll the poll interval does not run; el_lease_polled starts it. Both return 1 if the
 * lease was left. */
int32_t el_lease_polling(el_lease *lease);
int32_t el_lease_polled(el_lease *lease);
int32_t el_lease_left(const el_lease *lease);
/* Counts `ns` more since el_lease_polled and acts on it before it returns: 1; 0 during a poll, or
 * without a thread. For tests of applications. Never called at the same time as el_lease_end. */
int32_t el_lease_age(el_lease *lease, int64_t ns);
/* Renews the lease with a new heartbeat: neither expired nor left. */
int32_t el_lease_renew(el_lease *lease);
/* Ends the thread. Does nothing in a forked child, which has no such thread. May be called
 * again. */
int32_t el_lease_end(el_lease *lease);
/* In a forked child: forgets the lease, which belongs to the parent. */
int32_t el_lease_abandon(el_lease *lease);

/* Copies the entry of another process into `entry` (EL_SLOT_BYTES; zeros after the end of the
 * file). Returns 0 if the byte at `lock_at` is free, above 0 if it is locked. `guard_at` as
 * above. */
int32_t el_slot_read(int32_t fd, int64_t lock_at, int64_t position, int64_t guard_at,
                     uint8_t *entry);
