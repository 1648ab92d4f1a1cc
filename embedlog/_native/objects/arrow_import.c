/* Arrow import: converts the results of `__arrow_c_array__` and `__arrow_c_stream__` to tuples of
 * views for Python.
 *
 * - A taken structure is released exactly once, by the owner object that all its views keep alive.
 * - The size of a view follows from format and lengths: the interface contains no sizes, so unknown
 *   formats get no views.
 * - Only memory that the format guarantees is read; the caller checks offsets.
 * - One thread at a time calls a producer, without the GIL. */
#include "objects/arrow.h"

#include "codec/varint.h"
#include "objects/columns.h"

#include <limits.h>

/* ---- owners and views ------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD struct ArrowArray array; /* release NULL: nothing is held */
} Owner;

typedef struct {
    PyObject_HEAD PyObject *owner;
    const void *start;
    Py_ssize_t size, width;
} View;

static PyTypeObject *owner_type, *view_type;

/* A producer's release function can run Python code, which must not see the exception because of
 * which an object is dropped. */
#define WITHOUT_EXCEPTION(call)                                                                    \
    do {                                                                                           \
        PyObject *kind, *value, *traceback;                                                        \
        PyErr_Fetch(&kind, &value, &traceback);                                                    \
        call;                                                                                      \
        PyErr_Restore(kind, value, traceback);                                                     \
    } while (0)

static void owner_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    Owner *self = (Owner *)object;
    if (self->array.release) {
        WITHOUT_EXCEPTION(self->array.release(&self->array));
    }
    PyObject_Free(object);
    Py_DECREF(type);
}

static void view_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(((View *)object)->owner);
    PyObject_Free(object);
    Py_DECREF(type);
}

static int view_getbuffer(PyObject *object, Py_buffer *buffer, int flags) {
    View *self = (View *)object;
    return PyBuffer_FillInfo(buffer, object, (void *)self->start, self->size, 1, flags);
}

static PyType_Slot owner_slots[] = {{Py_tp_dealloc, owner_dealloc}, {0, NULL}};
static PyType_Slot view_slots[] = {{Py_tp_dealloc, view_dealloc},
                                   {Py_bf_getbuffer, view_getbuffer},
                                   {Py_tp_doc, "Borrowed memory."},
                                   {0, NULL}};
enum { PLAIN = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION };
static PyType_Spec owner_spec = {"embedlog._native._rows.ArrowOwner", sizeof(Owner), 0, PLAIN,
                                 owner_slots};
static PyType_Spec view_spec = {"embedlog._native._rows.ArrowView", sizeof(View), 0, PLAIN,
                                view_slots};

static PyObject *view_new(PyObject *owner, const void *start, int64_t size) {
    static const uint64_t nothing = 0;
    if (size < 0 || (size > 0 && !start)) {
        return PyErr_SetString(PyExc_ValueError, "an Arrow buffer is missing"), NULL;
    }
    View *view = (View *)PyType_GenericAlloc(view_type, 0);
    if (!view) {
        return NULL;
    }
    view->owner = Py_NewRef(owner);
    view->start = size ? start : &nothing;
    view->size = (Py_ssize_t)size;
    return EL_OBJECT(view);
}

/* ---- sizes of buffers ------------------------------------------------------------------------ */

/* The width that `w:N` declares, or -1: N is a number from 0 to INT32_MAX, as Arrow's own libraries
 * limit it. */
static int64_t declared_width(const char *format) {
    int64_t width = 0;
    const char *digit = format + 2;
    do {
        if (*digit < '0' || *digit > '9') {
            return -1;
        }
        width = width * 10 + (*digit - '0');
        if (width > INT32_MAX) {
            return -1;
        }
    } while (*++digit);
    return width;
}

/* Bytes of one value of a fixed-width format, or -1. */
static int64_t fixed_width(const char *format) {
    switch (format[0]) {
    case 'c':
    case 'C': return format[1] ? -1 : 1;
    case 's':
    case 'S': return format[1] ? -1 : 2;
    case 'i':
    case 'I': return format[1] ? -1 : 4;
    case 'l':
    case 'L': return format[1] ? -1 : 8;
    case 'w': return format[1] == ':' ? declared_width(format) : -1;
    case 't': /* timestamps and dates; other time types are not supported */
        if (format[1] == 's') {
            return 8;
        }
        if (!strcmp(format, "tdD")) {
            return 4;
        }
        return strcmp(format, "tdm") ? -1 : 8;
    default: return -1;
    }
}

