/* Arrow export as a stream: each `get_next` calls a Python function for the description of the next
 * array.
 *
 * - A consumer calls from any thread, usually without the GIL: every entry takes it.
 * - A Python exception becomes an errno and a text, so that the consumer's error contains its
 *   message.
 * - The function is not called again after the end or after an error.
 * - The section of the schema is the lock of the stream's state: it protects memory from two
 *   threads that call it at once. */
#include "objects/arrow.h"

#include "objects/section.h"

#include <errno.h>
#include <string.h>

typedef struct {
    PyObject *schema;
    PyObject *next;  /* NULL after the end or a failure of the stream */
    PyObject *error; /* str: get_last_error returns its UTF-8 */
    int error_code;
} StreamHolding;

/* Ends the stream. The first error is kept until the release: a consumer may be reading its
 * text. */
static void stream_end(StreamHolding *holding, PyObject *error, int code) {
    el_section section;
    el_section_enter(&section, holding->schema);
    PyObject *next = holding->next;
    PyObject *unused = holding->error ? error : NULL;
    holding->next = NULL;
    if (!holding->error) {
        holding->error = error;
        holding->error_code = code;
    }
    el_section_leave(&section);
    Py_XDECREF(next);
    Py_XDECREF(unused);
}

/* Stores the raised exception as the stream's error; returns the errno for it. */
static int stream_fail(StreamHolding *holding) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    int code = type && PyErr_GivenExceptionMatches(type, PyExc_MemoryError) ? ENOMEM : EIO;
    PyObject *name = type ? PyObject_GetAttrString(type, "__name__") : NULL;
    PyObject *text = name && value ? PyUnicode_FromFormat("%U: %S", name, value) : NULL;
    PyErr_Clear();
    stream_end(holding, text, code);
    Py_XDECREF(name);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return code;
}

/* The function of the stream as a new reference; NULL after the end, then with the error code. */
static PyObject *stream_function(StreamHolding *holding, int *code) {
    el_section section;
    el_section_enter(&section, holding->schema);
    PyObject *next = Py_XNewRef(holding->next);
    *code = holding->error_code;
    el_section_leave(&section);
    return next;
}

static int stream_schema(struct ArrowArrayStream *stream, struct ArrowSchema *out) {
    StreamHolding *holding = stream->private_data;
    PyGILState_STATE gil = PyGILState_Ensure();
    int code = el_arrow_schema_fill(holding->schema, out) < 0 ? stream_fail(holding) : 0;
    PyGILState_Release(gil);
    return code;
}

static int stream_next(struct ArrowArrayStream *stream, struct ArrowArray *out) {
    StreamHolding *holding = stream->private_data;
    int code = 0;
    memset(out, 0, sizeof *out);
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *next = stream_function(holding, &code);
    if (next) {
        PyObject *description = PyObject_CallNoArgs(next);
        if (!description) {
            code = stream_fail(holding);
        } else if (description == Py_None) {
            stream_end(holding, NULL, 0);
        } else if (el_arrow_array_fill(description, out) < 0) {
            code = stream_fail(holding);
        }
        Py_XDECREF(description);
        Py_DECREF(next);
    }
    PyGILState_Release(gil);
    return code;
}

static const char *stream_last_error(struct ArrowArrayStream *stream) {
    StreamHolding *holding = stream->private_data;
    PyGILState_STATE gil = PyGILState_Ensure();
    const char *text = holding->error ? PyUnicode_AsUTF8AndSize(holding->error, NULL) : NULL;
    if (!text) {
        PyErr_Clear();
    }
    PyGILState_Release(gil);
    return text;
}

static void stream_release(struct ArrowArrayStream *stream) {
    StreamHolding *holding = stream->private_data;
    stream->release = NULL;
    if (!Py_IsInitialized()) {
        return;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    Py_XDECREF(holding->schema);
    Py_XDECREF(holding->next);
    Py_XDECREF(holding->error);
    PyMem_Free(holding);
    PyGILState_Release(gil);
}

static void stream_capsule_free(PyObject *capsule) {
    struct ArrowArrayStream *stream = PyCapsule_GetPointer(capsule, "arrow_array_stream");
    if (stream && stream->release) {
        stream->release(stream);
    }
    PyMem_Free(stream);
}

PyObject *el_arrow_stream_capsule(PyObject *self, PyObject *args) {
    PyObject *schema, *next;
    if (!PyArg_ParseTuple(args, "OO", &schema, &next)) {
        return NULL;
    }
    struct ArrowArrayStream *stream = PyMem_Calloc(1, sizeof *stream);
    StreamHolding *holding = PyMem_Calloc(1, sizeof *holding);
    PyObject *capsule = stream && holding
                            ? PyCapsule_New(stream, "arrow_array_stream", stream_capsule_free)
                            : PyErr_NoMemory();
    if (!capsule) {
        PyMem_Free(holding);
        PyMem_Free(stream);
        return NULL;
    }
    Py_INCREF(schema);
    Py_INCREF(next);
    holding->schema = schema;
    holding->next = next;
    stream->get_schema = stream_schema;
    stream->get_next = stream_next;
    stream->get_last_error = stream_last_error;
    stream->release = stream_release;
    stream->private_data = holding;
    return capsule;
}
