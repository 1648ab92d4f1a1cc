/* A complete append to one directory, from the locking to the unlocking.
 *
 * Records were judged by settings of their topic that were read at one value of the directory's
 * topics word. It is compared under the lock, which needs no system call: another value means that
 * a topic has changed, and nothing is written. */
#include "log/append.h"
#include "testing/mutants.h"

int32_t el_settings_are_present(el_writer *writer) {
    return !writer->directory || el_topics(writer->directory) == writer->topics ||
           el_is_mutant(EL_ANY_SETTINGS);
}

int32_t el_append(el_writer *writer, const uint8_t *data, int64_t size, const el_batch *rows,
                  int64_t row_count, el_known *known, int64_t deadline_ns, el_appended *out) {
    int32_t rc = el_append_begin(writer, deadline_ns);
    if (rc != EL_OK) {
        return rc;
    }
    if (!el_settings_are_present(writer)) {
        rc = EL_OTHER_SETTINGS;
    } else if (known && el_must_catch_up(writer, data, size, known)) {
        rc = EL_MUST_CATCH_UP;
    } else {
        rc = el_append_held(writer, data, size, rows, row_count, out);
    }
    if (known && rc == EL_APPENDED) {
        el_known_advance(known, data, out);
    }
    el_append_end(writer, rc == EL_MUST_REPAIR);
    return rc;
}

_Static_assert(_Generic(&el_append, el_append_call: 1, default: 0),
               "the other extension calls it by this type");
