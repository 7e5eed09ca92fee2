/* NVIDIA's management library (NVML) with GPUs that are as sick as a file of the node says.

   It lies first on the library path of a node's processes, under the real one's name. A function that is not here is
   found in the real library, which is loaded as an auxiliary one of ours where the node has it. A function that is here
   asks the real one first, and changes the answer only for a device with an entry in the file. Without a driver it
   simulates as many GPUs as the file says: they tell what is asked below, and no use and no power of their own.

   The file: a count of simulated GPUs, and for each device one value a field; `F_…` are the fields' places. It is read
   anew at each call, and replaced as a whole, so that no process has to start again. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK, UNINITIALIZED, INVALID, UNSUPPORTED, NOT_FOUND = 6, TOO_SMALL, NO_DRIVER = 9, TIMEOUT, NO_LIBRARY = 12, NO_FUNCTION, LOST = 15 };
enum { DOUBLE_BIT = 2, XID = 8, SETS_MAX = 64, LOOK_MS = 20, LINKS = 18 };
#define UNCHANGED INT64_MIN
#define EXPORT __attribute__((visibility("default")))

typedef struct { int number; } *Device;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { Device device; unsigned long long type, data; unsigned instance, compute; } Event;
typedef struct { unsigned id, scope; int64_t at, latency; int type, result; union { double d; unsigned ui; unsigned long long ull; } value; } Value;
typedef struct { int taken; void *real; unsigned long long types[DEVICES_MAX]; int64_t seen[DEVICES_MAX]; } Set;

static struct { int number; } simulated[DEVICES_MAX];
static Set sets[SETS_MAX];

/* What the file says */

static int read_file(int64_t *to, size_t size, off_t from) {
    const char *folder = getenv("CHAOS_GPU"), *node = getenv("CHAOS_NODE");
    char path[4096];
    if (!folder || !node || snprintf(path, sizeof path, "%s/%s", folder, node) >= (int)sizeof path) return 0;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) return 0;
    int whole = pread(file, to, size, from) == (ssize_t)size;
    close(file);
    return whole;
}

static int simulated_count(void) {
    int64_t count = 0;
    return read_file(&count, sizeof count, 0) && count > 0 && count <= DEVICES_MAX ? (int)count : 0;
}

static void fields_of(int number, int64_t *fields) {
    if (number < 0 || number >= DEVICES_MAX || !read_file(fields, 8 * FIELDS, 8 + 8 * FIELDS * (off_t)number))
        for (int i = 0; i < FIELDS; i++) fields[i] = UNCHANGED;
}

static int64_t field(int number, int which) {
    int64_t fields[FIELDS];
    fields_of(number, fields);
    return fields[which];
}

/* The real library */

static void *real_library(void) {
    static const char *const places[] = {PLACES};
    static void *found;
    static int looked;
    if (looked) return found;
    for (size_t i = 0; !found && i < sizeof places / sizeof *places; i++) found = dlopen(places[i], RTLD_LAZY);
    looked = 1;
    return found;
}

static void *real(const char *name) {
    void *library = real_library();
    return library ? dlsym(library, name) : NULL;
}

/* A driver whose library is somewhere else: simulated GPUs beside real ones would mislead NCCL. */
static int driver_without_library(void) { return !real_library() && access("/dev/nvidiactl", F_OK) == 0; }

#define MISSING (real_library() ? NO_FUNCTION : UNSUPPORTED)
#define ASK(name, types, ...) (real(name) ? ((int (*) types)real(name))(__VA_ARGS__) : MISSING)

static int number_of(Device device) {
    unsigned number;
    if (!real_library()) {
        for (int i = 0; i < DEVICES_MAX; i++)
            if (device == (Device)&simulated[i]) return i;
        return -1;
    }
    return ASK("nvmlDeviceGetIndex", (Device, unsigned *), device, &number) == OK ? (int)number : -1;
}

