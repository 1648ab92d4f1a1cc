/* Scopes, guards, claims and settings: context managers whose end no interrupt can prevent.
 *
 * The interpreter runs signal handlers between the instructions of Python functions, also at the
 * first instruction of an `__exit__` that is written in Python. An exception that is raised there
 * leaves what the `with` statement holds as it is, for as long as its traceback lives. Here
 * `__enter__` and `__exit__` are C, so no byte code comes before the end that they perform. If an
 * interrupt prevents even the call of `__exit__`, the stack of the interrupted frame is cleared,
 * whoever keeps the traceback, and freeing the object ends it. */
#include "objects/objects.h"
#include <stdatomic.h>

enum { TRIES_MAX = 3 }; /* of an end that is interrupted */

/* ---- Guard ----------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD PyObject *leave, *enter; /* `enter` is NULL or a callable */
    int8_t told;
    _Atomic int8_t entered; /* who sets it back to 0 calls `leave` */
} el_guard;

static int is_callable(PyObject *object, const char *name) {
    if (PyCallable_Check(object)) {
        return 1;
    }
    return PyErr_Format(PyExc_TypeError, "%s is not callable: %R", name, object), 0;
}

static PyObject *guard_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"leave", "enter", "told", NULL};
    PyObject *leave;
    PyObject *enter = Py_None;
    int told = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O$p:Guard", names, &leave, &enter, &told)) {
        return NULL;
    }
    if (!is_callable(leave, "leave") || (enter != Py_None && !is_callable(enter, "enter"))) {
        return NULL;
    }
    el_guard *self = (el_guard *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) {
        return NULL;
    }
    self->leave = Py_NewRef(leave);
    self->enter = enter == Py_None ? NULL : Py_NewRef(enter);
    self->told = (int8_t)told;
    return EL_OBJECT(self);
}

static PyObject *guard_enter(PyObject *object, PyObject *unused) {
    el_guard *self = (el_guard *)object;
    if (self->entered) {
        return PyErr_SetString(PyExc_RuntimeError, "a guard is entered once"), NULL;
    }
    if (!self->enter) {
        self->entered = 1;
        Py_RETURN_NONE;
    }
    PyObject *result = PyObject_CallNoArgs(self->enter);
    int truth = result ? PyObject_IsTrue(result) : 0;
    /* an answer that is not known ends, too: `with` does not call `__exit__`, but the guard is
     * freed */
    self->entered = truth != 0;
    if (truth < 0) {
        Py_CLEAR(result);
    }
    return result;
}

/* Ends the guard once. An end that raises is repeated; its first exception is raised after the last
 * try. */
static PyObject *guard_leave(el_guard *self, PyObject *arguments) {
    if (!atomic_exchange(&self->entered, 0)) {
        Py_RETURN_FALSE;
    }
    PyObject *type = NULL;
    PyObject *value = NULL;
    PyObject *trace = NULL;
    PyObject *result = NULL;
    for (int tries = 0; !result && tries < TRIES_MAX; tries++) {
        result = PyObject_CallObject(self->leave, self->told ? arguments : NULL);
        if (result) {
            break;
        }
        if (type) {
            PyErr_Clear();
        } else {
            PyErr_Fetch(&type, &value, &trace);
        }
    }
    if (!type) {
        return result;
    }
    Py_XDECREF(result);
    PyErr_Restore(type, value, trace);
    return NULL;
}

static PyObject *guard_exit(PyObject *object, PyObject *arguments) {
    PyObject *result = guard_leave((el_guard *)object, arguments);
    if (!result) {
        return NULL;
    }
    int truth = ((el_guard *)object)->told ? PyObject_IsTrue(result) : 0;
    Py_DECREF(result);
    return truth < 0 ? NULL : PyBool_FromLong(truth);
}

/* The end of a guard whose `__exit__` was not called, because the guard is freed or is part of a
 * garbage cycle. */
static void guard_finalize(PyObject *object) {
    el_guard *self = (el_guard *)object;
    if (!self->entered) {
        return;
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *reason = type ? type : PyExc_KeyboardInterrupt;
    PyObject *arguments = PyTuple_Pack(3, reason, value ? value : Py_None, trace ? trace : Py_None);
    PyObject *result = arguments ? guard_leave(self, arguments) : NULL;
    if (!result) {
        PyErr_WriteUnraisable(self->leave);
    }
    Py_XDECREF(result);
    Py_XDECREF(arguments);
    PyErr_Restore(type, value, trace);
}

static int guard_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((el_guard *)object)->leave);
    Py_VISIT(((el_guard *)object)->enter);
    return 0;
}

