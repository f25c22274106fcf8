// What the machine can do at most with one instruction set, as floors for the operations compiled for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace octavo {

// Each does one bout of work on one thread and returns the operations done (a multiply and an add are two); ``sink`` (64 bytes) receives a value
// that depends on all of it, so that none is optimised out.
struct PeakSet {
  uint64_t (*read)(const uint64_t* data, size_t count);  // count a multiple of 8; the exclusive or of all
  double (*floats)(float* sink);                         // independent chains of float32 multiply-adds, on registers
  double (*ints)(int32_t* sink);                         // the same of unsigned by signed bytes, summed without loss
};

extern const PeakSet generic_peaks;
#if defined(OCTAVO_X86_64)
extern const PeakSet avx2_peaks, avxvnni_peaks, avx512_peaks, avx512vnni_peaks;
#endif

struct Peaks {
  double read, floats, ints;  // bytes, float32 and int8 operations a second
};

// Measured now, on every thread of the pool, with the instructions of the kernel set of this name: the best of several rounds of ``seconds``. Reads
// go over a buffer of ``bytes``, each thread over its own share.
Peaks measure_peaks(const std::string& set, size_t bytes, double seconds);

}  // namespace octavo
