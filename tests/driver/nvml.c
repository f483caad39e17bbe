/* A played NVML: the driver's own ABI, answering from a scenario file, so that the real pynvml and
 * the real collectors run where there is no GPU.
 *
 * PLAYED_NVML_SCENARIO names the file. Its lines are `key = value`; `#` starts a comment, and
 * `include NAME` reads another file first, by its path or from the same folder. A key of one GPU,
 * `gpu.3.temperature`, goes before that of all of them, `gpu.*.temperature`; the last line of a key
 * wins. What no line gives is NVML_ERROR_NOT_SUPPORTED, as on a real card, and `key = error 15`
 * returns that error. Structures and version suffixes are those of nvml.h 12, as nvidia-ml-py calls
 * them.
 */
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3,
       INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15, UNKNOWN = 999 };
enum { MOST_GPUS = 64, MOST_LINES = 1024, LENGTH = 160 };

typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { int index; } *device_t;

static struct { char key[LENGTH], value[LENGTH]; } lines[MOST_LINES];
static int line_count;
static struct { int index; } devices[MOST_GPUS];
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static int started; /* times, as NVML counts them: several users share one process */

/* ---- the scenario ---- */

static char *trimmed(char *text) {
    text += strspn(text, " \t");
    text[strcspn(text, "#\r\n")] = 0;
    for (char *end = text + strlen(text); end > text && strchr(" \t", end[-1]);) *--end = 0;
    return text;
}

static int read_scenario(const char *path) {
    FILE *file = fopen(path, "r");
    char buffer[2 * LENGTH];
    if (!file) return UNKNOWN;
    while (fgets(buffer, sizeof buffer, file)) {
        char *line = trimmed(buffer), *equals = strchr(line, '=');
        if (!strncmp(line, "include ", 8)) {
            char folder[PATH_MAX], included[2 * PATH_MAX];
            char *name = trimmed(line + 8);
            snprintf(folder, sizeof folder, "%s", path);
            snprintf(included, sizeof included, "%s/%s", *name == '/' ? "" : dirname(folder), name);
            if (read_scenario(included)) { fclose(file); return UNKNOWN; }
        } else if (equals && line_count < MOST_LINES) {
            *equals = 0;
            snprintf(lines[line_count].key, LENGTH, "%s", trimmed(line));
            snprintf(lines[line_count].value, LENGTH, "%s", trimmed(equals + 1));
            line_count++;
        } else if (*line) {
            fprintf(stderr, "played NVML: %s: cannot read '%s'\n", path, line);
            fclose(file);
            return UNKNOWN;
        }
    }
    fclose(file);
    return SUCCESS;
}

static const char *find(const char *key) {
    for (int i = line_count - 1; i >= 0; i--)
        if (!strcmp(lines[i].key, key)) return lines[i].value;
    return NULL;
}

/* The text of `gpu.INDEX.NAME`, or else of `gpu.*.NAME`. */
static int text_of(device_t device, const char *name, const char **value) {
    char key[LENGTH];
    if (!started) return UNINITIALIZED;
    snprintf(key, sizeof key, "gpu.%d.lost", device->index);
    if (find(key)) return GPU_IS_LOST;
    snprintf(key, sizeof key, "gpu.%d.%s", device->index, name);
    if (!(*value = find(key))) {
        snprintf(key, sizeof key, "gpu.*.%s", name);
        *value = find(key);
    }
    if (!*value) return NOT_SUPPORTED;
    return strncmp(*value, "error ", 6) ? SUCCESS : atoi(*value + 6);
}

static int number_of(device_t device, const char *name, u64 *number) {
    const char *value;
    int code = text_of(device, name, &value);
    if (!code) *number = strtoull(value, NULL, 0);
    return code;
}

static int write_number(device_t device, const char *name, u32 *out) {
    u64 number;
    int code = number_of(device, name, &number);
    if (!code) *out = (u32)number;
    return code;
}