/* After `guard_finalize`. A cycle that comes to life again finds a guard that does nothing. */
static int guard_clear(PyObject *object) {
    Py_CLEAR(((el_guard *)object)->enter);
    return 0;
}

static void guard_dealloc(PyObject *object) {
    el_guard *self = (el_guard *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    guard_finalize(object);
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
    {Py_tp_new, guard_new},
    {Py_tp_dealloc, guard_dealloc},
    {Py_tp_traverse, guard_traverse},
    {Py_tp_clear, guard_clear},
    {Py_tp_finalize, guard_finalize},
    {Py_tp_methods, guard_methods},
    {Py_tp_doc, "Calls `leave` at the end of a `with` block, whatever is interrupted."},
    {0, NULL},
};

static PyType_Spec guard_spec = {"embedlog._native._rows.Guard", sizeof(el_guard), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
                                 guard_slots};

/* ---- Scope ----------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD _Atomic(PyObject *) generator; /* NULL after the end: who takes it ends it */
    _Atomic int8_t entered;
} el_scope;

static PyObject *name_throw, *name_cause;

static PyObject *scope_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"generator", NULL};
    PyObject *generator;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:Scope", names, &generator)) {
        return NULL;
    }
    el_scope *self = (el_scope *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self) {
        self->generator = Py_NewRef(generator);
    }
    return EL_OBJECT(self);
}

static PyObject *scope_enter(PyObject *object, PyObject *unused) {
    el_scope *self = (el_scope *)object;
    if (atomic_exchange(&self->entered, 1)) {
        return PyErr_SetString(PyExc_RuntimeError, "a scope is entered once"), NULL;
    }
    /* Taken out while it runs: it may call the methods of its own scope. */
    PyObject *generator = atomic_exchange(&self->generator, NULL);
    PyObject *value = NULL;
    if (!generator) {
        return PyErr_SetString(PyExc_RuntimeError, "a scope is entered once"), NULL;
    }
    switch (PyIter_Send(generator, Py_None, &value)) {
    case PYGEN_NEXT: self->generator = generator; return value;
    case PYGEN_RETURN:
        Py_XDECREF(value);
        PyErr_SetString(PyExc_RuntimeError, "the generator of a scope did not yield");
        break;
    default: break;
    }
    PyObject *type, *raised, *trace;
    PyErr_Fetch(&type, &raised, &trace);
    Py_DECREF(generator);
    PyErr_Restore(type, raised, trace);
    return NULL;
}

/* The block ended without an exception. */
static PyObject *generator_finish(PyObject *generator) {
    PyObject *value = NULL;
    switch (PyIter_Send(generator, Py_None, &value)) {
    case PYGEN_RETURN: Py_XDECREF(value); Py_RETURN_FALSE;
    case PYGEN_NEXT:
        Py_XDECREF(value);
        PyErr_SetString(PyExc_RuntimeError, "the generator of a scope did not stop");
        break;
    default: break;
    }
    return NULL;
}

/* Whether the exception is the RuntimeError into which a generator converts a StopIteration of the
 * block. */
static int is_conversion(PyObject *raised, PyObject *given) {
    if (!PyObject_IsInstance(raised, PyExc_RuntimeError) ||
        !PyObject_IsInstance(given, PyExc_StopIteration)) {
        return 0;
    }
    PyObject *cause = PyObject_GetAttr(raised, name_cause);
    Py_XDECREF(cause);
    if (!cause) {
        PyErr_Clear();
    }
    return cause == given;
}