static void pause_ms(int ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

/* Every answer about a device begins here: a hung driver answers once it is healed, a lost GPU never. */
static int reach_number(int number) {
    while (field(number, F_HANG) > 0) pause_ms(LOOK_MS);
    return field(number, F_LOST) > 0 ? LOST : OK;
}

static int reach(Device device, int *number) {
    *number = number_of(device);
    return *number < 0 ? INVALID : reach_number(*number);
}

/* The value of a field in place of the real one; `ours` where there is no driver. */
static int told(int answer, int number, int which, long long ours, long long *value) {
    int64_t said = field(number, which);
    if (said != UNCHANGED) *value = said;
    else if (answer == OK) return OK;
    else if (real_library() || ours == UNCHANGED) return answer;
    else *value = ours;
    return OK;
}

/* A counter that has grown by what the field says. */
static int grown(int answer, int number, int which, unsigned long long *value) {
    int64_t more = field(number, which);
    if (answer != OK && (real_library() ? more == UNCHANGED : 0)) return answer;
    *value = (answer == OK ? *value : 0) + (more == UNCHANGED ? 0 : (unsigned long long)more);
    return OK;
}

#define REACHED(device) int number, state = reach(device, &number); if (state != OK) return state

#define FIGURE(name, which, ours) \
    EXPORT int name(Device device, unsigned *to) { \
        REACHED(device); \
        long long value = 0; \
        int answer = ASK(#name, (Device, unsigned *), device, to); \
        if (answer == OK) value = *to; \
        if ((answer = told(answer, number, which, ours, &value)) == OK) *to = (unsigned)value; \
        return answer; \
    }

#define KIND_OF_FIGURE(name, which, concerned, ours) \
    EXPORT int name(Device device, int kind, unsigned *to) { \
        REACHED(device); \
        long long value = 0; \
        int answer = ASK(#name, (Device, int, unsigned *), device, kind, to); \
        if (answer == OK) value = *to; \
        if (!real_library() || (concerned)) answer = told(answer, number, which, ours, &value); \
        if (answer == OK) *to = (unsigned)value; \
        return answer; \
    }

/* The library itself */

static int started(const char *name, int with_flags, unsigned flags) {
    if (driver_without_library()) return NO_LIBRARY;
    for (int i = 0; i < DEVICES_MAX; i++) while (field(i, F_HANG) > 0) pause_ms(LOOK_MS);
    if (real_library()) return with_flags ? ASK(name, (unsigned), flags) : ASK(name, (void), );
    for (int i = 0; i < DEVICES_MAX; i++) simulated[i].number = i;
    return simulated_count() ? OK : NO_DRIVER;
}

EXPORT int nvmlInit(void) { return started("nvmlInit", 0, 0); }
EXPORT int nvmlInit_v2(void) { return started("nvmlInit_v2", 0, 0); }
EXPORT int nvmlInitWithFlags(unsigned flags) { return started("nvmlInitWithFlags", 1, flags); }
EXPORT int nvmlShutdown(void) { return real_library() ? ASK("nvmlShutdown", (void), ) : OK; }

EXPORT const char *nvmlErrorString(int result) {
    if (real("nvmlErrorString")) return ((const char *(*)(int))real("nvmlErrorString"))(result);
    return result == OK ? "Success" : result == LOST ? "GPU is lost" : result == UNSUPPORTED ? "Not Supported" : "Error";
}

static int text(int answer, const char *said, char *to, unsigned size) {
    if (answer == OK || real_library()) return answer;
    return snprintf(to, size, "%s", said) < (int)size ? OK : TOO_SMALL;
}

EXPORT int nvmlSystemGetDriverVersion(char *to, unsigned size) {
    return text(ASK("nvmlSystemGetDriverVersion", (char *, unsigned), to, size), "simulated", to, size);
}
EXPORT int nvmlSystemGetNVMLVersion(char *to, unsigned size) {
    return text(ASK("nvmlSystemGetNVMLVersion", (char *, unsigned), to, size), "simulated", to, size);
}

static int count(const char *name, unsigned *to) {
    if (real_library()) return ASK(name, (unsigned *), to);
    *to = (unsigned)simulated_count();
    return OK;
}
EXPORT int nvmlDeviceGetCount(unsigned *to) { return count("nvmlDeviceGetCount", to); }
EXPORT int nvmlDeviceGetCount_v2(unsigned *to) { return count("nvmlDeviceGetCount_v2", to); }

/* Handles */

static int handle(int answer, int number, Device *to) {
    if (real_library()) {
        int reached = answer == OK ? reach(*to, &number) : answer;
        return reached == INVALID ? answer : reached;
    }
    if (number < 0 || number >= simulated_count()) return number < 0 ? NOT_FOUND : INVALID;
    *to = (Device)&simulated[number];
    return reach_number(number);
}
EXPORT int nvmlDeviceGetHandleByIndex(unsigned number, Device *to) {
    return handle(ASK("nvmlDeviceGetHandleByIndex", (unsigned, Device *), number, to), (int)number, to);
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned number, Device *to) {
    return handle(ASK("nvmlDeviceGetHandleByIndex_v2", (unsigned, Device *), number, to), (int)number, to);
}

static void uuid_of(int number, char *to, size_t size) {
    const char *node = getenv("CHAOS_NODE");
    unsigned hash = 2166136261u;
    for (; node && *node; node++) hash = (hash ^ (unsigned char)*node) * 16777619u;
    snprintf(to, size, "GPU-%08x-0000-4000-8000-%012x", hash, (unsigned)number);
}
static void bus_of(int number, char *to, size_t size) { snprintf(to, size, "00000000:%02X:00.0", (unsigned)number + 1); }

static int find(void (*name)(int, char *, size_t), const char *wanted) {
    char named[80];
    for (int i = 0; i < simulated_count(); i++) {
        name(i, named, sizeof named);
        const char *begin = strlen(wanted) < strlen(named) ? named + strlen(named) - strlen(wanted) : named;
        if (!strcasecmp(begin, wanted)) return i; /* a domain may have four digits or eight */
    }
    return -1;
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, Device *to) {
    return handle(ASK("nvmlDeviceGetHandleByUUID", (const char *, Device *), uuid, to), find(uuid_of, uuid), to);
}
EXPORT int nvmlDeviceGetHandleByPciBusId(const char *bus, Device *to) {
    return handle(ASK("nvmlDeviceGetHandleByPciBusId", (const char *, Device *), bus, to), find(bus_of, bus), to);
}
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Device *to) {
    return handle(ASK("nvmlDeviceGetHandleByPciBusId_v2", (const char *, Device *), bus, to), find(bus_of, bus), to);
}

EXPORT int nvmlDeviceGetIndex(Device device, unsigned *to) {
    if (real_library()) return ASK("nvmlDeviceGetIndex", (Device, unsigned *), device, to);
    *to = (unsigned)number_of(device);
    return number_of(device) < 0 ? INVALID : OK;
}
EXPORT int nvmlDeviceGetMinorNumber(Device device, unsigned *to) {
    if (real_library()) return ASK("nvmlDeviceGetMinorNumber", (Device, unsigned *), device, to);
    return nvmlDeviceGetIndex(device, to);
}
EXPORT int nvmlDeviceGetName(Device device, char *to, unsigned size) {
    REACHED(device);
    return text(ASK("nvmlDeviceGetName", (Device, char *, unsigned), device, to, size), "Simulated GPU", to, size);
}
EXPORT int nvmlDeviceGetUUID(Device device, char *to, unsigned size) {
    REACHED(device);
    char said[80];
    uuid_of(number, said, sizeof said);
    return text(ASK("nvmlDeviceGetUUID", (Device, char *, unsigned), device, to, size), said, to, size);
}

static int pci(const char *name, Device device, Pci *to) {
    REACHED(device);
    if (real_library()) return ASK(name, (Device, Pci *), device, to);
    memset(to, 0, sizeof *to);
    to->bus = (unsigned)number + 1;
    bus_of(number, to->bus_id, sizeof to->bus_id);
    snprintf(to->legacy, sizeof to->legacy, "0000:%02X:00.0", to->bus);
    return OK;
}
EXPORT int nvmlDeviceGetPciInfo(Device device, Pci *to) { return pci("nvmlDeviceGetPciInfo", device, to); }
EXPORT int nvmlDeviceGetPciInfo_v2(Device device, Pci *to) { return pci("nvmlDeviceGetPciInfo_v2", device, to); }
EXPORT int nvmlDeviceGetPciInfo_v3(Device device, Pci *to) { return pci("nvmlDeviceGetPciInfo_v3", device, to); }

/* Figures. Clocks: 0 graphics, 1 SM, 2 memory, 3 video. */

KIND_OF_FIGURE(nvmlDeviceGetTemperature, F_TEMPERATURE, kind == 0, 45)
KIND_OF_FIGURE(nvmlDeviceGetTemperatureThreshold, F_NOTHING, 0, kind == 0 ? 95 : 90)
KIND_OF_FIGURE(nvmlDeviceGetClockInfo, kind < 2 ? F_SM_CLOCK : F_NOTHING, kind < 2, 1500)
KIND_OF_FIGURE(nvmlDeviceGetMaxClockInfo, F_NOTHING, 0, 1500)
FIGURE(nvmlDeviceGetPowerUsage, F_POWER, UNCHANGED)
FIGURE(nvmlDeviceGetEnforcedPowerLimit, F_NOTHING, 700000)

typedef struct { int version; int sensor; int temperature; } TemperatureV;
EXPORT int nvmlDeviceGetTemperatureV(Device device, TemperatureV *to) {
    unsigned value = 0;
    REACHED(device);
    if (real_library() && field(number, F_TEMPERATURE) == UNCHANGED)
        return ASK("nvmlDeviceGetTemperatureV", (Device, TemperatureV *), device, to);
    int answer = nvmlDeviceGetTemperature(device, to->sensor, &value);
    if (answer == OK) to->temperature = (int)value;
    return answer;
}

EXPORT int nvmlDeviceGetUtilizationRates(Device device, unsigned to[2]) {
    REACHED(device);
    long long busy = 0;
    int answer = ASK("nvmlDeviceGetUtilizationRates", (Device, unsigned *), device, to);
    if (answer == OK) busy = to[0];
    else to[1] = 0;
    if ((answer = told(answer, number, F_BUSY, UNCHANGED, &busy)) == OK) to[0] = (unsigned)busy;
    return answer;
}

EXPORT int nvmlDeviceGetMemoryInfo(Device device, unsigned long long to[3]) {
    REACHED(device);
    if (real_library()) return ASK("nvmlDeviceGetMemoryInfo", (Device, unsigned long long *), device, to);
    to[0] = to[1] = 80ull << 30; /* total, free, used */
    to[2] = 0;
    return OK;
}
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
EXPORT int nvmlDeviceGetMemoryInfo_v2(Device device, Memory *to) {
    REACHED(device);
    if (real_library()) return ASK("nvmlDeviceGetMemoryInfo_v2", (Device, Memory *), device, to);
    to->total = to->free = 80ull << 30;
    to->reserved = to->used = 0;
    return OK;
}

static int reasons(const char *name, Device device, unsigned long long *to) {
    REACHED(device);
    long long value = 0;
    int answer = ASK(name, (Device, unsigned long long *), device, to);
    if (answer == OK) value = (long long)*to;
    if ((answer = told(answer, number, F_THROTTLE, 0, &value)) == OK) *to = (unsigned long long)value;
    return answer;
}
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long *to) {
    return reasons("nvmlDeviceGetCurrentClocksThrottleReasons", device, to);
}
EXPORT int nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long *to) {
    return reasons("nvmlDeviceGetCurrentClocksEventReasons", device, to);
}

