/* The class Record. */
#ifndef EL_RECORD_OBJECT_H
#define EL_RECORD_OBJECT_H

#include "objects/objects.h"

typedef struct {
    PyObject_HEAD PyObject *topic, *key, *value, *headers;
    int64_t offset, timestamp_ms;
    int32_t partition, leader_epoch;
    int8_t timestamp_type;
    /* may contain the user's objects: the collector visits it, and freeing it may free other
     * records */
    int8_t shared;
} el_record;

extern PyTypeObject *el_record_type;
extern PyObject *el_no_headers; /* the empty tuple, shared by all */

/* A record with all its objects NULL, or NULL with an exception set. Only for bytes, None and
 * headers made here: they are in no cycle. */
el_record *el_record_alloc(void);

#endif
