/* A parsed record as a Python object. */
#ifndef EL_WIRE_RECORD_H
#define EL_WIRE_RECORD_H

#include "codec/record.h"
#include "objects/record.h"

/* The record of a walk as a new object; NULL if its headers are invalid, then possibly without an
 * exception. */
el_record *el_record_of_wire(PyObject *topic, int32_t partition, const el_batch *batch,
                             const el_wire_record *wire);

int el_record_run_ready(PyObject *module);
extern PyMethodDef el_record_run_functions[];

#endif
