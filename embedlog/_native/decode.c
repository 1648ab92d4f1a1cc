#include "bytes.h"
int el_decode(const el_batch *b, const uint8_t *const *bo, const int64_t *s, int64_t c, const el_window *w, el_columns *o, int64_t *bad, el_problem *p) { (void)b;(void)bo;(void)s;(void)c;(void)w;(void)o;(void)bad;(void)p; return EL_EINVALID; }
int el_decode_run(const uint8_t *d, int64_t s, int64_t base, const el_batch *b, int64_t c, const el_window *w, el_columns *o, int64_t *bad, el_problem *p) { (void)b;(void)d;(void)base;(void)s;(void)c;(void)w;(void)o;(void)bad;(void)p; return EL_EINVALID; }
int el_decode_headers(const el_batch *b, const uint8_t *d, int64_t s, const el_window *w, el_headers *o, el_problem *p) { (void)b;(void)d;(void)s;(void)w;(void)o;(void)p; return EL_EINVALID; }
