/* Compresses a batch in the thread that waits for it, before it enters the queue. */
#include "objects/packed.h"

/* Copies the result of the packer: 0, or -1 without memory. A result that is not smaller is not
 * used. */
static int packed_take(el_packed *packed, PyObject *body, int64_t plain_size) {
    Py_buffer view;
    if (PyObject_GetBuffer(body, &view, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    if (view.len < plain_size) {
        packed->data = PyMem_Malloc(EL_HEADER_SIZE + (size_t)view.len);
        packed->size = EL_HEADER_SIZE + (int64_t)view.len;
        if (packed->data) {
            memcpy(packed->data + EL_HEADER_SIZE, view.buf, (size_t)view.len);
        }
    }
    int full = view.len < plain_size && !packed->data;
    PyBuffer_Release(&view);
    return full ? -1 : 0;
}

int el_packed_make(el_packed *packed, const el_queue *queue, el_producer_batch *batch) {
    int64_t plain_size = batch->size - EL_HEADER_SIZE;
    if (!queue->packer) {
        return 1;
    }
    if (queue->first != batch || plain_size > queue->packed_max) {
        return 0;
    }
    if (batch->state == EL_OPEN) {
        batch->state = EL_SEALED;
    }
    PyObject *packer = Py_NewRef(queue->packer);
    PyObject *plain = PyBytes_FromStringAndSize((const char *)batch->data + EL_HEADER_SIZE,
                                                (Py_ssize_t)plain_size);
    PyObject *body = plain ? PyObject_CallFunctionObjArgs(packer, plain, NULL) : NULL;
    int known = body ? body != Py_None && packed_take(packed, body, plain_size) == 0 : -1;
    Py_XDECREF(body);
    Py_XDECREF(plain);
    Py_DECREF(packer);
    if (known < 0) {
        return -1;
    }
    PyErr_Clear(); /* of a copy without memory: the thread meets it again */
    return known;
}
