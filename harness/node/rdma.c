/* RDMA that is slow, fails or has a port that is down, for the processes of a node: their tables of verbs are changed.

   Loaded by LD_PRELOAD. A program gets its table from ibv_open_device; post_send and poll_cq of that table, and the
   query of a port, go through here from then on. $CHAOS_RDMA/$CHAOS_NODE says what to do (`Order`), and is read again
   every few milliseconds; without it everything passes. $CHAOS_ANSWERS/rdma-PID tells how much passed, and how much
   of it was struck: a line of fixed width each time (`tell`).

   The layouts are those of rdma-core 44 (verbs.h): they are part of its binary interface, and have not changed since. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 10000000
#define TELL_NS 50000000
#define AFTER 100 /* times more, when the fault is over */
#define CONTEXTS_MAX 256
enum { NOTHING, DELAY, ERROR, PORT_DOWN };
enum { RETRY_EXCEEDED = 12, OF_A_RECEIVE = 128, PORT_STATE_DOWN = 1 };

struct context;
struct queue { struct context *context; }; /* how ibv_qp and ibv_cq begin */
struct request { uint64_t id; struct request *next; };
struct completion { uint64_t id; int status; int opcode; uint32_t vendor; char rest[28]; };
typedef int Post(struct queue *, struct request *, struct request **);
typedef int Poll(struct queue *, int, struct completion *);
typedef int Query(struct context *, uint8_t, int *, size_t); /* an answer begins with the port's state */
typedef int OldQuery(struct context *, uint8_t, int *);
typedef struct context *Open(void *);
struct context {
    void *device;
    void *before_poll[11];
    Poll *poll;
    void *between[13];
    Post *post;
    void *after_post[6];
    int command_file, event_file, vectors;
    pthread_mutex_t mutex;
    void *abi; /* all bits set: of a larger structure, which ends with this one */
};
#define QUERY_BEFORE 320 /* so far before it, the larger structure has the query of a port */

typedef struct { int64_t how, delay_ns; } Order;
static struct { struct context *context; Post *post; Poll *poll; Query *query; } known[CONTEXTS_MAX];
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static Open *real_open;
static OldQuery *real_query;
static int64_t posted, struck, waited_ns, queries, looked_ns, told_ns, now_how, now_delay_ns;

static int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int path_of(char *path, size_t size, const char *folder, const char *name) {
    return folder && name && snprintf(path, size, "%s/%s", folder, name) < (int)size;
}

