/* Mapped control pages, and the SIGBUS that access to a truncated page raises.
 *
 * - Only pages of EL_PAGE_BYTES are mapped, from files that were at least as long at that time.
 * - The handler acts only on faults inside its own table of ranges. It maps a page of zeros over
 *   the fault, so that the access continues and finds no magic number. It passes every other fault
 *   to the previous handler.
 * - The table has a fixed size and entries are published by one store, so the handler needs no
 *   lock.
 * - A handler that was installed later (faulthandler) restores this one and raises the signal
 *   again: this one ignores it, as the access is repeated. Each new mapping installs this handler
 *   again; two handlers that restore each other end with the default action.
 * - A released page is replaced by zeros and its file is no longer mapped. A process that still
 *   reads it, or sleeps on it, finds the same as on a truncated page. */
#include "log/control_page.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EL_PAGES_MAX = 16384 };

static _Atomic uintptr_t pages[EL_PAGES_MAX];
static _Atomic int pages_used;
static _Atomic int64_t lost;
static struct sigaction previous;
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;

/* The access in the handler must allocate nothing. The dynamic kind is allocated by glibc at the
 * first access. In musl it is allocated with the library, and a library of the other kind cannot be
 * loaded after the start. */
#ifdef __GLIBC__
__attribute__((tls_model("initial-exec")))
#endif
static __thread int passing;

static void *zeros_over(uintptr_t page) {
    return mmap((void *)page, EL_PAGE_BYTES, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

static void pass_on(int number, siginfo_t *info, void *context) {
    int chained = (previous.sa_flags & SA_SIGINFO) ||
                  (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN);
    /* default action: the access is repeated, a sent signal is sent again */
    if (!chained || passing) {
        struct sigaction plain = {.sa_handler = SIG_DFL};
        sigaction(number, &plain, NULL);
        if (info->si_code <= 0 && !passing) {
            raise(number);
        }
        return;
    }
    passing = 1;
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(number, info, context);
    } else {
        previous.sa_handler(number);
    }
    passing = 0;
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    if (info->si_code == SI_TKILL && info->si_pid == getpid() && !passing) {
        return;
    }
    uintptr_t at = (uintptr_t)info->si_addr & ~((uintptr_t)EL_PAGE_BYTES - 1);
    int used = atomic_load_explicit(&pages_used, memory_order_acquire);
    for (int index = 0; index < used; index++) {
        if (at && atomic_load_explicit(&pages[index], memory_order_relaxed) == at) {
            if (zeros_over(at) != MAP_FAILED) {
                atomic_fetch_add(&lost, 1);
                return;
            }
        }
    }
    pass_on(number, info, context);
}

int32_t el_install_handler(void) {
    struct sigaction now,
        handler = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigemptyset(&handler.sa_mask);
    pthread_mutex_lock(&table);
    int failed = sigaction(SIGBUS, NULL, &now) < 0;
    if (!failed && !((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus_error)) {
        previous = now;
        failed = sigaction(SIGBUS, &handler, NULL) < 0;
    }
    int number = errno;
    pthread_mutex_unlock(&table);
    return failed ? EL_SYSTEM_ERROR(number) : EL_OK;
}

int64_t el_lost_pages(void) { return atomic_load(&lost); }

static int remember(uintptr_t page) {
    pthread_mutex_lock(&table);
    int used = atomic_load(&pages_used);
    int place = 0;
    while (place < used && atomic_load(&pages[place])) {
        place++;
    }
    int fits = place < EL_PAGES_MAX;
    if (fits) {
        atomic_store(&pages[place], page);
        if (place == used) {
            atomic_store_explicit(&pages_used, used + 1, memory_order_release);
        }
    }
    pthread_mutex_unlock(&table);
    return fits;
}

uint8_t *el_map(int32_t fd, int32_t writable, int32_t *error) {
    struct stat found;
    int hooked = el_before(EL_CALL_MMAP, fd, NULL, EL_PAGE_BYTES);
    *error = hooked < 0 ? hooked : EL_OK;
    if (*error == EL_OK && fstat(fd, &found) < 0) {
        *error = EL_SYSTEM_ERROR(errno);
    }
    if (*error == EL_OK && found.st_size < EL_PAGE_BYTES) {
        *error = EL_EMORE;
    }
    if (*error) {
        return NULL;
    }
    int rights = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *page = mmap(NULL, EL_PAGE_BYTES, rights, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        *error = EL_SYSTEM_ERROR(errno);
        return NULL;
    }
    if (!remember((uintptr_t)page)) {
        munmap(page, EL_PAGE_BYTES);
        *error = EL_SYSTEM_ERROR(EMFILE);
        return NULL;
    }
    el_schedule_mapped(page, fd);
    el_after(EL_CALL_MMAP);
    (void)el_install_handler();
    return page;
}

int32_t el_page_release(uint8_t *page) {
    if (el_page_is_private(page)) {
        return el_copy_close(page);
    }
    return zeros_over((uintptr_t)page) == MAP_FAILED ? EL_SYSTEM_ERROR(errno) : EL_OK;
}

int32_t el_unmap(uint8_t *page) {
    if (el_page_is_private(page)) {
        return el_copy_free(page);
    }
    pthread_mutex_lock(&table);
    for (int place = 0; place < atomic_load(&pages_used); place++) {
        if (atomic_load(&pages[place]) == (uintptr_t)page) {
            atomic_store(&pages[place], 0);
        }
    }
    pthread_mutex_unlock(&table);
    return munmap(page, EL_PAGE_BYTES) < 0 ? EL_SYSTEM_ERROR(errno) : EL_OK;
}
