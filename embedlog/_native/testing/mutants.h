/* Mutants: rules that a test disables in order to see itself fail. They exist only in the test
 * build.
 *
 * A build without EMBEDLOG_TEST_BUILD has no branch, table or symbol of them: `el_is_mutant` is the
 * constant 0. */
#ifndef EL_MUTANTS_H
#define EL_MUTANTS_H

/* Bit numbers; tests/support/mutants has the names. */
enum el_mutant {
    EL_NO_FSYNC = 0,
    EL_NO_DIRECTORY_FSYNC = 1,
    EL_PUBLISH_FIRST = 2,
    EL_IGNORE_SHORT_WRITE = 3,
    EL_NO_OWNER_WORD = 4,
    EL_NO_APPEND_LOCK = 5,
    EL_NO_IDENTITY = 6,
    EL_TORN_PUBLISH = 7,
    EL_NO_WAKE = 8,
    EL_NO_CRC_ON_READ = 9,
    EL_TRUST_COPY = 10,
    EL_FORGIVE_EXPIRY = 11,
    EL_NO_NOTICE = 12,
    EL_NO_FENCE = 13,
    EL_ANY_EPOCH_LEADS = 14,
    EL_STABLE_AT_MARKER = 15,
    EL_ANY_SETTINGS = 16
};

#ifdef EMBEDLOG_TEST_BUILD
int el_is_mutant(int bit);
#else
#define el_is_mutant(bit) 0
#endif

#endif
