/* Record: one record as a Python object.
 *
 * - Records of bytes are in no cycle: they take no part in garbage collection (tp_is_gc) and have
 *   no header for it.
 * - Records may contain records (deserialised values, deeply nested): they are freed one after
 *   another, not recursively. */
#include "objects/record.h"

#include <structmember.h>

PyTypeObject *el_record_type;
PyObject *el_no_headers;

/* From Python 3.14 on the interpreter defers deallocations deep in the stack. It checks the type,
 * not tp_is_gc, and links such objects through the header before an object of the collector.
 * Records of bytes have memory for it, or the link would overwrite other memory. */
enum { DEFERRED_SINCE = 0x030E0000, HEADER_BYTES = 2 * sizeof(uintptr_t) };

#ifdef Py_GIL_DISABLED
static size_t header_bytes(void) {
    return 0;
} /* without the GIL no object has a header: the link is inside */
#else
static size_t header_bytes(void) { return Py_Version >= DEFERRED_SINCE ? HEADER_BYTES : 0; }
#endif

/* ---- the type -------------------------------------------------------------------------------- */

static void record_free(el_record *record) {
    PyTypeObject *type = Py_TYPE(EL_OBJECT(record));
    Py_XDECREF(record->topic);
    Py_XDECREF(record->key);
    Py_XDECREF(record->value);
    Py_XDECREF(record->headers);
    if (record->shared) {
        PyObject_GC_Del(record);
    } else {
        PyObject_Free((char *)record - header_bytes());
    }
    Py_DECREF(type);
}

/* Records that were dropped while others were being freed, linked by their `offset`: the outermost
 * deallocation frees them. */
static _Thread_local intptr_t dropped;
static _Thread_local int depth;

enum { DEPTH_MAX = 40 }; /* the limit of Python's own containers */

static void record_free_shared(el_record *record) {
    PyObject_GC_UnTrack(record);
    if (depth >= DEPTH_MAX) {
        record->offset = dropped;
        dropped = (intptr_t)record;
        return;
    }
    depth++;
    record_free(record);
    while (depth == 1 && dropped) {
        record = (el_record *)dropped;
        dropped = (intptr_t)record->offset;
        record_free(record);
    }
    depth--;
}

static void record_dealloc(PyObject *self) {
    el_record *record = (el_record *)self;
    if (record->shared) {
        record_free_shared(record);
    } else {
        record_free(record);
    }
}

static int record_is_gc(PyObject *self) { return ((el_record *)self)->shared; }

static int record_traverse(PyObject *self, visitproc visit, void *arg) {
    el_record *record = (el_record *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(record->topic);
    Py_VISIT(record->key);
    Py_VISIT(record->value);
    Py_VISIT(record->headers);
    return 0;
}

/* A record that is still referenced contains None: no field is ever missing. */
static int record_clear(PyObject *self) {
    el_record *record = (el_record *)self;
    el_replace(&record->key, Py_None);
    el_replace(&record->value, Py_None);
    el_replace(&record->headers, el_no_headers);
    return 0;
}

el_record *el_record_alloc(void) {
    size_t before = header_bytes();
    char *block = PyObject_Malloc(before + sizeof(el_record));
    if (!block) {
        return (el_record *)PyErr_NoMemory();
    }
    memset(block, 0, before + sizeof(el_record));
    return (el_record *)PyObject_Init((PyObject *)(void *)(block + before), el_record_type);
}

/* The same for any objects. The caller tracks it after filling it. */
static el_record *record_alloc_shared(void) {
    el_record *record = PyObject_GC_New(el_record, el_record_type);
    if (!record) {
        return NULL;
    }
    memset((char *)record + sizeof(PyObject), 0, sizeof *record - sizeof(PyObject));
    record->shared = 1;
    return record;
}

/* Objects that cannot be part of a cycle and own no other objects. */
static int is_plain(PyObject *object) {
    return object == Py_None || object == el_no_headers || Py_IS_TYPE(object, &PyBytes_Type) ||
           Py_IS_TYPE(object, &PyUnicode_Type) || Py_IS_TYPE(object, &PyLong_Type) ||
           Py_IS_TYPE(object, &PyFloat_Type) || Py_IS_TYPE(object, &PyBool_Type);
}

static PyObject *record_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"topic", "partition", "offset",  "timestamp_ms", "timestamp_type",
                            "key",   "value",     "headers", "leader_epoch", NULL};
    PyObject *topic;
    PyObject *key;
    PyObject *value;
    PyObject *headers = el_no_headers;
    int partition;
    int leader_epoch = -1;
    signed char timestamp_type;
    long long offset, timestamp_ms;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OiLLbOO|Oi:Record", names, &topic, &partition,
                                     &offset, &timestamp_ms, &timestamp_type, &key, &value,
                                     &headers, &leader_epoch)) {
        return NULL;
    }
    headers = PySequence_Tuple(headers);
    if (!headers) {
        return NULL;
    }
    int plain = is_plain(topic) && is_plain(key) && is_plain(value) && is_plain(headers);
    el_record *record = plain ? el_record_alloc() : record_alloc_shared();
    if (!record) {
        Py_DECREF(headers);
        return NULL;
    }
    record->topic = Py_NewRef(topic);
    record->key = Py_NewRef(key);
    record->value = Py_NewRef(value);
    record->headers = headers;
    record->partition = partition;
    record->offset = offset;
    record->timestamp_ms = timestamp_ms;
    record->timestamp_type = timestamp_type;
    record->leader_epoch = leader_epoch;
    if (record->shared) {
        PyObject_GC_Track(record);
    }
    return EL_OBJECT(record);
}

