/* Scopes and guards: context managers whose end no interrupt can prevent.
 *
 * The interpreter runs signal handlers between the instructions of Python functions, also at the first instruction of an `__exit__` that is
 * written in Python. An exception that is raised there leaves what the `with` statement holds as it is, for as long as its traceback lives.
 * Here `__enter__` and `__exit__` are C, so no byte code comes before the end that they perform. If an interrupt prevents even the call of
 * `__exit__`, the stack of the interrupted frame is cleared, whoever keeps the traceback, and freeing the object ends it. */
#include "objects/objects.h"

enum { TRIES_MAX = 3 }; /* of an end that is interrupted */

/* ---- Guard -------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *leave, *enter;     /* `enter` is NULL or a callable */
    int8_t told, entered;
} el_guard;

static PyObject *guard_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"leave", "enter", "told", NULL};
    PyObject *leave, *enter = Py_None;
    int told = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O$p:Guard", names, &leave, &enter, &told)) return NULL;
    el_guard *self = (el_guard *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    self->leave = Py_NewRef(leave);
    self->enter = enter == Py_None ? NULL : Py_NewRef(enter);
    self->told = (int8_t)told;
    return EL_OBJECT(self);
}

static PyObject *guard_enter(PyObject *object, PyObject *unused) {
    el_guard *self = (el_guard *)object;
    if (self->entered) return PyErr_SetString(PyExc_RuntimeError, "a guard is entered once"), NULL;
    if (!self->enter) {
        self->entered = 1;
        Py_RETURN_NONE;
    }
    PyObject *result = PyObject_CallNoArgs(self->enter);
    int truth = result ? PyObject_IsTrue(result) : -1;
    if (truth < 0) Py_CLEAR(result);
    self->entered = truth > 0;
    return result;
}

/* Ends the guard once. An end that raises is repeated; its first exception is raised after the last try. */
static PyObject *guard_leave(el_guard *self, PyObject *arguments) {
    if (!self->entered) Py_RETURN_FALSE;
    self->entered = 0;
    PyObject *type = NULL, *value = NULL, *trace = NULL, *result = NULL;
    for (int tries = 0; !result && tries < TRIES_MAX; tries++) {
        result = PyObject_CallObject(self->leave, self->told ? arguments : NULL);
        if (result) break;
        if (type) PyErr_Clear();
        else PyErr_Fetch(&type, &value, &trace);
    }
    if (!type) return result;
    Py_XDECREF(result);
    PyErr_Restore(type, value, trace);
    return NULL;
}

static PyObject *guard_exit(PyObject *object, PyObject *arguments) {
    PyObject *result = guard_leave((el_guard *)object, arguments);
    if (!result) return NULL;
    int truth = ((el_guard *)object)->told ? PyObject_IsTrue(result) : 0;
    Py_DECREF(result);
    return truth < 0 ? NULL : PyBool_FromLong(truth);
}

/* The end of a guard whose `__exit__` was not called. */
static void guard_drop(el_guard *self) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *reason = type ? type : PyExc_KeyboardInterrupt;
    PyObject *arguments = PyTuple_Pack(3, reason, value ? value : Py_None, trace ? trace : Py_None);
    PyObject *result = arguments ? guard_leave(self, arguments) : NULL;
    if (!result) PyErr_WriteUnraisable(self->leave);
    Py_XDECREF(result);
    Py_XDECREF(arguments);
    PyErr_Restore(type, value, trace);
}

static void guard_dealloc(PyObject *object) {
    el_guard *self = (el_guard *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->entered) guard_drop(self);
    Py_XDECREF(self->leave);
    Py_XDECREF(self->enter);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef guard_methods[] = {
    {"__enter__", guard_enter, METH_NOARGS, "Call `enter`."},
    {"__exit__", guard_exit, METH_VARARGS, "Call `leave`."},
    {NULL},
};

static PyType_Slot guard_slots[] = {
    {Py_tp_new, guard_new}, {Py_tp_dealloc, guard_dealloc}, {Py_tp_methods, guard_methods},
    {Py_tp_doc, "Calls `leave` at the end of a `with` block, whatever is interrupted."}, {0, NULL},
};

static PyType_Spec guard_spec = {"embedlog._native._rows.Guard", sizeof(el_guard), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, guard_slots};

/* ---- Scope -------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *generator;         /* NULL after the end */
    int8_t entered;
} el_scope;

static PyObject *name_throw, *name_cause;

static PyObject *scope_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"generator", NULL};
    PyObject *generator;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:Scope", names, &generator)) return NULL;
    el_scope *self = (el_scope *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self) self->generator = Py_NewRef(generator);
    return EL_OBJECT(self);
}

