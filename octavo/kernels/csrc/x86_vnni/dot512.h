// Integer dot products by AVX-512 VNNI, sixteen outputs in a zmm register; see generic/dot.h for the meaning of each type.
#pragma once

#include "../x86_avx512/strip16.h"

namespace octavo {
namespace {

constexpr int kDotRows = 12;
constexpr int64_t unpack_tiles(int) { return 0; }  // unpacking finds room between the products
constexpr int dot_strips(int rows, int) { return rows <= 6 ? 2 : 1; }

template <int>
struct Dot {
  static constexpr bool kPairs = false;
  __m512i total;
  void start(int32_t from) { total = _mm512_set1_epi32(from); }
  void add(Bytes codes, Quad quad, int) { total = _mm512_dpbusd_epi32(total, codes.v, quad.v); }
  Floats value() const { return {_mm512_cvtepi32_ps(total)}; }
};

}  // namespace
}  // namespace octavo
