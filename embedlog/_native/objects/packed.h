/* Compression of a batch for a direct append. */
#ifndef EL_PACKED_H
#define EL_PACKED_H

#include "objects/producer.h"

/* A compressed copy of a batch, with EL_HEADER_SIZE free bytes at its front. `data` NULL: it is
 * written as it is. */
typedef struct {
    uint8_t *data;
    int64_t size;
} el_packed;

/* Compresses the batch, if its queue compresses: 1, 0 if the thread must do it, or -1 with the
 * exception of a signal handler. The batch is sealed: no record is added any more. A packer that
 * fails returns None; the thread meets the error again. */
int el_packed_make(el_packed *packed, const el_queue *queue, el_producer_batch *batch);

#endif
