/* A wall clock that is off by what a mapped file says. Monotonic clocks are left alone, and so is the machine's clock.

   Loaded into every process of a node by LD_PRELOAD. Absolute deadlines on the wall clock are shifted back before
   they reach the kernel, which knows nothing of the skew: a wait of one second stays a wait of one second. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t none = 0;
static const volatile int64_t *offset_ns = &none;

#define REAL(name) ((__typeof__(&name))find(&real_##name, #name))

static void *find(void **known, const char *name) {
    /* The first version of the condition variables is for binaries of 2002 and is what plain dlsym may return. */
    if (!*known) *known = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
    if (!*known) *known = dlsym(RTLD_NEXT, name);
    return *known;
}

static void *real_clock_gettime, *real_clock_nanosleep, *real_pthread_cond_timedwait, *real_pthread_cond_clockwait;
static void *real_pthread_mutex_timedlock, *real_sem_timedwait, *real_sem_clockwait;

__attribute__((constructor)) static void map_offset(void) {
    const char *folder = getenv("CHAOS_CLOCK"), *node = getenv("CHAOS_NODE");
    char path[4096];
    if (!folder || !node || snprintf(path, sizeof path, "%s/%s", folder, node) >= (int)sizeof path) return;
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC); /* the harness makes it, and alone writes it */
    if (file < 0) return;
    if (fstat(file, &status) == 0 && status.st_size >= (off_t)sizeof *offset_ns) {
        void *memory = mmap(NULL, sizeof *offset_ns, PROT_READ, MAP_SHARED, file, 0);
        if (memory != MAP_FAILED) offset_ns = memory;
    }
    close(file);
}

static int is_wall(clockid_t id) { return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE || id == CLOCK_TAI; }

static struct timespec shifted(struct timespec time, int64_t by_ns) {
    int64_t ns = time.tv_nsec + by_ns % 1000000000;
    time.tv_sec += by_ns / 1000000000;
    if (ns < 0) { ns += 1000000000; time.tv_sec--; }
    if (ns >= 1000000000) { ns -= 1000000000; time.tv_sec++; }
    time.tv_nsec = ns;
    return time;
}

int clock_gettime(clockid_t id, struct timespec *time) {
    int result = REAL(clock_gettime)(id, time);
    if (result == 0 && is_wall(id)) *time = shifted(*time, *offset_ns);
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *time, int base) {
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, time) == 0 ? base : 0;
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *until, struct timespec *left) {
    if (!is_wall(id) || !(flags & TIMER_ABSTIME)) return REAL(clock_nanosleep)(id, flags, until, left);
    struct timespec deadline = shifted(*until, -*offset_ns);
    return REAL(clock_nanosleep)(id, flags, &deadline, left);
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    /* Which clock it waits on is not told; no machine has a monotonic clock of thirty years. */
    struct timespec deadline = until->tv_sec > 1000000000 ? shifted(*until, -*offset_ns) : *until;
    return REAL(pthread_cond_timedwait)(condition, mutex, &deadline);
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t id, const struct timespec *until) {
    struct timespec deadline = is_wall(id) ? shifted(*until, -*offset_ns) : *until;
    return REAL(pthread_cond_clockwait)(condition, mutex, id, &deadline);
}

int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *until) {
    struct timespec deadline = shifted(*until, -*offset_ns);
    return REAL(pthread_mutex_timedlock)(mutex, &deadline);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    struct timespec deadline = shifted(*until, -*offset_ns);
    return REAL(sem_timedwait)(semaphore, &deadline);
}

int sem_clockwait(sem_t *semaphore, clockid_t id, const struct timespec *until) {
    struct timespec deadline = is_wall(id) ? shifted(*until, -*offset_ns) : *until;
    return REAL(sem_clockwait)(semaphore, id, &deadline);
}