static int is_bytes(const char *format) {
    return format[0] && strchr("zZuU", format[0]) && !format[1];
}
static int is_byte_view(const char *format) {
    return format[0] == 'v' && (format[1] == 'z' || format[1] == 'u') && !format[2];
}
static int is_list(const char *format) {
    return format[0] == '+' && (format[1] == 'l' || format[1] == 'L' || format[1] == 'm') &&
           !format[2];
}

static int64_t last_offset(const void *offsets, int64_t rows, int wide) {
    if (!offsets) {
        return rows ? -1 : 0;
    }
    return offset_at(offsets, rows, wide ? 8 : 4);
}

/* Bytes of buffer `number` of an array, -1 if unknown: then there is no view. */
static int64_t buffer_size(const char *format, const struct ArrowArray *array, int64_t number) {
    int64_t rows = array->length + array->offset;
    int wide = format[0] == 'Z' || format[0] == 'U' || (is_list(format) && format[1] == 'L');
    if (number == 0) {
        return (rows + 7) / 8;
    }
    if (is_byte_view(format)) {
        if (number == 1) {
            return rows * 16;
        }
        if (number == array->n_buffers - 1) {
            return (array->n_buffers - 3) * 8;
        }
        const void *sizes = array->buffers[array->n_buffers - 1];
        return sizes ? offset_at(sizes, number - 2, 8) : -1;
    }
    if (is_bytes(format) && number == 2) {
        return last_offset(array->buffers[1], rows, wide);
    }
    if (number != 1) {
        return -1;
    }
    if (is_bytes(format) || is_list(format)) {
        return array->buffers[1] ? (rows + 1) * (wide ? 8 : 4) : rows ? -1 : 0;
    }
    int64_t width = fixed_width(format);
    int64_t size;
    return width < 0 || __builtin_mul_overflow(rows, width, &size) ? -1 : size;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* The buffers that an array of a format has, at least: views have more. 0: the format is not
 * supported, and its buffers are not looked at. */
static int64_t buffers_least(const char *format) {
    if (is_bytes(format) || is_byte_view(format)) {
        return 3;
    }
    if (is_list(format) || fixed_width(format) >= 0) {
        return 2;
    }
    return strcmp(format, "+s") ? 0 : 1;
}

static PyObject *buffers_of(const struct ArrowSchema *schema, const struct ArrowArray *array,
                            PyObject *owner) {
    int64_t least = buffers_least(schema->format);
    if (array->n_buffers < least ||
        (array->n_buffers > least && least && !is_byte_view(schema->format)) ||
        array->n_buffers > INT32_MAX) {
        return PyErr_SetString(
                   PyExc_ValueError,
                   "the Arrow array does not fit its schema: it has another number of buffers"),
               NULL;
    }
    Py_ssize_t count = least ? (Py_ssize_t)array->n_buffers : 0;
    PyObject *views = PyTuple_New(count);
    for (Py_ssize_t i = 0; views && i < count; i++) {
        int64_t size = array->buffers[i] || i ? buffer_size(schema->format, array, i) : -1;
        PyObject *view =
            size < 0 && i == 0 ? Py_NewRef(Py_None) : view_new(owner, array->buffers[i], size);
        if (!view || PyTuple_SetItem(views, i, view) < 0) {
            Py_CLEAR(views);
        }
    }
    return views;
}

enum { DEPTH_MAX = 8 };           /* a supported table has three levels */
#define ROWS_MAX (INT64_MAX / 64) /* so that no size of a buffer overflows */

static PyObject *node_of(const struct ArrowSchema *schema, const struct ArrowArray *array,
                         PyObject *owner, int depth);

/* The node of the dictionary, None without one, or NULL with an exception. */
static PyObject *dictionary_of(const struct ArrowSchema *schema, const struct ArrowArray *array,
                               PyObject *owner, int depth) {
    if (!schema->dictionary) {
        return Py_NewRef(Py_None);
    }
    if (!array->dictionary) {
        return PyErr_SetString(PyExc_ValueError,
                               "the Arrow array does not fit its schema: it has no dictionary"),
               NULL;
    }
    return node_of(schema->dictionary, array->dictionary, owner, depth + 1);
}

/* (name, format, length, offset, null_count, buffers, children, dictionary) */
static PyObject *node_of(const struct ArrowSchema *schema, const struct ArrowArray *array,
                         PyObject *owner, int depth) {
    int sane = array->length >= 0 && array->offset >= 0 && array->length <= ROWS_MAX &&
               array->offset <= ROWS_MAX && array->n_buffers >= 0 &&
               (array->buffers || !array->n_buffers) && schema->n_children >= 0 && schema->format;
    if (depth > DEPTH_MAX || schema->n_children != array->n_children || !sane) {
        return PyErr_SetString(PyExc_ValueError, "the Arrow array does not fit its schema"), NULL;
    }
    PyObject *children = PyTuple_New((Py_ssize_t)schema->n_children);
    for (int64_t i = 0; children && i < schema->n_children; i++) {
        PyObject *child = node_of(schema->children[i], array->children[i], owner, depth + 1);
        if (!child || PyTuple_SetItem(children, (Py_ssize_t)i, child) < 0) {
            Py_CLEAR(children);
        }
    }
    PyObject *buffers = children ? buffers_of(schema, array, owner) : NULL;
    PyObject *dictionary = buffers ? dictionary_of(schema, array, owner, depth) : NULL;
    if (!dictionary) {
        Py_XDECREF(children);
        Py_XDECREF(buffers);
        return NULL;
    }
    return Py_BuildValue("(ssLLLNNN)", schema->name ? schema->name : "", schema->format,
                         (long long)array->length, (long long)array->offset,
                         (long long)array->null_count, buffers, children, dictionary);
}

/* Takes the array over in every case. */
static PyObject *node_take(const struct ArrowSchema *schema, struct ArrowArray array) {
    Owner *owner = (Owner *)PyType_GenericAlloc(owner_type, 0);
    if (!owner) {
        array.release(&array);
        return NULL;
    }
    owner->array = array;
    PyObject *node = node_of(schema, &owner->array, EL_OBJECT(owner), 0);
    Py_DECREF(owner);
    return node;
}

/* ---- capsules -------------------------------------------------------------------------------- */

static PyObject *arrow_from_array(PyObject *module, PyObject *args) {
    PyObject *schema_capsule, *array_capsule;
    if (!PyArg_ParseTuple(args, "OO:arrow_from_array", &schema_capsule, &array_capsule)) {
        return NULL;
    }
    struct ArrowSchema *schema = PyCapsule_GetPointer(schema_capsule, "arrow_schema");
    struct ArrowArray *array = schema ? PyCapsule_GetPointer(array_capsule, "arrow_array") : NULL;
    if (!array) {
        return NULL;
    }
    el_section section;
    el_section_enter(&section, array_capsule); /* one thread takes it */
    struct ArrowArray taken = *array;
    if (schema->release) {
        array->release = NULL;
    }
    el_section_leave(&section);
    if (!schema->release || !taken.release) {
        return PyErr_SetString(PyExc_ValueError, "the Arrow array was taken before"), NULL;
    }
    return node_take(schema, taken); /* the schema remains with its capsule, which releases it */
}

typedef struct {
    PyObject_HEAD struct ArrowArrayStream stream;
    struct ArrowSchema schema;
    /* held during a call of the producer: two threads must not call it at the same time */
    PyThread_type_lock turn;
    unsigned long thread; /* the thread inside the producer */
} Stream;

static PyTypeObject *stream_type;

static void stream_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    Stream *self = (Stream *)object;
    if (self->schema.release) {
        WITHOUT_EXCEPTION(self->schema.release(&self->schema));
    }
    if (self->stream.release) {
        WITHOUT_EXCEPTION(self->stream.release(&self->stream));
    }
    if (self->turn) {
        PyThread_free_lock(self->turn);
    }
    PyObject_Free(object);
    Py_DECREF(type);
}

