/* What the fault experiments need beside the hook: a recording of everything that changes files.
 * No preprocessor directive in here: this text is read by cffi and by the C compiler. */

/* Write every successful change of files by this process to descriptor `fd`, with its bytes, in order (-1 = off): what a
 * simulation of power loss replays. One record: kind, error or number a, lengths of name, second name and data
 * (int32, int64, three int64, host order), then those bytes. */
int32_t el_fault_record(int32_t fd);