/* The block ended with an exception: True if the generator catches it. */
static PyObject *generator_throw(PyObject *generator, PyObject *value, PyObject *trace) {
    PyObject *result = PyObject_CallMethodObjArgs(generator, name_throw, value, NULL);
    if (result) {
        Py_DECREF(result);
        return PyErr_SetString(PyExc_RuntimeError,
                               "the generator of a scope did not stop after an exception"),
               NULL;
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
    if (same && trace != Py_None && PyException_SetTraceback(value, trace) < 0) {
        return NULL;
    }
    return PyBool_FromLong(caught);
}

static PyObject *scope_exit(PyObject *object, PyObject *arguments) {
    el_scope *self = (el_scope *)object;
    PyObject *type, *value, *trace;
    if (!PyArg_ParseTuple(arguments, "OOO:__exit__", &type, &value, &trace)) {
        return NULL;
    }
    PyObject *generator = self->entered ? atomic_exchange(&self->generator, NULL) : NULL;
    if (!generator) {
        Py_RETURN_FALSE;
    }
    PyObject *made =
        value == Py_None && type != Py_None ? PyObject_CallNoArgs(type) : Py_NewRef(value);
    PyObject *result = !made             ? NULL
                       : made == Py_None ? generator_finish(generator)
                                         : generator_throw(generator, made, trace);
    PyObject *kept_type, *kept, *kept_trace;
    PyErr_Fetch(&kept_type, &kept, &kept_trace);
    Py_XDECREF(made);
    Py_DECREF(generator); /* closes it, if it did not stop */
    PyErr_Restore(kept_type, kept, kept_trace);
    return result;
}

static int scope_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    PyObject *generator = ((el_scope *)object)->generator;
    Py_VISIT(generator);
    return 0;
}

static int scope_clear(PyObject *object) {
    PyObject *generator = atomic_exchange(&((el_scope *)object)->generator, NULL);
    Py_XDECREF(generator);
    return 0;
}

/* The generator of a scope whose `__exit__` was not called is closed, as this is its only
 * reference. */
static void scope_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject *raised_type, *raised, *raised_trace;
    PyObject_GC_UnTrack(object);
    PyErr_Fetch(&raised_type, &raised, &raised_trace);
    scope_clear(object);
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
    {Py_tp_new, scope_new},
    {Py_tp_dealloc, scope_dealloc},
    {Py_tp_traverse, scope_traverse},
    {Py_tp_clear, scope_clear},
    {Py_tp_methods, scope_methods},
    {Py_tp_doc, "A generator as a context manager, whatever is interrupted."},
    {0, NULL},
};

static PyType_Spec scope_spec = {"embedlog._native._rows.Scope", sizeof(el_scope), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
                                 scope_slots};

/* ---- Claim ----------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD PyObject *refuse; /* called with the number of the thread inside; raises */
    _Atomic unsigned long owner;    /* 0: nobody is inside */
    int64_t depth;                  /* of the owner */
} el_claim;

static PyObject *claim_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"refuse", NULL};
    PyObject *refuse;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:Claim", names, &refuse) ||
        !is_callable(refuse, "refuse")) {
        return NULL;
    }
    el_claim *self = (el_claim *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self) {
        self->refuse = Py_NewRef(refuse);
    }
    return EL_OBJECT(self);
}

/* The thread inside: 0 if this one has entered. */
static unsigned long claim_take(el_claim *self) {
    unsigned long own = PyThread_get_thread_ident();
    unsigned long inside = 0;
    if (!atomic_compare_exchange_strong(&self->owner, &inside, own) && inside != own) {
        return inside;
    }
    self->depth++;
    return 0;
}

static PyObject *claim_enter(PyObject *object, PyObject *unused) {
    el_claim *self = (el_claim *)object;
    unsigned long inside = claim_take(self);
    if (!inside) {
        Py_RETURN_NONE;
    }
    PyObject *result = PyObject_CallFunction(self->refuse, "k", inside);
    if (!result) {
        return NULL;
    }
    Py_DECREF(result);
    return PyErr_SetString(PyExc_RuntimeError, "another thread is inside"), NULL;
}

static PyObject *claim_attempt(PyObject *object, PyObject *unused) {
    return PyBool_FromLong(!claim_take((el_claim *)object));
}

static PyObject *claim_exit(PyObject *object, PyObject *unused) {
    el_claim *self = (el_claim *)object;
    if (self->owner == PyThread_get_thread_ident() && --self->depth == 0) {
        self->owner = 0;
    }
    Py_RETURN_FALSE;
}

static int claim_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((el_claim *)object)->refuse);
    return 0;
}

static int claim_clear(PyObject *object) {
    /* `refuse` is called by methods, and has no way back to the claim that its maker does not
     * break */
    return 0;
}

