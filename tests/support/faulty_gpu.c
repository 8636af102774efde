/* A Vulkan driver with the device of another one, $FAULTY_GPU_OF, until the file $FAULTY_GPU exists. From then on work
   that is submitted is lost, does not fit, never ends, kills the process, exits or is left out, as its first letter says. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void (*Function)(void);
typedef Function (*Lookup)(void *, const char *);
typedef int32_t (*Submit)(void *, uint32_t, const void *, uint64_t);
typedef void (*Dispatch)(void *, uint32_t, uint32_t, uint32_t);

static Lookup device_of;
static Submit submit, submit2;
static Dispatch dispatch;

static void *other(const char *name) {
    static void *library;
    if (!library) library = dlopen(getenv("FAULTY_GPU_OF"), RTLD_NOW | RTLD_LOCAL);
    return library ? dlsym(library, name) : 0;
}

static char fault(void) {
    char letter = 0;
    const char *path = getenv("FAULTY_GPU");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file >= 0) {
        if (read(file, &letter, 1) != 1) letter = 0;
        close(file);
    }
    return letter;
}

static int32_t faulty(Submit as_it_is, void *queue, uint32_t count, const void *work, uint64_t fence) {
    switch (fault()) {
    case 'l': return -4; /* VK_ERROR_DEVICE_LOST */
    case 'f': return -2; /* VK_ERROR_OUT_OF_DEVICE_MEMORY */
    case 'h': for (;;) pause();
    case 'd': abort();
    case 'e': _exit(1); /* as a library whose own check fails */
    }
    return as_it_is(queue, count, work, fence);
}

static int32_t our_submit(void *q, uint32_t n, const void *w, uint64_t f) { return faulty(submit, q, n, w, f); }
static int32_t our_submit2(void *q, uint32_t n, const void *w, uint64_t f) { return faulty(submit2, q, n, w, f); }
static void our_dispatch(void *commands, uint32_t x, uint32_t y, uint32_t z) {
    if (fault() != 'w') dispatch(commands, x, y, z); /* wrong: the results are what was in memory */
}

static Function of_device(void *device, const char *name) {
    Function found = device_of(device, name);
    if (!found) return found;
    if (!strcmp(name, "vkQueueSubmit")) return submit = (Submit)found, (Function)our_submit;
    if (!strncmp(name, "vkQueueSubmit2", 14)) return submit2 = (Submit)found, (Function)our_submit2;
    if (!strcmp(name, "vkCmdDispatch")) return dispatch = (Dispatch)found, (Function)our_dispatch;
    return found;
}

Function vk_icdGetInstanceProcAddr(void *instance, const char *name) {
    Function found = ((Lookup)other(__func__))(instance, name);
    if (found && !strcmp(name, "vkGetDeviceProcAddr")) return device_of = (Lookup)found, (Function)of_device;
    return found;
}

Function vk_icdGetPhysicalDeviceProcAddr(void *instance, const char *name) {
    Lookup theirs = (Lookup)other(__func__);
    return theirs ? theirs(instance, name) : 0;
}

int32_t vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version) {
    int32_t (*theirs)(uint32_t *) = (int32_t (*)(uint32_t *))other(__func__);
    return theirs ? theirs(version) : -9;
}
