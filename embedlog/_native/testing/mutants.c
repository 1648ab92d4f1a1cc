/* The set of active mutants. Compiled only in the test build. */
#include "testing/mutants.h"

#include "api/native.h"

#include <stdatomic.h>

static _Atomic uint64_t mutants;

int el_is_mutant(int bit) {
    return (int)(atomic_load_explicit(&mutants, memory_order_relaxed) >> bit & 1);
}

int32_t el_mutants(uint64_t off) {
    atomic_store(&mutants, off);
    return EL_OK;
}
