/* What edgekit calls of NVIDIA's driver, with the processor's memory for the GPU's: tests of those calls need no GPU. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int live;

int cuInit(unsigned flags) { return getenv("STUB_BROKEN") ? 999 : 0; }
int cuDriverGetVersion(int *version) { *version = 13010; return 0; }
int cuDeviceGetCount(int *count) { *count = getenv("STUB_EMPTY") ? 0 : 1; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return index ? 101 : 0; }
int cuDeviceGetName(char *name, int room, int device) { strncpy(name, "Stub H200", room); return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) { *value = which == 75 ? 9 : 0; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &live; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxSetCurrent(void *context) { return context == &live ? 0 : 201; }
int cuMemAlloc_v2(uint64_t *address, size_t size) {
    if (size > (1ull << 40)) return 2;
    *address = (uint64_t)(uintptr_t)malloc(size);
    live++;
    return 0;
}
int cuMemFree_v2(uint64_t address) { free((void *)(uintptr_t)address); live--; return 0; }
int cuMemAllocHost_v2(void **address, size_t size) { *address = malloc(size); live++; return 0; }
int cuMemFreeHost(void *address) { free(address); live--; return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream) {
    memcpy((void *)(uintptr_t)to, from, size);
    return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
    memcpy(to, (void *)(uintptr_t)from, size);
    return 0;
}
int cuStreamCreate(void **stream, unsigned flags) { *stream = malloc(1); live++; return 0; }
int cuStreamDestroy_v2(void *stream) { free(stream); live--; return 0; }
int cuStreamSynchronize(void *stream) { return 0; }
int cuGetErrorString(int code, const char **text) { *text = code == 2 ? "out of memory" : "unknown error"; return 0; }
int stub_live(void) { return live; }
