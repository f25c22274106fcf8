// Integer dot products of unsigned codes and int8 activations, eight outputs in a ymm register. Every set's dot.h offers the same types and
// functions; see generic/dot.h for their meaning.
#pragma once

#include "strip8.h"

namespace octavo {
namespace {

// Sums of pairs stay in 16 bits while they fit: 2 * 15 * 127 eight times, 2 * 31 * 127 four times, 2 * 63 * 127 twice.
template <int Bits>
struct Dot {
  static constexpr int kFit = Bits == 4 ? 8 : Bits == 5 ? 4 : 2;
  __m256i pairs, total;

  void start(int32_t from) {
    pairs = _mm256_setzero_si256();
    total = _mm256_set1_epi32(from);
  }
  void add(Bytes codes, const int8_t* quad, int n) {
    const __m256i product = _mm256_maddubs_epi16(codes.v, broadcast_quad(quad));
    pairs = n % kFit == 0 ? product : _mm256_add_epi16(pairs, product);
    if (n % kFit == kFit - 1) total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  Floats value() const { return {_mm256_cvtepi32_ps(total)}; }
};

// Eight bits do not fit twice: signs move to the activation, and what remains is at most 2 * 128 * 127. The codes are centered here already, so
// the sum starts from zero.
template <>
struct Dot<8> {
  __m256i total;

  void start(int32_t) { total = _mm256_setzero_si256(); }
  void add(Bytes codes, const int8_t* quad, int) {
    const __m256i centered = _mm256_xor_si256(codes.v, _mm256_set1_epi8(-128));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(centered), _mm256_sign_epi8(broadcast_quad(quad), centered));
    total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  Floats value() const { return {_mm256_cvtepi32_ps(total)}; }
};

}  // namespace
}  // namespace octavo
