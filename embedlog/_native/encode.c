#include "bytes.h"
int64_t el_encode(el_encoder *e, uint8_t *o, int64_t c, el_batch *b, int64_t bc, int64_t *n) { (void)e; (void)o; (void)c; (void)b; (void)bc; (void)n; return EL_EINVALID; }
int el_reseal(uint8_t *batch, int64_t body_size, int32_t codec) { (void)batch; (void)body_size; (void)codec; return EL_EINVALID; }
int el_set_header_fields(uint8_t *batch, int64_t size, const el_batch *fields, int32_t mask) { (void)batch; (void)size; (void)fields; (void)mask; return EL_EINVALID; }
int64_t el_stamp(uint8_t *r, int64_t s, int64_t b, int32_t l, uint64_t *d) { (void)r; (void)s; (void)b; (void)l; (void)d; return EL_EINVALID; }