static void claim_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_XDECREF(((el_claim *)object)->refuse);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef claim_methods[] = {
    {"__enter__", claim_enter, METH_NOARGS, "Enter; call `refuse` if another thread is inside."},
    {"__exit__", claim_exit, METH_VARARGS, "Leave."},
    {"attempt", claim_attempt, METH_NOARGS, "Enter; False if another thread is inside."},
    {"leave", claim_exit, METH_NOARGS, "Leave."},
    {NULL},
};

static PyType_Slot claim_slots[] = {
    {Py_tp_new, claim_new},
    {Py_tp_dealloc, claim_dealloc},
    {Py_tp_traverse, claim_traverse},
    {Py_tp_clear, claim_clear},
    {Py_tp_methods, claim_methods},
    {Py_tp_doc, "The right of one thread to be inside; it may enter again."},
    {0, NULL},
};

static PyType_Spec claim_spec = {"embedlog._native._rows.Claim", sizeof(el_claim), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
                                 claim_slots};

/* ---- Setting --------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD PyObject *holder, *name, *value;
    _Atomic(PyObject *) before; /* the value to be restored; NULL outside of the block */
} el_setting;

static PyObject *setting_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"holder", "name", "value", NULL};
    PyObject *holder, *name, *value;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OUO:Setting", names, &holder, &name,
                                     &value)) {
        return NULL;
    }
    el_setting *self = (el_setting *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) {
        return NULL;
    }
    self->holder = Py_NewRef(holder);
    self->name = Py_NewRef(name);
    self->value = Py_NewRef(value);
    return EL_OBJECT(self);
}

static PyObject *setting_enter(PyObject *object, PyObject *unused) {
    el_setting *self = (el_setting *)object;
    if (self->before) {
        return PyErr_SetString(PyExc_RuntimeError, "a setting is entered once"), NULL;
    }
    PyObject *before = PyObject_GetAttr(self->holder, self->name);
    if (!before) {
        return NULL;
    }
    if (PyObject_SetAttr(self->holder, self->name, self->value) < 0) {
        Py_DECREF(before);
        return NULL;
    }
    self->before = before;
    return Py_NewRef(self->value);
}

static PyObject *setting_exit(PyObject *object, PyObject *unused) {
    el_setting *self = (el_setting *)object;
    PyObject *before = atomic_exchange(&self->before, NULL);
    if (!before) {
        Py_RETURN_FALSE;
    }
    int code = PyObject_SetAttr(self->holder, self->name, before);
    Py_DECREF(before);
    if (code < 0) {
        return NULL;
    }
    Py_RETURN_FALSE;
}

static int setting_traverse(PyObject *object, visitproc visit, void *arg) {
    el_setting *self = (el_setting *)object;
    PyObject *before = self->before;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->holder);
    Py_VISIT(self->value);
    Py_VISIT(before);
    return 0;
}

static int setting_clear(PyObject *object) {
    PyObject *before = atomic_exchange(&((el_setting *)object)->before, NULL);
    Py_XDECREF(before);
    return 0; /* the other fields are used by methods */
}

static void setting_dealloc(PyObject *object) {
    el_setting *self = (el_setting *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    setting_clear(object);
    Py_XDECREF(self->holder);
    Py_XDECREF(self->name);
    Py_XDECREF(self->value);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef setting_methods[] = {
    {"__enter__", setting_enter, METH_NOARGS, "Set the attribute."},
    {"__exit__", setting_exit, METH_VARARGS, "Restore the attribute."},
    {NULL},
};

static PyType_Slot setting_slots[] = {
    {Py_tp_new, setting_new},
    {Py_tp_dealloc, setting_dealloc},
    {Py_tp_traverse, setting_traverse},
    {Py_tp_clear, setting_clear},
    {Py_tp_methods, setting_methods},
    {Py_tp_doc, "A value of an attribute during a block."},
    {0, NULL},
};

static PyType_Spec setting_spec = {
    "embedlog._native._rows.Setting", sizeof(el_setting), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, setting_slots};

int el_scope_ready(PyObject *module) {
    PyType_Spec *specs[] = {&guard_spec, &scope_spec, &claim_spec, &setting_spec};
    name_throw = PyUnicode_InternFromString("throw");
    name_cause = PyUnicode_InternFromString("__cause__");
    if (!name_throw || !name_cause) {
        return -1;
    }
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        if (!el_type_ready(module, specs[i])) {
            return -1;
        }
    }
    return 0;
}