static PyObject *scope_enter(PyObject *object, PyObject *unused) {
    el_scope *self = (el_scope *)object;
    if (self->entered || !self->generator) return PyErr_SetString(PyExc_RuntimeError, "a scope is entered once"), NULL;
    PyObject *value = NULL;
    self->entered = 1;
    switch (PyIter_Send(self->generator, Py_None, &value)) {
        case PYGEN_NEXT: return value;
        case PYGEN_RETURN: Py_XDECREF(value); PyErr_SetString(PyExc_RuntimeError, "the generator of a scope did not yield"); break;
        default: break;
    }
    Py_CLEAR(self->generator);
    return NULL;
}

/* The block ended without an exception. */
static PyObject *generator_finish(PyObject *generator) {
    PyObject *value = NULL;
    switch (PyIter_Send(generator, Py_None, &value)) {
        case PYGEN_RETURN: Py_XDECREF(value); Py_RETURN_FALSE;
        case PYGEN_NEXT: Py_XDECREF(value); PyErr_SetString(PyExc_RuntimeError, "the generator of a scope did not stop"); break;
        default: break;
    }
    return NULL;
}

/* Whether the exception is the RuntimeError into which a generator converts a StopIteration of the block. */
static int is_conversion(PyObject *raised, PyObject *given) {
    if (!PyObject_IsInstance(raised, PyExc_RuntimeError) || !PyObject_IsInstance(given, PyExc_StopIteration)) return 0;
    PyObject *cause = PyObject_GetAttr(raised, name_cause);
    Py_XDECREF(cause);
    if (!cause) PyErr_Clear();
    return cause == given;
}

/* The block ended with an exception: True if the generator catches it. */
static PyObject *generator_throw(PyObject *generator, PyObject *value, PyObject *trace) {
    PyObject *result = PyObject_CallMethodObjArgs(generator, name_throw, value, NULL);
    if (result) {
        Py_DECREF(result);
        return PyErr_SetString(PyExc_RuntimeError, "the generator of a scope did not stop after an exception"), NULL;
    }
    PyObject *raised_type, *raised, *raised_trace;
    PyErr_Fetch(&raised_type, &raised, &raised_trace);
    PyErr_NormalizeException(&raised_type, &raised, &raised_trace);
    int same = raised == value || is_conversion(raised, value);
    int caught = !same && PyErr_GivenExceptionMatches(raised_type, PyExc_StopIteration);
    if (!same && !caught) {
        PyErr_Restore(raised_type, raised, raised_trace);
        return NULL;
    }
    Py_XDECREF(raised_type);
    Py_XDECREF(raised);
    Py_XDECREF(raised_trace);
    if (same && trace != Py_None && PyException_SetTraceback(value, trace) < 0) return NULL;
    return PyBool_FromLong(caught);
}

static PyObject *scope_exit(PyObject *object, PyObject *arguments) {
    el_scope *self = (el_scope *)object;
    PyObject *type, *value, *trace;
    if (!PyArg_ParseTuple(arguments, "OOO:__exit__", &type, &value, &trace)) return NULL;
    PyObject *generator = self->generator;
    if (!generator || !self->entered) Py_RETURN_FALSE;
    self->generator = NULL;
    PyObject *result = value == Py_None ? generator_finish(generator) : generator_throw(generator, value, trace);
    PyObject *kept_type, *kept, *kept_trace;
    PyErr_Fetch(&kept_type, &kept, &kept_trace);
    Py_DECREF(generator); /* closes it, if it did not stop */
    PyErr_Restore(kept_type, kept, kept_trace);
    return result;
}

static int scope_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((el_scope *)object)->generator);
    return 0;
}

static int scope_clear(PyObject *object) {
    Py_CLEAR(((el_scope *)object)->generator);
    return 0;
}

/* The generator of a scope whose `__exit__` was not called is closed, as this is its only reference. */
static void scope_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject *raised_type, *raised, *raised_trace;
    PyObject_GC_UnTrack(object);
    PyErr_Fetch(&raised_type, &raised, &raised_trace);
    Py_CLEAR(((el_scope *)object)->generator);
    PyErr_Restore(raised_type, raised, raised_trace);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef scope_methods[] = {
    {"__enter__", scope_enter, METH_NOARGS, "Run the generator up to its `yield`."},
    {"__exit__", scope_exit, METH_VARARGS, "Run the generator to its end."},
    {NULL},
};

static PyType_Slot scope_slots[] = {
    {Py_tp_new, scope_new}, {Py_tp_dealloc, scope_dealloc}, {Py_tp_traverse, scope_traverse}, {Py_tp_clear, scope_clear},
    {Py_tp_methods, scope_methods}, {Py_tp_doc, "A generator as a context manager, whatever is interrupted."}, {0, NULL},
};

static PyType_Spec scope_spec = {"embedlog._native._rows.Scope", sizeof(el_scope), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, scope_slots};

int el_scope_ready(PyObject *module) {
    name_throw = PyUnicode_InternFromString("throw");
    name_cause = PyUnicode_InternFromString("__cause__");
    return name_throw && name_cause && el_type_ready(module, &guard_spec) && el_type_ready(module, &scope_spec) ? 0 : -1;
}
