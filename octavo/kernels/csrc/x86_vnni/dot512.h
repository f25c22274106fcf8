// Integer dot products by AVX-512 VNNI, sixteen outputs in a zmm register; see generic/dot.h for the meaning of each type.
#pragma once

#include "../x86_avx512/strip16.h"

namespace octavo {
namespace {

template <int>
struct Dot {
  __m512i total;
  void start(int32_t from) { total = _mm512_set1_epi32(from); }
  void add(Bytes codes, const int8_t* quad, int) { total = _mm512_dpbusd_epi32(total, codes.v, broadcast_quad(quad)); }
  Floats value() const { return {_mm512_cvtepi32_ps(total)}; }
};

}  // namespace
}  // namespace octavo
