// Integer dot products without VNNI, sixteen outputs in a zmm register; see generic/dot.h for the meaning of each type.
#pragma once

#include "strip16.h"

namespace octavo {
namespace {

// Sums of pairs stay in 16 bits while they fit: 2 * 15 * 127 eight times, 2 * 31 * 127 four times, 2 * 63 * 127 twice.
template <int Bits>
struct Dot {
  static constexpr int kFit = Bits == 4 ? 8 : Bits == 5 ? 4 : 2;
  __m512i pairs, total;

  void start(int32_t from) {
    pairs = _mm512_setzero_si512();
    total = _mm512_set1_epi32(from);
  }
  void add(Bytes codes, const int8_t* quad, int n) {
    const __m512i product = _mm512_maddubs_epi16(codes.v, broadcast_quad(quad));
    pairs = n % kFit == 0 ? product : _mm512_add_epi16(pairs, product);
    if (n % kFit == kFit - 1) total = _mm512_add_epi32(total, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
  Floats value() const { return {_mm512_cvtepi32_ps(total)}; }
};

// Eight bits do not fit twice: each product takes one nibble of the code, and the two kinds of pairs meet when they are widened.
template <>
struct Dot<8> {
  __m512i low, high, from;

  void start(int32_t value) {
    low = high = _mm512_setzero_si512();
    from = _mm512_set1_epi32(value);
  }
  void add(Bytes codes, const int8_t* quad, int) {
    const __m512i x = broadcast_quad(quad);
    low = _mm512_add_epi16(low, _mm512_maddubs_epi16(low_nibbles(codes).v, x));
    high = _mm512_add_epi16(high, _mm512_maddubs_epi16(high_nibbles(codes).v, x));
  }
  Floats value() const {
    const __m512i sum = _mm512_add_epi32(_mm512_madd_epi16(low, _mm512_set1_epi16(1)), _mm512_madd_epi16(high, _mm512_set1_epi16(16)));
    return {_mm512_cvtepi32_ps(_mm512_add_epi32(from, sum))};
  }
};

}  // namespace
}  // namespace octavo
