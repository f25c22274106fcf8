// The bouts of a PeakSet that every instruction set shares, for the vec.h included before. Internal linkage, as in unit.h.
#pragma once

#include "peaks.h"

namespace octavo {
namespace {

constexpr int kSteps = 4096;

// ``value`` could be anything from here on: keeps products of constants inside their loop.
template <class T>
inline void unknown(T& value) {
#if defined(__x86_64__)
  asm volatile("" : "+v"(value));
#else
  asm volatile("" : "+w"(value));
#endif
}

[[maybe_unused]] uint64_t read_all(const uint64_t* data, size_t count) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i < count; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] ^= data[i + j];
  }
  for (int j = 1; j < 8; ++j) sums[0] ^= sums[j];
  return sums[0];
}

// ``chains``: as many as fill the registers.
template <int chains>
[[maybe_unused]] double float_chains(float* sink) {
  Vec sums[chains];
  const Vec x = Vec::set(0.999f), y = Vec::set(0.001f);
  for (int c = 0; c < chains; ++c) sums[c] = Vec::set(static_cast<float>(c));
  for (int i = 0; i < kSteps; ++i) {
    for (int c = 0; c < chains; ++c) sums[c] = fma(sums[c], x, y);
  }
  for (int c = 1; c < chains; ++c) sums[0] = sums[0] + sums[c];
  sums[0].store(sink);
  return 2.0 * 16 * chains * kSteps;
}

}  // namespace
}  // namespace octavo
