/* Record: one record as a Python object. */
#include "rows.h"

#include <structmember.h>

PyTypeObject *el_record_type;
PyObject *el_no_headers;

/* ---- the type --------------------------------------------------------------------------------------------------- */

static void record_dealloc(PyObject *self) {
    el_record *record = (el_record *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(record->topic);
    Py_XDECREF(record->key);
    Py_XDECREF(record->value);
    Py_XDECREF(record->headers);
    PyObject_Free(self);
    Py_DECREF(type);
}

el_record *el_record_alloc(void) {
    el_record *record = PyObject_Malloc(sizeof *record);
    if (!record) return (el_record *)PyErr_NoMemory();
    memset(record, 0, sizeof *record);
    return (el_record *)PyObject_Init(EL_OBJECT(record), el_record_type);
}

static PyObject *record_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"topic", "partition", "offset", "timestamp_ms", "timestamp_type", "key", "value", "headers", "leader_epoch", NULL};
    PyObject *topic, *key, *value, *headers = el_no_headers;
    int partition, leader_epoch = -1;
    signed char timestamp_type;
    long long offset, timestamp_ms;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OiLLbOO|Oi:Record", names, &topic, &partition, &offset, &timestamp_ms,
                                     &timestamp_type, &key, &value, &headers, &leader_epoch))
        return NULL;
    el_record *record = el_record_alloc();
    if (!record) return NULL;
    record->topic = Py_NewRef(topic);
    record->key = Py_NewRef(key);
    record->value = Py_NewRef(value);
    record->partition = partition;
    record->offset = offset;
    record->timestamp_ms = timestamp_ms;
    record->timestamp_type = timestamp_type;
    record->leader_epoch = leader_epoch;
    record->headers = PySequence_Tuple(headers);
    if (!record->headers) Py_CLEAR(record);
    return EL_OBJECT(record);
}

static PyObject *record_fields(const el_record *r) {
    return Py_BuildValue("(OiLLbOOOi)", r->topic, r->partition, (long long)r->offset, (long long)r->timestamp_ms, r->timestamp_type, r->key,
                         r->value, r->headers, r->leader_epoch);
}

static PyObject *record_repr(PyObject *self) {
    el_record *r = (el_record *)self;
    return PyUnicode_FromFormat("Record(topic=%R, partition=%d, offset=%lld, timestamp_ms=%lld, timestamp_type=%d, key=%R, value=%R, "
                                "headers=%R, leader_epoch=%d)",
                                r->topic, r->partition, (long long)r->offset, (long long)r->timestamp_ms, r->timestamp_type, r->key, r->value,
                                r->headers, r->leader_epoch);
}

static PyObject *record_compare(PyObject *self, PyObject *other, int op) {
    if ((op != Py_EQ && op != Py_NE) || !Py_IS_TYPE(other, el_record_type)) Py_RETURN_NOTIMPLEMENTED;
    PyObject *mine = record_fields((el_record *)self), *theirs = record_fields((el_record *)other);
    PyObject *answer = mine && theirs ? PyObject_RichCompare(mine, theirs, op) : NULL;
    Py_XDECREF(mine);
    Py_XDECREF(theirs);
    return answer;
}

/* Where it lies is enough: equal records lie at one place, and a value of the user's need not be hashable. */
static Py_hash_t record_hash(PyObject *self) {
    el_record *record = (el_record *)self;
    PyObject *place = Py_BuildValue("(OiL)", record->topic, record->partition, (long long)record->offset);
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
    {"offset", T_LONGLONG, offsetof(el_record, offset), READONLY, "Its place in the partition."},
    {"timestamp_ms", T_LONGLONG, offsetof(el_record, timestamp_ms), READONLY, "Milliseconds since 1970 UTC, or -1."},
    {"timestamp_type", T_BYTE, offsetof(el_record, timestamp_type), READONLY, "0 CreateTime, 1 LogAppendTime."},
    {"key", T_OBJECT_EX, offsetof(el_record, key), READONLY, "bytes, or None."},
    {"value", T_OBJECT_EX, offsetof(el_record, value), READONLY, "bytes, or None."},
    {"headers", T_OBJECT_EX, offsetof(el_record, headers), READONLY, "Tuple of (str, bytes or None)."},
    {"leader_epoch", T_INT, offsetof(el_record, leader_epoch), READONLY, "Epoch of the batch it came in, or -1."},
    {NULL},
};

static PyMethodDef record_own_methods[] = {
    {"__reduce__", record_reduce, METH_NOARGS, "How to make it again."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, "Record[K, V]: for annotations."},
    {NULL},
};

static PyType_Slot record_slots[] = {
    {Py_tp_new, record_new},         {Py_tp_dealloc, record_dealloc}, {Py_tp_repr, record_repr}, {Py_tp_richcompare, record_compare},
    {Py_tp_hash, record_hash},       {Py_tp_members, record_members}, {Py_tp_methods, record_own_methods},
    {Py_tp_doc, "One record; read-only."}, {0, NULL},
};

static PyType_Spec record_spec = {"embedlog.Record", sizeof(el_record), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, record_slots};

int el_record_ready(PyObject *module) {
    el_no_headers = PyTuple_New(0);
    el_record_type = el_no_headers ? el_type_ready(module, &record_spec) : NULL;
    return el_record_type ? 0 : -1;
}
