/* What all files of `_rows` use: the extension with Python objects.
 *
 * - The GIL is the lock of all structures here, or without it the section of the accumulator
 *   (section.h). Both are released only for sleeping, and for joining and checksumming sealed
 *   batches, which no thread changes any more.
 * - Fast functions return None for every unusual case and leave it to Python, which can raise
 *   precise errors. */
#ifndef EL_OBJECTS_H
#define EL_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "api/native.h"
#include "objects/section.h"

#define EL_OBJECT(x) ((PyObject *)(x))

/* Stores a new reference to `object` in `*place` and releases the previous one. */
static inline void el_replace(PyObject **place, PyObject *object) {
    PyObject *old = *place;
    *place = Py_XNewRef(object);
    Py_XDECREF(old);
}

#define EL_RETURN_TRUTH(x) return PyBool_FromLong(x)

int el_record_ready(PyObject *module);
int el_accumulator_ready(PyObject *module);
int el_queue_ready(PyObject *module);
int el_producer_batch_ready(PyObject *module);
int el_future_ready(PyObject *module);
int el_tally_ready(PyObject *module);
int el_direct_ready(PyObject *module);
int el_router_ready(PyObject *module);
int el_arrow_import_ready(PyObject *module);
int el_scope_ready(PyObject *module);

/* Creates a type from its spec and adds it to the module: a borrowed reference that lives as long
 * as the module, or NULL. */
PyTypeObject *el_type_ready(PyObject *module, PyType_Spec *spec);

/* The functions of the module, by file. */
extern PyMethodDef el_record_methods[], el_column_methods[], el_view_methods[], el_run_methods[],
    el_producer_batch_functions[], el_arrow_import_methods[], el_settling_functions[],
    el_batch_functions[], el_clock_functions[];

#endif
