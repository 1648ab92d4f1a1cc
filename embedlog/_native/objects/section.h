/* Sections: the locks of `_rows` in an interpreter without the GIL.
 *
 * - All objects of a producer (accumulator, queues, batches, futures, callbacks, routers) have one
 *   lock, the section of their accumulator. Every function that Python calls on one of them enters
 *   it, and every field is read and written in it.
 * - A section is held as the GIL is: it is released while its thread sleeps. It may also be
 *   released wherever a reference is released, an object is made or Python is called. There the
 *   structures are complete, and what was read before is checked again.
 * - A thread that waits without a section (`wake_lock_wait`) reads fields that are stored by one
 *   atomic instruction. So does a Tally, which has no accumulator.
 * - Items of a list or a capsule that the caller gives are read in a section of that object, or as
 *   owned references.
 * - Nothing static changes after the import, except the wall clock (atomic) and the chain of
 *   dropped records (of a thread).
 *
 * With the GIL all of this is empty: the GIL is the section of all objects. */
#ifndef EL_SECTION_H
#define EL_SECTION_H

#include <Python.h>

#ifdef Py_GIL_DISABLED

#ifdef EMBEDLOG_TEST_BUILD
/* A mutant: no section is entered. Tests see themselves fail without it. */
extern int el_sections_off;
#else
#define el_sections_off 0
#endif

typedef PyCriticalSection el_section;

static inline void el_section_enter(el_section *section, PyObject *object) {
    if (!el_sections_off) {
        PyCriticalSection_Begin(section, object);
    }
}

static inline void el_section_leave(el_section *section) {
    if (!el_sections_off) {
        PyCriticalSection_End(section);
    }
}

/* A new reference to an item of the list, or NULL with an exception set. */
static inline PyObject *el_list_item(PyObject *list, Py_ssize_t place) {
    return PyList_GetItemRef(list, place);
}

/* Stores a field that another thread may read without a section. */
#define el_store(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)

/* Defines the function `name##_alone`, which calls `name` in the section of `owner(self)`.
 * EL_ALONE(name) is the one for Python. */
#define EL_SECTIONED(owner, name, result, parameters, arguments)                                   \
    static result name##_alone parameters {                                                        \
        el_section section;                                                                        \
        el_section_enter(&section, EL_OBJECT(owner(self)));                                        \
        result answer = name arguments;                                                            \
        el_section_leave(&section);                                                                \
        return answer;                                                                             \
    }
#define EL_ALONE(name) name##_alone

#else

typedef int el_section;

static inline void el_section_enter(el_section *section, PyObject *object) {
    (void)section, (void)object;
}
static inline void el_section_leave(el_section *section) { (void)section; }

static inline PyObject *el_list_item(PyObject *list, Py_ssize_t place) {
    return Py_XNewRef(PyList_GetItem(list, place));
}

#define el_store(field, value) ((field) = (value))
#define EL_SECTIONED(owner, name, result, parameters, arguments)
#define EL_ALONE(name) name

#endif

/* The accumulator of an object, whose section is its lock. It never changes. */
#define EL_OF_ACCUMULATOR(object) ((el_accumulator *)(object))
#define EL_OF_QUEUE(object) (((el_queue *)(object))->accumulator)
#define EL_OF_BATCH(object) (((el_producer_batch *)(object))->accumulator)
#define EL_OF_FUTURE(object) EL_OF_BATCH(((el_future *)(object))->batch)

/* The forms of functions in the tables of a type. */
#define EL_METHOD(owner, name)                                                                     \
    EL_SECTIONED(owner, name, PyObject *, (PyObject * self, PyObject * given), (self, given))
#define EL_KEYWORDS(owner, name)                                                                   \
    EL_SECTIONED(owner, name, PyObject *,                                                          \
                 (PyObject * self, PyObject * given, PyObject * keywords),                         \
                 (self, given, keywords))
#define EL_FASTCALL(owner, name)                                                                   \
    EL_SECTIONED(owner, name, PyObject *,                                                          \
                 (PyObject * self, PyObject *const *given, Py_ssize_t count),                      \
                 (self, given, count))
#define EL_GETTER(owner, name)                                                                     \
    EL_SECTIONED(owner, name, PyObject *, (PyObject * self, void *hint), (self, hint))
#define EL_SETTER(owner, name)                                                                     \
    EL_SECTIONED(owner, name, int, (PyObject * self, PyObject * value, void *hint),                \
                 (self, value, hint))

/* Getter and setter of the fields of a type: `hint` is a PyMemberDef. */
#define EL_FIELDS(owner)                                                                           \
    static PyObject *field_get(PyObject *self, void *hint) {                                       \
        return PyMember_GetOne((const char *)self, hint);                                          \
    }                                                                                              \
    static int field_set(PyObject *self, PyObject *value, void *hint) {                            \
        if (value)                                                                                 \
            return PyMember_SetOne((char *)self, hint, value);                                     \
        return PyErr_SetString(PyExc_AttributeError, "a field cannot be deleted"), -1;             \
    }                                                                                              \
    EL_GETTER(owner, field_get)                                                                    \
    EL_SETTER(owner, field_set)

#define EL_FIELD(name, kind, type, doc)                                                            \
    {                                                                                              \
        #name, EL_ALONE(field_get), NULL, doc, &(PyMemberDef) {                                    \
            #name, kind, offsetof(type, name), READONLY, doc                                       \
        }                                                                                          \
    }
#define EL_FIELD_SET(name, kind, type, doc)                                                        \
    {                                                                                              \
        #name, EL_ALONE(field_get), EL_ALONE(field_set), doc, &(PyMemberDef) {                     \
            #name, kind, offsetof(type, name), 0, doc                                              \
        }                                                                                          \
    }

#endif