static int due(int64_t *last, int64_t every_ns) {
    int64_t before = __atomic_load_n(last, __ATOMIC_RELAXED), now = clock_ns();
    return now - before >= every_ns && __atomic_compare_exchange_n(last, &before, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static Order order(void) {
    if (due(&looked_ns, LOOK_NS)) {
        Order found = {NOTHING, 0};
        char path[4096];
        int error = errno, file = path_of(path, sizeof path, getenv("CHAOS_RDMA"), getenv("CHAOS_NODE")) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (file >= 0 && read(file, &found, sizeof found) != sizeof found) found.how = NOTHING;
        if (file >= 0) close(file);
        errno = error;
        __atomic_store_n(&now_delay_ns, found.delay_ns, __ATOMIC_RELAXED);
        __atomic_store_n(&now_how, found.how, __ATOMIC_RELAXED);
    }
    return (Order){__atomic_load_n(&now_how, __ATOMIC_RELAXED), __atomic_load_n(&now_delay_ns, __ATOMIC_RELAXED)};
}

static void tell(int64_t how) {
    static int64_t last_how, after;
    int changed = __atomic_exchange_n(&last_how, how, __ATOMIC_RELAXED) != how;
    if (changed) after = how == NOTHING ? AFTER : 0;
    if (how == NOTHING && after <= 0) return; /* before the fault, or long after it */
    if (!changed && !due(&told_ns, TELL_NS)) return;
    after--;
    char path[4096], name[32], line[128];
    int error = errno;
    snprintf(name, sizeof name, "rdma-%d", (int)getpid());
    int size = snprintf(line, sizeof line, "%019lld %019lld %019lld %019lld\n", (long long)posted, (long long)struck,
                        (long long)waited_ns, (long long)queries);
    int file = path_of(path, sizeof path, getenv("CHAOS_ANSWERS"), name) ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    if (file >= 0 && write(file, line, (size_t)size) < 0) size = 0; /* a full disk: what is not told does not count */
    if (file >= 0) close(file);
    errno = error;
}

#define COUNT(what, by) __atomic_fetch_add(&what, by, __ATOMIC_RELAXED)

static int place_of(struct context *context) {
    for (int i = 0; i < CONTEXTS_MAX; i++)
        if (__atomic_load_n(&known[i].context, __ATOMIC_ACQUIRE) == context) return i;
    abort(); /* it is we whom the table names */
}

static int post(struct queue *queue, struct request *request, struct request **bad) {
    Order now = order();
    int64_t many = 0;
    for (struct request *each = request; each; each = each->next) many++;
    COUNT(posted, many);
    if (now.how == DELAY && now.delay_ns > 0) {
        struct timespec wait = {now.delay_ns / 1000000000, now.delay_ns % 1000000000};
        int64_t begin = clock_ns();
        while (nanosleep(&wait, &wait) && errno == EINTR) continue;
        COUNT(waited_ns, (clock_ns() - begin) * many);
        COUNT(struck, many);
    }
    tell(now.how);
    return known[place_of(queue->context)].post(queue, request, bad);
}

static int poll(struct queue *queue, int most, struct completion *completions) {
    Order now = order();
    int found = known[place_of(queue->context)].poll(queue, most, completions);
    for (int i = 0; i < found && (now.how == ERROR || now.how == PORT_DOWN); i++) {
        if (completions[i].status || completions[i].opcode >= OF_A_RECEIVE) continue;
        completions[i].status = RETRY_EXCEEDED;
        completions[i].vendor = 0x81;
        COUNT(struck, 1);
    }
    if (found > 0 || now.how == NOTHING) tell(now.how);
    return found;
}

static int queried(int answer, int *state) {
    Order now = order();
    if (answer || now.how != PORT_DOWN) return answer;
    *state = PORT_STATE_DOWN;
    COUNT(queries, 1);
    tell(now.how);
    return 0;
}

static int query(struct context *context, uint8_t port, int *to, size_t size) {
    return queried(known[place_of(context)].query(context, port, to, size), to);
}

__attribute__((visibility("default"))) int ibv_query_port(struct context *context, uint8_t port, int *to) {
    if (!real_query) real_query = (OldQuery *)dlsym(RTLD_NEXT, "ibv_query_port");
    return real_query ? queried(real_query(context, port, to), to) : ENOSYS;
}

__attribute__((visibility("default"))) struct context *ibv_open_device(void *device) {
    if (!real_open) real_open = (Open *)dlsym(RTLD_NEXT, "ibv_open_device");
    struct context *opened = real_open ? real_open(device) : NULL;
    if (!opened || opened->post == post) return opened;
    pthread_mutex_lock(&opening);
    int i = 0;
    while (i < CONTEXTS_MAX && known[i].context && known[i].context != opened) i++;
    if (i < CONTEXTS_MAX) { /* more than that pass untouched, and are not counted */
        known[i].post = opened->post, known[i].poll = opened->poll;
        __atomic_store_n(&known[i].context, opened, __ATOMIC_RELEASE);
        opened->post = post, opened->poll = poll;
        char *end = (char *)opened;
        if (opened->abi == (void *)-1 && *(size_t *)(end - sizeof(size_t)) >= QUERY_BEFORE + sizeof *opened) {
            Query **wide = (Query **)(end - QUERY_BEFORE);
            known[i].query = *wide;
            if (*wide) *wide = query;
        }
    }
    pthread_mutex_unlock(&opening);
    return opened;
}

/* NCCL loads libibverbs by itself, and asks for its functions by name and version. */
__attribute__((visibility("default"))) void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version) {
    static void *(*real)(void *, const char *, const char *);
    if (!real) real = (void *(*)(void *, const char *, const char *))dlsym(RTLD_NEXT, "dlvsym");
    void *found = real(handle, name, version);
    if (!found || strncmp(name, "ibv_", 4)) return found;
    if (!strcmp(name, "ibv_open_device")) {
        if (found != (void *)ibv_open_device) real_open = (Open *)found;
        return (void *)ibv_open_device;
    }
    if (!strcmp(name, "ibv_query_port")) {
        if (found != (void *)ibv_query_port) real_query = (OldQuery *)found;
        return (void *)ibv_query_port;
    }
    return found;
}
