/* Leases: what a living process writes into its entry of `embedlog.slots`, by a thread of its own, and how others read it.
 * No preprocessor directive in here: this text is read by cffi and by the C compiler.
 *
 * An entry has EL_SLOT_BYTES, big-endian: nonce u64 | beat u64 (another one at every heartbeat) | left u64 (1: polls stopped for too long)
 * | u64 that nobody uses yet. */

enum el_slot_layout { EL_SLOT_BYTES = 32, EL_SLOT_BEAT = 8, EL_SLOT_LEFT = 16 };

typedef struct {
    int64_t good_until_ns;           /* boot clock: from then on this lease is lapsed; 0 once it lapsed or was left, until it is renewed */
    int64_t room[31];
} el_lease;

/* A first beat, then a thread that goes on with it every `heartbeat_ns` until el_lease_end; it takes no signal. The lease lapses when
 * `session_ns` pass without a beat that was written, and is left when `poll_ns` pass behind el_lease_polled; both for good, until
 * el_lease_renew. `position`: of the entry, whose nonce is there already. `room_at` > 0: every write is made under a lock on the byte
 * there, as others may see it through a network file system. REQUIRES that `fd` and the zeroed `lease` stay until el_lease_end, and that
 * neither el_lease_end nor el_lease_renew is called while another call of the two is under way. */
int32_t el_lease_start(el_lease *lease, int32_t fd, int64_t position, int64_t room_at, int64_t session_ns, int64_t heartbeat_ns,
                       int64_t poll_ns);
/* Inside a poll nobody is late; behind it the clock runs. Both return 1 if the lease was left. */
int32_t el_lease_polling(el_lease *lease);
int32_t el_lease_polled(el_lease *lease);
int32_t el_lease_left(const el_lease *lease);
/* Begin anew: not lapsed, not left, with a beat of this moment. */
int32_t el_lease_renew(el_lease *lease);
/* End the thread. In a forked child, which has none, nothing happens. May be called again. */
int32_t el_lease_end(el_lease *lease);
/* In a forked child: it was never ours. */
int32_t el_lease_abandon(el_lease *lease);

/* Another one's entry, copied into `entry` (EL_SLOT_BYTES; zeros where the file ends): 0 if nobody holds the byte at `lock_at`,
 * above 0 if somebody does. `room_at` as above. */
int32_t el_slot_look(int32_t fd, int64_t lock_at, int64_t position, int64_t room_at, uint8_t *entry);
