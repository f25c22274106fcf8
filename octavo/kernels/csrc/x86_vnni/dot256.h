// Integer dot products by AVX-VNNI, eight outputs in a ymm register; see generic/dot.h for the meaning of each type.
#pragma once

#include "../x86_avx2/strip8.h"

namespace octavo {
namespace {

constexpr int kDotRows = 4;
constexpr int dot_strips(int rows, int) { return rows == 1 ? 4 : 2; }
constexpr int64_t unpack_tiles(int bits) { return bits == 8 ? 0 : 4; }

template <int>
struct Dot {
  static constexpr bool kPairs = false;
  __m256i total;
  void start(int32_t from) { total = _mm256_set1_epi32(from); }
  void add(Bytes codes, Quad quad, int) { total = _mm256_dpbusd_avx_epi32(total, codes.v, quad.v); }
  Floats value() const { return {_mm256_cvtepi32_ps(total)}; }
};

}  // namespace
}  // namespace octavo