static int write_text(device_t device, const char *name, char *out, u32 size) {
    const char *value;
    int code = text_of(device, name, &value);
    if (!code) snprintf(out, size, "%s", value);
    return code;
}

static int write_system(const char *key, char *out, u32 size) {
    const char *value = find(key);
    if (value) snprintf(out, size, "%s", value);
    return value ? SUCCESS : NOT_SUPPORTED;
}

/* A name such as link.7 or peer.2, and whether it is among those of a list such as `6 7`. */
static int listed(device_t device, const char *name, int wanted) {
    const char *value;
    if (text_of(device, name, &value)) return 0;
    for (char *rest; *value; value = rest) {
        long number = strtol(value, &rest, 0);
        if (rest == value) return 0;
        if (number == wanted) return 1;
    }
    return 0;
}

/* ---- the library ---- */

static int start(void) {
    const char *path = getenv("PLAYED_NVML_SCENARIO"), *error;
    line_count = 0;
    if (!path || read_scenario(path)) return UNKNOWN;
    for (int i = 0; i < MOST_GPUS; i++) devices[i].index = i;
    error = find("init");
    return error ? atoi(error) : SUCCESS;
}
int nvmlInitWithFlags(u32 flags) {
    (void)flags;
    pthread_mutex_lock(&starting);
    int code = started ? SUCCESS : start();
    if (!code) started++;
    pthread_mutex_unlock(&starting);
    return code;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) {
    pthread_mutex_lock(&starting);
    int code = started ? SUCCESS : UNINITIALIZED;
    if (!code) started--;
    pthread_mutex_unlock(&starting);
    return code;
}
const char *nvmlErrorString(int code) {
    return code == 18 ? "Driver/library version mismatch" : code ? "played error" : "Success";
}
int nvmlSystemGetDriverVersion(char *out, u32 size) { return write_system("driver", out, size); }
int nvmlSystemGetNVMLVersion(char *out, u32 size) { return write_system("nvml", out, size); }
int nvmlSystemGetCudaDriverVersion(int *out) {
    const char *value = find("cuda");
    if (value) *out = atoi(value);
    return value ? SUCCESS : NOT_SUPPORTED;
}
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }

int nvmlDeviceGetCount_v2(u32 *out) {
    const char *value = find("gpus");
    *out = value ? (u32)atoi(value) : 0;
    return started ? SUCCESS : UNINITIALIZED;
}
int nvmlDeviceGetHandleByIndex_v2(u32 index, device_t *out) {
    const char *unused;
    u32 count;
    int code = nvmlDeviceGetCount_v2(&count);
    if (code) return code;
    if (index >= count || index >= MOST_GPUS) return INVALID_ARGUMENT;
    *out = (device_t)&devices[index];
    code = text_of(*out, "handle", &unused);
    return code == NOT_SUPPORTED ? SUCCESS : code;
}

/* The many questions with one number for an answer. */
#define NUMBER(function, name) \
    int function(device_t device, u32 *out) { return write_number(device, name, out); }
NUMBER(nvmlDeviceGetPowerUsage, "power")
NUMBER(nvmlDeviceGetPowerManagementLimit, "power_limit")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power_default")
NUMBER(nvmlDeviceGetPerformanceState, "performance_state")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_maximum_generation")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_maximum_width")
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "pages_pending")

int nvmlDeviceGetName(device_t device, char *out, u32 size) {
    return write_text(device, "name", out, size);
}
int nvmlDeviceGetUUID(device_t device, char *out, u32 size) {
    int code = write_text(device, "uuid", out, size);
    if (code == NOT_SUPPORTED) {
        snprintf(out, size, "GPU-00000000-0000-0000-0000-%012d", device->index);
        return SUCCESS;
    }
    return code;
}

