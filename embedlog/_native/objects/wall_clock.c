/* Wall clock of this extension: the time of records whose caller gives none. `calls` moves it together with that of `_core`. */
#include "objects/objects.h"

static PyObject *clock_set(PyObject *module, PyObject *args) {
    long long shift_ms, frozen_ms;
    if (!PyArg_ParseTuple(args, "LL:set_wall_clock", &shift_ms, &frozen_ms)) return NULL;
    el_shift_wall(shift_ms);
    el_freeze_wall(frozen_ms);
    Py_RETURN_NONE;
}

PyMethodDef el_clock_functions[] = {
    {"set_wall_clock", clock_set, METH_VARARGS,
     "set_wall_clock(shift_ms, frozen_ms)\n\nThe clock of the kernel plus `shift_ms`; or stopped at `frozen_ms`, unless that is negative."},
    {NULL},
};