static PyObject *record_fields(const el_record *r) {
    return Py_BuildValue("(OiLLbOOOi)", r->topic, r->partition, (long long)r->offset,
                         (long long)r->timestamp_ms, r->timestamp_type, r->key, r->value,
                         r->headers, r->leader_epoch);
}

/* Names of the fields in the order of `record_fields`. */
static const char *const field_names[] = {"topic",        "partition",      "offset",
                                          "timestamp_ms", "timestamp_type", "key",
                                          "value",        "headers",        "leader_epoch"};

static PyObject *record_asdict(PyObject *self, PyObject *unused) {
    PyObject *values = record_fields((el_record *)self);
    PyObject *found = values ? PyDict_New() : NULL;
    for (size_t at = 0; found && at < sizeof field_names / sizeof *field_names; at++) {
        if (PyDict_SetItemString(found, field_names[at], PyTuple_GetItem(values, (Py_ssize_t)at)) <
            0) {
            Py_CLEAR(found);
        }
    }
    Py_XDECREF(values);
    return found;
}

/* Only notebooks call it, so the module of the tables is imported here. */
static PyObject *record_html(PyObject *self, PyObject *unused) {
    PyObject *tables = PyImport_ImportModule("embedlog.descriptions.display.tables"),
             *fields = tables ? record_asdict(self, NULL) : NULL;
    PyObject *found = fields ? PyObject_CallMethod(tables, "record", "(O)", fields) : NULL;
    Py_XDECREF(fields);
    Py_XDECREF(tables);
    return found;
}

enum { SHOWN_MAX = 200 }; /* bytes or characters of a key or value in the repr */

/* The repr of a key or value. One that is too long is shown by its begin and its size. */
static PyObject *short_repr(PyObject *object) {
    int text = Py_IS_TYPE(object, &PyUnicode_Type);
    Py_ssize_t size = text || Py_IS_TYPE(object, &PyBytes_Type) ? PyObject_Size(object) : 0;
    if (size <= SHOWN_MAX) {
        return PyObject_Repr(object);
    }
    PyObject *begin = PySequence_GetSlice(object, 0, SHOWN_MAX);
    PyObject *found =
        begin ? PyUnicode_FromFormat("%R... (%zd %s)", begin, size, text ? "characters" : "bytes")
              : NULL;
    Py_XDECREF(begin);
    return found;
}

static PyObject *record_repr(PyObject *self) {
    el_record *r = (el_record *)self;
    PyObject *key = short_repr(r->key);
    PyObject *value = key ? short_repr(r->value) : NULL;
    PyObject *found = NULL;
    if (value) {
        found = PyUnicode_FromFormat("Record(topic=%R, partition=%d, offset=%lld, "
                                     "timestamp_ms=%lld, timestamp_type=%d, key=%U, value=%U, "
                                     "headers=%R, leader_epoch=%d)",
                                     r->topic, r->partition, (long long)r->offset,
                                     (long long)r->timestamp_ms, r->timestamp_type, key, value,
                                     r->headers, r->leader_epoch);
    }
    Py_XDECREF(key);
    Py_XDECREF(value);
    return found;
}

