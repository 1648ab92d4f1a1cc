/* The module `_rows`: takes and makes Python objects through the stable ABI. */
#include "objects/objects.h"
#include "objects/arrow.h"
#include "objects/wire_record.h"

PyTypeObject *el_type_ready(PyObject *module, PyType_Spec *spec) {
    PyObject *type = PyType_FromSpec(spec);
    if (!type) {
        return NULL;
    }
    if (PyModule_AddType(module, (PyTypeObject *)type) < 0) {
        Py_DECREF(type);
        return NULL;
    }
    return (PyTypeObject *)type; /* this reference is never released: the C files use the type */
}

static struct PyModuleDef rows_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "embedlog._native._rows",
    .m_doc = "Python objects of the fast paths: records, futures, the accumulator of send(), lists "
             "of bytes, Arrow data.",
    .m_size = -1,
};

#if defined(Py_GIL_DISABLED) && defined(EMBEDLOG_TEST_BUILD)
int el_sections_off;

static PyObject *sections_set_off(PyObject *module, PyObject *off) {
    el_sections_off = PyObject_IsTrue(off);
    Py_RETURN_NONE;
}

static PyMethodDef extra_functions[] = {
    {"set_sections_off", sections_set_off, METH_O, "A mutant: no lock without the GIL."}, {NULL}};
#else
static PyMethodDef extra_functions[] = {{NULL}};
#endif

/* the interpreter that loaded the module: another one gets a copy of its dictionary */
static int64_t owner;

static PyObject *is_in_another_interpreter(PyObject *module, PyObject *unused) {
    EL_RETURN_TRUTH(PyInterpreterState_GetID(PyInterpreterState_Get()) != owner);
}

static PyMethodDef interpreter_functions[] = {
    {"is_in_another_interpreter", is_in_another_interpreter, METH_NOARGS,
     "Whether another interpreter of the process loaded the module."},
    {NULL},
};

/* Declares that the module needs no GIL, or its import would switch the GIL on. */
static int module_free_threads(PyObject *module) {
#ifdef Py_GIL_DISABLED
    return PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#else
    return 0;
#endif
}

static int module_fill(PyObject *module) {
    PyMethodDef *tables[] = {
        el_record_methods,       el_column_methods,           el_view_methods,
        el_run_methods,          el_producer_batch_functions, el_arrow_import_methods,
        el_arrow_export_methods, el_settling_functions,       el_batch_functions,
        el_clock_functions,      el_record_run_functions,     extra_functions,
        interpreter_functions};
    int (*parts[])(PyObject *) = {
        el_record_ready,       el_accumulator_ready, el_queue_ready,  el_producer_batch_ready,
        el_future_ready,       el_tally_ready,       el_direct_ready, el_router_ready,
        el_arrow_import_ready, el_record_run_ready,  el_scope_ready};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        if (PyModule_AddFunctions(module, tables[i]) < 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i](module) < 0) {
            return -1;
        }
    }
    return 0;
}

PyMODINIT_FUNC PyInit__rows(void) {
    owner = PyInterpreterState_GetID(PyInterpreterState_Get());
    PyObject *module = PyModule_Create(&rows_module);
    if (module && (module_free_threads(module) < 0 || module_fill(module) < 0)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