EXPORT int nvmlDeviceGetEccMode(Device device, int *now, int *pending) {
    REACHED(device);
    if (real_library()) return ASK("nvmlDeviceGetEccMode", (Device, int *, int *), device, now, pending);
    *now = *pending = 1;
    return OK;
}
/* Errors: 0 corrected, 1 uncorrected. Counters: 0 since the start of the driver, 1 in all. */
EXPORT int nvmlDeviceGetTotalEccErrors(Device device, int error, int counter, unsigned long long *to) {
    REACHED(device);
    int answer = ASK("nvmlDeviceGetTotalEccErrors", (Device, int, int, unsigned long long *), device, error, counter, to);
    return grown(answer, number, error ? F_ECC_UNCORRECTED : F_ECC_CORRECTED, to);
}
/* Location 2 is the device's memory, where our errors are. */
EXPORT int nvmlDeviceGetMemoryErrorCounter(Device device, int error, int counter, int location, unsigned long long *to) {
    REACHED(device);
    int answer = ASK("nvmlDeviceGetMemoryErrorCounter", (Device, int, int, int, unsigned long long *), device, error,
                     counter, location, to);
    if (real_library() && location != 2) return answer;
    return grown(answer, number, location != 2 ? F_NOTHING : error ? F_ECC_UNCORRECTED : F_ECC_CORRECTED, to);
}
EXPORT int nvmlDeviceGetRemappedRows(Device device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    REACHED(device);
    int answer = ASK("nvmlDeviceGetRemappedRows", (Device, unsigned *, unsigned *, unsigned *, unsigned *), device,
                     corrected, uncorrected, pending, failed);
    int64_t more = field(number, F_REMAPPED);
    if (answer != OK && real_library()) return answer;
    if (answer != OK) *corrected = *uncorrected = *pending = *failed = 0;
    if (more > 0) *uncorrected += (unsigned)more, *pending = 1;
    return OK;
}
EXPORT int nvmlDeviceGetRetiredPages(Device device, int cause, unsigned *many, unsigned long long *pages) {
    REACHED(device);
    if (real_library())
        return ASK("nvmlDeviceGetRetiredPages", (Device, int, unsigned *, unsigned long long *), device, cause, many, pages);
    *many = 0; /* this kind of GPU remaps rows */
    return OK;
}
FIGURE(nvmlDeviceGetRetiredPagesPendingStatus, F_NOTHING, 0)