typedef struct {
    char legacy[16];
    u32 domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_t;
int nvmlDeviceGetPciInfo_v3(device_t device, pci_t *out) {
    memset(out, 0, sizeof *out);
    return write_text(device, "bus_id", out->bus_id, sizeof out->bus_id);
}
int nvmlDeviceGetCudaComputeCapability(device_t device, int *major, int *minor) {
    const char *value;
    int code = text_of(device, "capability", &value);
    if (!code) sscanf(value, "%d.%d", major, minor);
    return code;
}

/* Memory and processes are written in MiB. */
typedef struct { u64 total, free, used; } memory_t;
typedef struct { u32 version; u64 total, reserved, free, used; } memory_v2_t;
int nvmlDeviceGetMemoryInfo_v2(device_t device, memory_v2_t *out) {
    u64 total, used, reserved = 0;
    int code = number_of(device, "memory_total", &total);
    if (!code) code = number_of(device, "memory_used", &used);
    if (code) return code;
    number_of(device, "memory_reserved", &reserved);
    out->total = total << 20;
    out->used = used << 20;
    out->reserved = reserved << 20;
    out->free = out->total - out->used - out->reserved;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(device_t device, memory_t *out) {
    memory_v2_t full;
    int code = nvmlDeviceGetMemoryInfo_v2(device, &full);
    if (!code) *out = (memory_t){full.total, full.free, full.used + full.reserved};
    return code;
}

typedef struct { u32 pid; u64 memory; u32 gpu_instance, compute_instance; } process_t;
int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, u32 *count, process_t *out) {
    const char *value; /* `PID:MIB PID:MIB`; -1 MiB: not told */
    u32 room = *count, found = 0;
    int pid, mib, read, code = text_of(device, "processes", &value);
    if (code == NOT_SUPPORTED) value = "";
    else if (code) return code;
    for (; sscanf(value, "%d:%d%n", &pid, &mib, &read) == 2; value += read, found++)
        if (out && found < room)
            out[found] = (process_t){(u32)pid, mib < 0 ? ~0ULL : (u64)mib << 20, ~0U, ~0U};
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t device, u32 *count, process_t *out) {
    (void)device, (void)out;
    *count = 0;
    return SUCCESS;
}

typedef struct { u32 gpu, memory; } utilisation_t;
int nvmlDeviceGetUtilizationRates(device_t device, utilisation_t *out) {
    out->memory = 0;
    return write_number(device, "utilisation", &out->gpu);
}
static int clock_of(device_t device, u32 type, const char *sm, const char *memory, u32 *out) {
    return type == 1 || type == 2 ? write_number(device, type == 1 ? sm : memory, out)
                                  : NOT_SUPPORTED;
}
int nvmlDeviceGetClockInfo(device_t device, u32 type, u32 *out) {
    return clock_of(device, type, "sm_clock", "memory_clock", out);
}
int nvmlDeviceGetMaxClockInfo(device_t device, u32 type, u32 *out) {
    return clock_of(device, type, "sm_clock_maximum", "memory_clock_maximum", out);
}
int nvmlDeviceGetCurrentClocksEventReasons(device_t device, u64 *out) {
    return number_of(device, "throttle_reasons", out);
}
int nvmlDeviceGetTemperature(device_t device, u32 sensor, u32 *out) {
    return sensor ? INVALID_ARGUMENT : write_number(device, "temperature", out);
}
int nvmlDeviceGetTemperatureThreshold(device_t device, u32 which, u32 *out) {
    return which == 1 ? write_number(device, "temperature_slowdown", out) : NOT_SUPPORTED;
}

int nvmlDeviceGetEccMode(device_t device, u32 *now, u32 *pending) {
    int code = write_number(device, "ecc", now);
    *pending = *now;
    return code;
}
int nvmlDeviceGetTotalEccErrors(device_t device, u32 type, u32 counter, u64 *out) {
    char name[LENGTH];
    snprintf(name, sizeof name, "ecc_%s_%s", type ? "uncorrected" : "corrected",
             counter ? "aggregate" : "volatile");
    return number_of(device, name, out);
}
int nvmlDeviceGetRemappedRows(device_t device, u32 *corrected, u32 *uncorrected, u32 *pending,
                              u32 *failed) {
    int code = write_number(device, "rows_remapped", uncorrected);
    *corrected = *pending = *failed = 0;
    write_number(device, "remap_pending", pending);
    write_number(device, "remap_failed", failed);
    return code;
}

/* Bytes in KB per second. */
int nvmlDeviceGetPcieThroughput(device_t device, u32 counter, u32 *out) {
    return write_number(device, counter ? "pcie_received" : "pcie_sent", out);
}

/* What a link has moved so far, in KiB: it counts from the machine's start, at so much a second. */
static int moved(device_t device, const char *name, u32 link, u64 *out) {
    struct timespec now;
    u64 links, rate;
    int code = number_of(device, "links", &links);
    if (code || (code = number_of(device, name, &rate))) return code;
    if (link >= links) return INVALID_ARGUMENT;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *out = (u64)((now.tv_sec + now.tv_nsec / 1e9) * rate);
    return SUCCESS;
}

typedef struct { u32 field, scope; long long time, latency; u32 type; int code; u64 value; } field_t;
int nvmlDeviceGetFieldValues(device_t device, int count, field_t *fields) {
    for (int i = 0; i < count; i++) {
        u64 *value = &fields[i].value;
        int code = NOT_SUPPORTED;
        switch (fields[i].field) {
        case 138: code = moved(device, "link_sent", fields[i].scope, value); break;
        case 139: code = moved(device, "link_received", fields[i].scope, value); break;
        case 230: code = number_of(device, "recovery_action", value); break;
        }
        fields[i].type = fields[i].field == 230 ? 1 : 3; /* unsigned int, unsigned long long */
        fields[i].code = code;
    }
    return SUCCESS;
}

/* `links` is how many the model has, `links_down` lists those that are down. */
int nvmlDeviceGetNvLinkState(device_t device, u32 link, u32 *active) {
    u64 links;
    int code = number_of(device, "links", &links);
    if (code) return code;
    if (link >= links) return INVALID_ARGUMENT;
    *active = !listed(device, "links_down", (int)link);
    return SUCCESS;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(device_t device, u32 link, u32 *type) {
    (void)link;
    return write_number(device, "link_remote_type", type);
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t device, u32 link, pci_t *out) {
    (void)link;
    memset(out, 0, sizeof *out);
    return write_text(device, "link_remote", out->bus_id, sizeof out->bus_id);
}
int nvmlDeviceGetNvLinkErrorCounter(device_t device, u32 link, u32 counter, u64 *out) {
    (void)link, (void)counter;
    return number_of(device, "link_errors", out);
}

typedef struct {
    u32 version;
    unsigned char cluster[16];
    int status;
    u32 clique, state, health;
} fabric_t;
int nvmlDeviceGetGpuFabricInfoV(device_t device, fabric_t *out) {
    u64 status = 0, health = 0;
    int code = write_number(device, "fabric_state", &out->state);
    number_of(device, "fabric_status", &status);
    number_of(device, "fabric_health", &health);
    out->status = (int)status;
    out->health = (u32)health;
    return code;
}

int nvmlDeviceGetMigMode(device_t device, u32 *now, u32 *pending) {
    int code = write_number(device, "mig", now);
    *pending = *now;
    return code;
}

/* `p2p_broken` lists the GPUs that this one does not reach. */
int nvmlDeviceGetP2PStatus(device_t a, device_t b, u32 capability, u32 *status) {
    if (capability == 2) {
        u32 none = 0;
        write_number(a, "p2p_nvlink", &none);
        *status = none ? 0 : 5; /* not supported */
        return SUCCESS;
    }
    if (listed(a, "p2p_broken", b->index) || listed(b, "p2p_broken", a->index)) {
        *status = 3; /* IOH topology not supported */
        return SUCCESS;
    }
    return write_number(a, "p2p_status", status);
}
int nvmlDeviceGetTopologyCommonAncestor(device_t a, device_t b, u32 *level) {
    (void)b;
    return write_number(a, "topology", level);
}
