/* A QEMU plugin that counts the guest's instructions between marks, by kind.

   A mark is an fsync of a descriptor from 10000 to 19999, which no program has open: the kernel refuses it with EBADF, and
   this prints one line "INSN <mark> <kind>=<count> ..." of what was executed since the mark before. Guests of one thread:
   the counters are plain additions. On 32-bit ARM all instructions are counted and none is told apart.

   Built when it is used: gcc -O2 -shared -fPIC insn.c -o libinsn.so. QEMU's plugin header is in no Debian package; the
   declarations are those of version 1 of its interface, as its documentation names them. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef struct {
  const char *target_name;
  struct { int min, cur; } version;
  int system_emulation;
  union { struct { int smp_vcpus, max_vcpus; } system; };
} qemu_info_t;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
typedef void (*on_block)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*on_call)(qemu_plugin_id_t, unsigned, int64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                        uint64_t, uint64_t);

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, on_block);
void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t, on_call);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, enum qemu_plugin_op, void *, uint64_t);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
void qemu_plugin_outs(const char *);

#define EXPORTED __attribute__((visibility("default")))
EXPORTED int qemu_plugin_version = 1;

/* simd holds all data processing on vector registers, fmla, dot and mmla among it. */
enum { ALL, LOADSTORE, SIMD, FMLA, DOT, MMLA, KINDS };
static const char *const names[KINDS] = {"all", "loadstore", "simd", "fmla", "dot", "mmla"};
static uint64_t executed[KINDS], at_last_mark[KINDS];
static int is_aarch64;

/* Masks and values from the encodings of the Arm Architecture Reference Manual, A64: each covers the vector and the
   by-element form. */
static void classify(uint32_t word, uint64_t *count) {
  uint32_t group = (word >> 25) & 15;
  if ((group & 5) == 4) {
    count[LOADSTORE]++;
  } else if ((group & 7) == 7) {
    count[SIMD]++;
    if ((word & 0xbfa0fc00) == 0x0e20cc00 || (word & 0xbf80f400) == 0x0f801000)
      count[FMLA]++;
    else if ((word & 0x9fe0fc00) == 0x0e809400 || (word & 0x9fc0f400) == 0x0f80e000)
      count[DOT]++; /* SDOT, UDOT */
    else if ((word & 0xdfe0f400) == 0x4e80a400)
      count[MMLA]++; /* SMMLA, UMMLA, USMMLA */
  }
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *block) {
  size_t length = qemu_plugin_tb_n_insns(block);
  uint64_t count[KINDS] = {length};
  for (size_t i = 0; is_aarch64 && i < length; i++) {
    uint32_t word;
    memcpy(&word, qemu_plugin_insn_data(qemu_plugin_tb_get_insn(block, i)), sizeof word);
    classify(word, count);
  }
  for (int kind = 0; kind < KINDS; kind++)
    if (count[kind])
      qemu_plugin_register_vcpu_tb_exec_inline(block, QEMU_PLUGIN_INLINE_ADD_U64, &executed[kind], count[kind]);
}

static void called(qemu_plugin_id_t id, unsigned cpu, int64_t number, uint64_t descriptor, uint64_t b, uint64_t c,
                   uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h) {
  int64_t fsync_number = is_aarch64 ? 82 : 118;
  if (number != fsync_number || descriptor < 10000 || descriptor > 19999)
    return;
  char line[400];
  int used = snprintf(line, sizeof line, "INSN %d", (int)descriptor - 10000);
  for (int kind = 0; kind < KINDS; kind++) {
    used += snprintf(line + used, sizeof line - used, " %s=%" PRIu64, names[kind], executed[kind] - at_last_mark[kind]);
    at_last_mark[kind] = executed[kind];
  }
  snprintf(line + used, sizeof line - used, "\n");
  qemu_plugin_outs(line);
}

EXPORTED int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv) {
  is_aarch64 = !strcmp(info->target_name, "aarch64");
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_vcpu_syscall_cb(id, called);
  return 0;
}
