/* Loaded into every process of tests/avx2_only.py, whose libraries have the bytes 0F 0A where they asked CPUID.

   That is no instruction. The handler asks CPUID, keeps of the answer what a Haswell has, and goes on behind it. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>
#include <ucontext.h>

enum {
    EXTENDED_FEATURES = 7,
    /* FSGSBASE, BMI1, AVX2, SMEP, BMI2, ERMS, INVPCID */
    HASWELL_EBX = 1 << 0 | 1 << 3 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10,
    CPUID_LENGTH = 2
};

static int (*real_sigaction)(int, const struct sigaction *, struct sigaction *);

static void answer(int number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)registers[REG_RIP];
    unsigned leaf = (unsigned)registers[REG_RAX], part = (unsigned)registers[REG_RCX], eax, ebx, ecx, edx;
    (void)info;
    if (info->si_code <= 0 || at[0] != 0x0F || at[1] != 0x0A) { /* another's fault, or a signal that somebody sent */
        struct sigaction fatal = {.sa_handler = SIG_DFL};
        real_sigaction(number, &fatal, NULL);
        raise(number);
        return;
    }
    __cpuid_count(leaf, part, eax, ebx, ecx, edx);
    if (leaf == EXTENDED_FEATURES) {
        eax = 0;
        ebx = part == 0 ? ebx & HASWELL_EBX : 0;
        ecx = edx = 0;
    }
    registers[REG_RAX] = eax;
    registers[REG_RBX] = ebx;
    registers[REG_RCX] = ecx;
    registers[REG_RDX] = edx;
    registers[REG_RIP] += CPUID_LENGTH;
}

/* faulthandler wants SIGILL too. */
int sigaction(int number, const struct sigaction *new, struct sigaction *old)
{
    return real_sigaction(number, number == SIGILL ? NULL : new, old);
}

__attribute__((constructor)) static void install(void)
{
    struct sigaction handler = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
    real_sigaction = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
    real_sigaction(SIGILL, &handler, NULL);
}
