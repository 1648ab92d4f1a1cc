/* The Arrow C data interface: the three structs of the published ABI, and their use by this
 * extension.
 *
 * The Arrow specification fixes the structs. Every exported struct frees itself through its own
 * `release`, which may be called from any thread, with or without the GIL. */
#ifndef EL_ARROW_H
#define EL_ARROW_H

#include <Python.h>
#include <stdint.h>

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4

struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

#endif /* ARROW_C_DATA_INTERFACE */

#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE

struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *out);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *out);
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};

#endif /* ARROW_C_STREAM_INTERFACE */

/* Fills `out` from a Python description. 0, or -1 with a Python exception set and nothing left to
 * release. A schema is (format, name, nullable, children, dictionary or None), an array is (length,
 * null_count, offset, buffers, children, dictionary or None). A buffer is None or has the buffer
 * protocol. REQUIRES: the GIL. The array keeps the buffers' owners alive until it is released. */
int el_arrow_schema_fill(PyObject *description, struct ArrowSchema *out);
int el_arrow_array_fill(PyObject *description, struct ArrowArray *out);

/* arrow_array_stream(schema, next) -> capsule; `next()` gives an array's description, or None at
 * the end. */
PyObject *el_arrow_stream_capsule(PyObject *self, PyObject *args);

/* The functions of this part, for the module's table. */
extern PyMethodDef el_arrow_export_methods[];

#endif