EXPORT int nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *to) {
    REACHED(device);
    int answer = ASK("nvmlDeviceGetNvLinkState", (Device, unsigned, unsigned *), device, link, to);
    if (!real_library()) {
        if (link >= LINKS) return INVALID;
        *to = 1, answer = OK;
    }
    if (answer == OK && field(number, F_NVLINKS_DOWN) > (int64_t)link) *to = 0;
    return answer;
}
EXPORT int nvmlDeviceGetNvLinkErrorCounter(Device device, unsigned link, int counter, unsigned long long *to) {
    REACHED(device);
    int answer = ASK("nvmlDeviceGetNvLinkErrorCounter", (Device, unsigned, int, unsigned long long *), device, link, counter, to);
    if (!real_library() && link >= LINKS) return INVALID;
    return grown(answer, number, link == 0 ? F_NVLINK_ERRORS : F_NOTHING, to);
}

/* The same counters by number: totals of ECC (3 to 6), of NVLink's CRC and replays (38, 45, 52), remapped rows (143). */
EXPORT int nvmlDeviceGetFieldValues(Device device, int many, Value *values) {
    REACHED(device);
    if (real_library()) {
        int answer = ASK("nvmlDeviceGetFieldValues", (Device, int, Value *), device, many, values);
        if (answer != OK) return answer;
    }
    for (int i = 0; i < many; i++) {
        Value *value = &values[i];
        unsigned id = value->id;
        int which = id == 3 || id == 5 ? F_ECC_CORRECTED : id == 4 || id == 6 ? F_ECC_UNCORRECTED
                    : id == 38 || id == 45 || id == 52 ? F_NVLINK_ERRORS : id == 143 ? F_REMAPPED : F_NOTHING;
        int64_t more = field(number, which);
        if (!real_library()) {
            value->type = 3, value->value.ull = 0; /* unsigned long long */
            value->result = which == F_NOTHING ? UNSUPPORTED : OK;
        }
        if (more == UNCHANGED) continue;
        if (value->result != OK) value->type = 3, value->value.ull = 0, value->result = OK;
        if (value->type == 1) value->value.ui += (unsigned)more;
        else value->value.ull += (unsigned long long)more;
    }
    return OK;
}