static PyObject *record_compare(PyObject *self, PyObject *other, int op) {
    if ((op != Py_EQ && op != Py_NE) || !Py_IS_TYPE(other, el_record_type)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    PyObject *mine = record_fields((el_record *)self);
    PyObject *theirs = record_fields((el_record *)other);
    PyObject *answer = mine && theirs ? PyObject_RichCompare(mine, theirs, op) : NULL;
    Py_XDECREF(mine);
    Py_XDECREF(theirs);
    return answer;
}

/* The position alone: equal records have the same one, and a value of the user need not be
 * hashable. */
static Py_hash_t record_hash(PyObject *self) {
    el_record *record = (el_record *)self;
    PyObject *place =
        Py_BuildValue("(OiL)", record->topic, record->partition, (long long)record->offset);
    Py_hash_t hash = place ? PyObject_Hash(place) : -1;
    Py_XDECREF(place);
    return hash;
}

static PyObject *record_reduce(PyObject *self, PyObject *unused) {
    return Py_BuildValue("(ON)", el_record_type, record_fields((el_record *)self));
}

static PyMemberDef record_members[] = {
    {"topic", T_OBJECT_EX, offsetof(el_record, topic), READONLY, "Name of the topic."},
    {"partition", T_INT, offsetof(el_record, partition), READONLY, "Number of the partition."},
    {"offset", T_LONGLONG, offsetof(el_record, offset), READONLY, "Offset in the partition."},
    {"timestamp_ms", T_LONGLONG, offsetof(el_record, timestamp_ms), READONLY,
     "Milliseconds since 1970 UTC, or -1."},
    {"timestamp", T_LONGLONG, offsetof(el_record, timestamp_ms), READONLY,
     "timestamp_ms, under the name of other clients."},
    {"timestamp_type", T_BYTE, offsetof(el_record, timestamp_type), READONLY,
     "0 CreateTime, 1 LogAppendTime."},
    {"key", T_OBJECT_EX, offsetof(el_record, key), READONLY, "bytes, or None."},
    {"value", T_OBJECT_EX, offsetof(el_record, value), READONLY, "bytes, or None."},
    {"headers", T_OBJECT_EX, offsetof(el_record, headers), READONLY,
     "Tuple of (str, bytes or None)."},
    {"leader_epoch", T_INT, offsetof(el_record, leader_epoch), READONLY,
     "Leader epoch of its batch, or -1."},
    {NULL},
};

/* Names of other clients. A getter that raises costs nothing for other names, as a tp_getattro
 * would. */
static PyObject *record_get_absent(PyObject *object, void *hint) {
    return PyErr_SetString(PyExc_AttributeError, hint), NULL;
}

#define ABSENT(name, hint)                                                                         \
    {name, record_get_absent, NULL, "Absent: its AttributeError states what to use.",              \
     "a Record has no " name "; " hint}

static PyGetSetDef record_absent[] = {
    ABSENT("checksum", "the log checks every batch when it is read"),
    ABSENT("error", "poll() raises errors; it returns records only"),
    ABSENT("serialized_header_size", "the headers are those in `headers`"),
    ABSENT("serialized_key_size", "len(record.key) without a deserializer"),
    ABSENT("serialized_value_size", "len(record.value) without a deserializer"),
    {NULL},
};

/* A record is no container. Iteration and `in` use sq_item, an index of any type mp_subscript. */
static PyObject *no_container(void) {
    PyErr_SetString(PyExc_TypeError, "a Record is no container: its fields are attributes such as "
                                     "record.value, and record._asdict() is "
                                     "the dict of all");
    return NULL;
}

static PyObject *record_item(PyObject *self, Py_ssize_t at) { return no_container(); }

static PyObject *record_subscript(PyObject *self, PyObject *index) { return no_container(); }

static PyMethodDef record_own_methods[] = {
    {"__reduce__", record_reduce, METH_NOARGS, "Arguments that create an equal record."},
    {"_asdict", record_asdict, METH_NOARGS, "The fields as a dict, for DataFrames."},
    {"_repr_html_", record_html, METH_NOARGS, "A table for notebooks."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, "Record[K, V]: for annotations."},
    {NULL},
};

static PyType_Slot record_slots[] = {
    {Py_tp_new, record_new},
    {Py_tp_dealloc, record_dealloc},
    {Py_tp_traverse, record_traverse},
    {Py_tp_clear, record_clear},
    {Py_tp_is_gc, record_is_gc},
    {Py_tp_repr, record_repr},
    {Py_tp_hash, record_hash},
    {Py_tp_richcompare, record_compare},
    {Py_tp_members, record_members},
    {Py_sq_item, record_item},
    {Py_mp_subscript, record_subscript},
    {Py_tp_methods, record_own_methods},
    {Py_tp_getset, record_absent},
    {Py_tp_doc, "One record; read-only."},
    {0, NULL},
};

static PyType_Spec record_spec = {
    "embedlog.Record", sizeof(el_record), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC, record_slots};

int el_record_ready(PyObject *module) {
    el_no_headers = PyTuple_New(0);
    el_record_type = el_no_headers ? el_type_ready(module, &record_spec) : NULL;
    return el_record_type ? 0 : -1;
}
