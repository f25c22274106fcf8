#include "cpu.h"

#include <atomic>
#include <cstdlib>
#include <cstdio>
#include <stdexcept>
#include <thread>

#include "pool.h"

#if defined(OCTAVO_X86_64)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#endif

namespace octavo {
namespace {

#if defined(OCTAVO_X86_64)
// Register state that the operating system saves (Intel SDM vol. 1, 13.3): bits 1-2 are xmm and ymm, 5-7 the opmask and zmm registers.
uint64_t saved_state() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

struct Features {
  bool avx2 = false, avxvnni = false, avx512 = false, avx512vnni = false;
};

Features detect() {
  Features f;
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
  const bool fma = c >> 12 & 1, osxsave = c >> 27 & 1, avx = c >> 28 & 1, f16c = c >> 29 & 1;
  if (!osxsave || !avx || !fma || !f16c) return f;
  const uint64_t state = saved_state();
  if ((state & 0x6) != 0x6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  f.avx2 = b >> 5 & 1;
  const bool all512 = (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1);  // F, DQ, BW, VL
  f.avx512 = f.avx2 && all512 && (state & 0xe6) == 0xe6;
  f.avx512vnni = f.avx512 && (c >> 11 & 1);
  f.avxvnni = f.avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
  return f;
}

KernelSet with_product(KernelSet set, const char* name, void (*qmatmul)(const QMatmulArgs&)) {
  set.name = name;
  set.qmatmul = qmatmul;
  return set;
}
#endif

std::vector<const KernelSet*> available_sets() {
  std::vector<const KernelSet*> sets{&generic_kernels};
#if defined(OCTAVO_X86_64)
  const Features f = detect();
  static const KernelSet avxvnni = with_product(avx2_kernels, "avxvnni", qmatmul_avxvnni);
  static const KernelSet avx512vnni = with_product(avx512_kernels, "avx512vnni", qmatmul_avx512vnni);
  if (f.avx2) sets.push_back(&avx2_kernels);
  if (f.avxvnni) sets.push_back(&avxvnni);
  if (f.avx512) sets.push_back(&avx512_kernels);
  if (f.avx512vnni) sets.push_back(&avx512vnni);
#endif
  return sets;
}

const KernelSet* find(const std::string& name) {
  std::string known;
  for (const KernelSet* set : available_sets()) {
    if (name == set->name) return set;
    known += (known.empty() ? "" : ", ") + std::string(set->name);
  }
  throw std::invalid_argument("no kernel set \"" + name + "\" on this processor; available: " + known);
}

std::atomic<const KernelSet*> current{nullptr};

#if defined(__linux__)
std::vector<int> affinity() {
  std::vector<int> cpus;
  for (int bits = 1024; bits <= 1 << 20; bits *= 4) {  // the kernel refuses a mask smaller than its own
    cpu_set_t* set = CPU_ALLOC(bits);
    if (set == nullptr) break;
    const size_t size = CPU_ALLOC_SIZE(bits);
    const bool ok = sched_getaffinity(0, size, set) == 0;
    for (int i = 0; ok && i < bits; ++i) {
      if (CPU_ISSET_S(i, size, set)) cpus.push_back(i);
    }
    CPU_FREE(set);
    if (ok) break;
  }
  return cpus;
}

// Hardware threads of one core share its vector units: they count once.
int physical_cores(const std::vector<int>& cpus) {
  std::set<std::string> cores;
  for (const int cpu : cpus) {
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    std::string siblings;
    if (!std::getline(file, siblings)) siblings = "cpu" + std::to_string(cpu);
    cores.insert(siblings);
  }
  return static_cast<int>(cores.size());
}

// CPUs' worth of time the control group (version 2, then 1) grants; 0 without a limit.
int quota_cores() {
  double quota = 0, period = 0;
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  if (v2 >> quota >> period && quota > 0 && period > 0) return std::max(1, static_cast<int>(std::ceil(quota / period)));
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (v1_quota >> quota && v1_period >> period && quota > 0 && period > 0) return std::max(1, static_cast<int>(std::ceil(quota / period)));
  return 0;
}
#endif

}  // namespace

int available_cores() {
#if defined(__linux__)
  const int cores = physical_cores(affinity()), quota = quota_cores();
  if (cores > 0) return quota > 0 ? std::min(cores, quota) : cores;
#endif
  const unsigned count = std::thread::hardware_concurrency();
  return count == 0 ? 1 : static_cast<int>(count);
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const KernelSet* set : available_sets()) names.emplace_back(set->name);
  return names;
}

const KernelSet& kernels() {
  const KernelSet* set = current.load(std::memory_order_acquire);
  if (set == nullptr) {
    const char* wanted = std::getenv("OCTAVO_ISA");
    set = wanted != nullptr && *wanted != '\0' ? find(wanted) : available_sets().back();
    current.store(set, std::memory_order_release);
  }
  return *set;
}

void select_isa(const std::string& name) { current.store(find(name), std::memory_order_release); }

}  // namespace octavo