static int no_processes(const char *name, Device device, unsigned *many, void *to) {
    REACHED(device);
    if (real_library()) return ASK(name, (Device, unsigned *, void *), device, many, to);
    *many = 0;
    return OK;
}
#define PROCESSES(name) EXPORT int name(Device device, unsigned *many, void *to) { return no_processes(#name, device, many, to); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)

/* Events. A set hears of errors that come after its registration, as with the real library. */

EXPORT int nvmlDeviceGetSupportedEventTypes(Device device, unsigned long long *to) {
    REACHED(device);
    int answer = ASK("nvmlDeviceGetSupportedEventTypes", (Device, unsigned long long *), device, to);
    if (answer != OK) *to = 0;
    *to |= XID | DOUBLE_BIT;
    return OK;
}

EXPORT int nvmlEventSetCreate(Set **to) {
    for (int i = 0; i < SETS_MAX; i++) {
        int nobody = 0;
        if (!__atomic_compare_exchange_n(&sets[i].taken, &nobody, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) continue;
        sets[i].real = NULL;
        memset(sets[i].types, 0, sizeof sets[i].types);
        int answer = real_library() ? ASK("nvmlEventSetCreate", (void **), &sets[i].real) : OK;
        if (answer != OK) sets[i].taken = 0;
        *to = &sets[i];
        return answer;
    }
    return 20; /* no memory */
}

static int is_set(Set *set) { return set >= sets && set < sets + SETS_MAX && set->taken; }

EXPORT int nvmlDeviceRegisterEvents(Device device, unsigned long long types, Set *set) {
    REACHED(device);
    if (!is_set(set)) return INVALID;
    int64_t seen = field(number, F_XIDS);
    set->types[number] |= types;
    set->seen[number] = seen == UNCHANGED ? 0 : seen;
    return set->real ? ASK("nvmlDeviceRegisterEvents", (Device, unsigned long long, void *), device, types, set->real) : OK;
}

static int next_event(Set *set, Event *to) {
    for (int i = 0; i < DEVICES_MAX; i++) {
        if (!(set->types[i] & XID)) continue;
        int64_t fields[FIELDS];
        fields_of(i, fields);
        if (fields[F_XIDS] == UNCHANGED || fields[F_XIDS] <= set->seen[i]) continue;
        set->seen[i] = fields[F_XIDS];
        memset(to, 0, sizeof *to);
        if (!real_library()) to->device = (Device)&simulated[i];
        else if (ASK("nvmlDeviceGetHandleByIndex_v2", (unsigned, Device *), (unsigned)i, &to->device) != OK) continue;
        to->type = XID;
        to->data = (unsigned long long)fields[F_XID];
        to->instance = to->compute = ~0u;
        return 1;
    }
    return 0;
}

static int await(const char *name, Set *set, Event *to, unsigned limit_ms) {
    if (!is_set(set)) return INVALID;
    for (unsigned waited_ms = 0;; waited_ms += LOOK_MS) {
        if (next_event(set, to)) return OK;
        unsigned left_ms = limit_ms > waited_ms ? limit_ms - waited_ms : 0;
        unsigned slice_ms = left_ms < LOOK_MS ? left_ms : LOOK_MS;
        int answer = set->real ? ASK(name, (void *, Event *, unsigned), set->real, to, slice_ms) : TIMEOUT;
        if (answer != TIMEOUT || left_ms == 0) return answer;
        if (!set->real) pause_ms((int)slice_ms);
    }
}
EXPORT int nvmlEventSetWait(Set *set, Event *to, unsigned limit_ms) { return await("nvmlEventSetWait", set, to, limit_ms); }
EXPORT int nvmlEventSetWait_v2(Set *set, Event *to, unsigned limit_ms) {
    return await("nvmlEventSetWait_v2", set, to, limit_ms);
}
EXPORT int nvmlEventSetFree(Set *set) {
    if (!is_set(set)) return INVALID;
    int answer = set->real ? ASK("nvmlEventSetFree", (void *), set->real) : OK;
    set->taken = 0;
    return answer;
}
