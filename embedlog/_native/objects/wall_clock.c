/* Wall clock of this extension: the time of records whose caller gives none. `calls` moves it
 * together with that of `_core`. */
#include "objects/objects.h"

static PyObject *clock_set(PyObject *module, PyObject *args) {
    long long shift_ms, frozen_ms;
    if (!PyArg_ParseTuple(args, "LL:set_wall_clock", &shift_ms, &frozen_ms)) {
        return NULL;
    }
    el_shift_wall(shift_ms);
    el_freeze_wall(frozen_ms);
    Py_RETURN_NONE;
}

#ifdef EMBEDLOG_TEST_BUILD
static PyObject *clock_follow(PyObject *module, PyObject *args) {
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "K:follow_clock", &address)) {
        return NULL;
    }
    el_follow_clock((const int64_t *)(uintptr_t)address);
    Py_RETURN_NONE;
}
#endif

PyMethodDef el_clock_functions[] = {
#ifdef EMBEDLOG_TEST_BUILD
    {"follow_clock", clock_follow, METH_VARARGS,
     "follow_clock(address)\n\nThe clock of deadlines is the number at this address; 0: that of "
     "the kernel. Only in the test build."},
#endif
    {"set_wall_clock", clock_set, METH_VARARGS,
     "set_wall_clock(shift_ms, frozen_ms)\n\nThe clock of the kernel plus `shift_ms`; or stopped "
     "at `frozen_ms`, unless that is negative."},
    {NULL},
};