/* 0, or -1 with an exception if this thread is already inside the producer: it would wait for
 * itself. */
static int stream_enter(Stream *self) {
    unsigned long me = PyThread_get_thread_ident();
    if (!PyThread_acquire_lock(self->turn, NOWAIT_LOCK)) {
        if (__atomic_load_n(&self->thread, __ATOMIC_RELAXED) == me) {
            return PyErr_SetString(PyExc_RuntimeError,
                                   "this thread is already inside the Arrow stream"),
                   -1;
        }
        Py_BEGIN_ALLOW_THREADS
        PyThread_acquire_lock(self->turn, WAIT_LOCK);
        Py_END_ALLOW_THREADS
    }
    __atomic_store_n(&self->thread, me, __ATOMIC_RELAXED);
    return 0;
}

static void stream_leave(Stream *self) {
    __atomic_store_n(&self->thread, 0, __ATOMIC_RELAXED);
    PyThread_release_lock(self->turn);
}

static PyObject *stream_error(Stream *self, int code) {
    const char *words =
        self->stream.get_last_error ? self->stream.get_last_error(&self->stream) : NULL;
    return PyErr_Format(PyExc_ValueError, "the Arrow stream failed: %s (error %d)",
                        words ? words : "no reason given", code);
}

static PyObject *stream_next(PyObject *object) {
    Stream *self = (Stream *)object;
    struct ArrowArray array = {0};
    int code;
    if (stream_enter(self) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    code = self->stream.get_next(&self->stream, &array);
    Py_END_ALLOW_THREADS
    if (code && !PyErr_Occurred()) {
        stream_error(self, code);
    }
    stream_leave(self);
    if (code || !array.release) {
        return NULL; /* an error, or the end: StopIteration */
    }
    return node_take(&self->schema, array);
}

static PyType_Slot stream_slots[] = {{Py_tp_dealloc, stream_dealloc},
                                     {Py_tp_iter, PyObject_SelfIter},
                                     {Py_tp_iternext, stream_next},
                                     {Py_tp_doc, "Arrays of a stream."},
                                     {0, NULL}};
static PyType_Spec stream_spec = {"embedlog._native._rows.ArrowStream", sizeof(Stream), 0, PLAIN,
                                  stream_slots};

static PyObject *arrow_from_stream(PyObject *module, PyObject *capsule) {
    struct ArrowArrayStream *given = PyCapsule_GetPointer(capsule, "arrow_array_stream");
    if (!given) {
        return NULL;
    }
    Stream *self = (Stream *)PyType_GenericAlloc(stream_type, 0);
    if (!self) {
        return NULL;
    }
    self->turn = PyThread_allocate_lock();
    if (!self->turn) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    el_section section;
    el_section_enter(&section, capsule); /* one thread takes it */
    self->stream = *given;
    given->release = NULL;
    el_section_leave(&section);
    if (!self->stream.release) {
        Py_DECREF(self);
        return PyErr_SetString(PyExc_ValueError, "the Arrow stream was taken before"), NULL;
    }
    int code = self->stream.get_schema(&self->stream, &self->schema);
    if (!code) {
        return EL_OBJECT(self);
    }
    stream_error(self, code);
    Py_DECREF(self);
    return NULL;
}

int el_arrow_import_ready(PyObject *module) {
    owner_type = el_type_ready(module, &owner_spec);
    view_type = owner_type ? el_type_ready(module, &view_spec) : NULL;
    stream_type = view_type ? el_type_ready(module, &stream_spec) : NULL;
    return stream_type ? 0 : -1;
}

PyMethodDef el_arrow_import_methods[] = {
    {"arrow_from_array", arrow_from_array, METH_VARARGS,
     "arrow_from_array(schema capsule, array capsule) -> node\n\n"
     "A node is (name, format, length, offset, null_count, buffers, children, dictionary); a "
     "dictionary is a node or None,\n"
     "a buffer is None or has the buffer protocol, and keeps the whole array alive. Unsupported "
     "formats have no buffers."},
    {"arrow_from_stream", arrow_from_stream, METH_O,
     "arrow_from_stream(capsule) -> iterator of nodes, of struct format for a table."},
    {NULL},
};
