/* Arrow export: converts Python descriptions of columns to Arrow schemas and arrays, without
 * copying a buffer.
 *
 * - An exported array holds one Py_buffer per buffer, so its memory lives until the last consumer
 *   releases it.
 * - Every node (child, dictionary) owns its own references: a consumer may move a child out and
 *   release the rest.
 * - A failed export releases what it has taken and leaves `release` NULL.
 * - Nothing is freed after the end of the interpreter: there is no GIL to take. */
#include "objects/arrow.h"

#include <string.h>

enum { SCHEMA_PARTS = 5, ARRAY_PARTS = 6 };

/* ---- trees ----------------------------------------------------------------------------------- */

/* Children and dictionary of a node, and the capsule of a root. Schema and array differ only in
 * their struct. */
#define NODE_FIELDS(Struct)                                                                        \
    struct Struct *nodes;                                                                          \
    struct Struct **children;                                                                      \
    struct Struct *dictionary;

#define TREE_OF(Struct, Holding, kind)                                                             \
    static void kind##_release_tree(struct Struct *node, Holding *holding) {                       \
        for (int64_t i = 0; i < node->n_children; i++)                                             \
            if (holding->nodes[i].release)                                                         \
                holding->nodes[i].release(&holding->nodes[i]);                                     \
        if (holding->dictionary && holding->dictionary->release)                                   \
            holding->dictionary->release(holding->dictionary);                                     \
        PyMem_Free(holding->dictionary);                                                           \
        PyMem_Free(holding->nodes);                                                                \
        PyMem_Free(holding->children);                                                             \
    }                                                                                              \
                                                                                                   \
    static int kind##_fill_children(struct Struct *out, Holding *holding, PyObject *children) {    \
        Py_ssize_t count = PyTuple_Size(children);                                                 \
        if (count <= 0)                                                                            \
            return (int)count;                                                                     \
        holding->nodes = PyMem_Calloc((size_t)count, sizeof *holding->nodes);                      \
        holding->children = PyMem_Calloc((size_t)count, sizeof *holding->children);                \
        if (!holding->nodes || !holding->children)                                                 \
            return PyErr_NoMemory(), -1;                                                           \
        out->children = holding->children;                                                         \
        for (Py_ssize_t i = 0; i < count; i++) {                                                   \
            holding->children[i] = &holding->nodes[i];                                             \
            if (el_arrow_##kind##_fill(PyTuple_GetItem(children, i), &holding->nodes[i]) < 0)      \
                return -1;                                                                         \
            out->n_children = i + 1;                                                               \
        }                                                                                          \
        return 0;                                                                                  \
    }                                                                                              \
                                                                                                   \
    static int kind##_fill_dictionary(struct Struct *out, Holding *holding,                        \
                                      PyObject *dictionary) {                                      \
        if (dictionary == Py_None)                                                                 \
            return 0;                                                                              \
        holding->dictionary = out->dictionary = PyMem_Calloc(1, sizeof *out->dictionary);          \
        if (!out->dictionary)                                                                      \
            return PyErr_NoMemory(), -1;                                                           \
        return el_arrow_##kind##_fill(dictionary, out->dictionary);                                \
    }                                                                                              \
                                                                                                   \
    static void kind##_capsule_free(PyObject *capsule) {                                           \
        struct Struct *root = PyCapsule_GetPointer(capsule, "arrow_" #kind);                       \
        if (root && root->release)                                                                 \
            root->release(root);                                                                   \
        PyMem_Free(root);                                                                          \
    }                                                                                              \
                                                                                                   \
    static PyObject *kind##_capsule(PyObject *self, PyObject *description) {                       \
        struct Struct *root = PyMem_Malloc(sizeof *root);                                          \
        if (!root)                                                                                 \
            return PyErr_NoMemory();                                                               \
        PyObject *capsule = NULL;                                                                  \
        if (el_arrow_##kind##_fill(description, root) == 0)                                        \
            capsule = PyCapsule_New(root, "arrow_" #kind, kind##_capsule_free);                    \
        if (!capsule) {                                                                            \
            if (root->release)                                                                     \
                root->release(root);                                                               \
            PyMem_Free(root);                                                                      \
        }                                                                                          \
        return capsule;                                                                            \
    }

/* ---- schema ---------------------------------------------------------------------------------- */

typedef struct {
    PyObject *text; /* tuple that owns the UTF-8 of format and name */
    NODE_FIELDS(ArrowSchema)
} SchemaHolding;

TREE_OF(ArrowSchema, SchemaHolding, schema)

static void schema_release(struct ArrowSchema *schema) {
    SchemaHolding *holding = schema->private_data;
    schema->release = NULL;
    if (!Py_IsInitialized()) {
        return;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    schema_release_tree(schema, holding);
    Py_XDECREF(holding->text);
    PyMem_Free(holding);
    PyGILState_Release(gil);
}

int el_arrow_schema_fill(PyObject *description, struct ArrowSchema *out) {
    PyObject *format, *name, *children, *dictionary;
    int nullable;
    memset(out, 0, sizeof *out);
    if (!PyTuple_Check(description) || PyTuple_Size(description) != SCHEMA_PARTS) {
        return PyErr_SetString(PyExc_TypeError, "a schema is a tuple of five"), -1;
    }
    if (!PyArg_ParseTuple(description, "UUpO!O", &format, &name, &nullable, &PyTuple_Type,
                          &children, &dictionary)) {
        return -1;
    }
    SchemaHolding *holding = PyMem_Calloc(1, sizeof *holding);
    if (!holding) {
        return PyErr_NoMemory(), -1;
    }
    out->private_data = holding;
    out->release = schema_release;
    out->flags = nullable ? ARROW_FLAG_NULLABLE : 0;
    holding->text = PyTuple_Pack(2, format, name);
    out->format = holding->text ? PyUnicode_AsUTF8AndSize(format, NULL) : NULL;
    out->name = out->format ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    if (out->name && schema_fill_children(out, holding, children) == 0 &&
        schema_fill_dictionary(out, holding, dictionary) == 0) {
        return 0;
    }
    schema_release(out);
    return -1;
}

/* ---- array ----------------------------------------------------------------------------------- */

typedef struct {
    Py_buffer *views;
    int64_t view_count; /* views taken so far; an absent buffer counts too, with obj NULL */
    const void **buffers;
    NODE_FIELDS(ArrowArray)
} ArrayHolding;

TREE_OF(ArrowArray, ArrayHolding, array)

static void array_release(struct ArrowArray *array) {
    ArrayHolding *holding = array->private_data;
    array->release = NULL;
    if (!Py_IsInitialized()) {
        return;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    array_release_tree(array, holding);
    for (int64_t i = 0; i < holding->view_count; i++) {
        if (holding->views[i].obj) {
            PyBuffer_Release(&holding->views[i]);
        }
    }
    PyMem_Free(holding->views);
    PyMem_Free((void *)holding->buffers);
    PyMem_Free(holding);
    PyGILState_Release(gil);
}

static int array_fill_buffers(struct ArrowArray *out, ArrayHolding *holding, PyObject *buffers) {
    Py_ssize_t count = PyTuple_Size(buffers);
    if (count <= 0) {
        return (int)count;
    }
    holding->views = PyMem_Calloc((size_t)count, sizeof *holding->views);
    holding->buffers = PyMem_Calloc((size_t)count, sizeof *holding->buffers);
    if (!holding->views || !holding->buffers) {
        return PyErr_NoMemory(), -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *buffer = PyTuple_GetItem(buffers, i);
        if (buffer != Py_None) {
            if (PyObject_GetBuffer(buffer, &holding->views[i], PyBUF_SIMPLE) < 0) {
                return -1;
            }
            holding->buffers[i] = holding->views[i].buf;
        }
        holding->view_count = i + 1;
    }
    out->buffers = holding->buffers;
    out->n_buffers = count;
    return 0;
}

int el_arrow_array_fill(PyObject *description, struct ArrowArray *out) {
    PyObject *buffers, *children, *dictionary;
    long long length, null_count, offset;
    memset(out, 0, sizeof *out);
    if (!PyTuple_Check(description) || PyTuple_Size(description) != ARRAY_PARTS) {
        return PyErr_SetString(PyExc_TypeError, "an array is a tuple of six"), -1;
    }
    if (!PyArg_ParseTuple(description, "LLLO!O!O", &length, &null_count, &offset, &PyTuple_Type,
                          &buffers, &PyTuple_Type, &children, &dictionary)) {
        return -1;
    }
    ArrayHolding *holding = PyMem_Calloc(1, sizeof *holding);
    if (!holding) {
        return PyErr_NoMemory(), -1;
    }
    out->length = length;
    out->null_count = null_count;
    out->offset = offset;
    out->private_data = holding;
    out->release = array_release;
    if (array_fill_buffers(out, holding, buffers) == 0 &&
        array_fill_children(out, holding, children) == 0 &&
        array_fill_dictionary(out, holding, dictionary) == 0) {
        return 0;
    }
    array_release(out);
    return -1;
}

PyMethodDef el_arrow_export_methods[] = {
    {"arrow_schema", schema_capsule, METH_O,
     "arrow_schema((format, name, nullable, children, dictionary)) -> capsule"},
    {"arrow_array", array_capsule, METH_O,
     "arrow_array((length, null_count, offset, buffers, children, dictionary)) -> capsule; buffers "
     "are kept, not copied"},
    {"arrow_array_stream", el_arrow_stream_capsule, METH_VARARGS,
     "arrow_array_stream(schema, next) -> capsule; next() gives an array's description, or None at "
     "the end"},
    {NULL, NULL, 0, NULL},
};
