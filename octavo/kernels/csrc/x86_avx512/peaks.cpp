#include "x86_avx512/vec.h"
#include "peaks_unit.h"

namespace octavo {
namespace {

// As that of AVX2, in registers of twice the width.
double int_chains(int32_t* sink) {
  constexpr int chains = 12, before_widening = 8;
  const __m512i ones = _mm512_set1_epi16(1);
  __m512i sums[chains], codes[chains], y = _mm512_set1_epi8(5), total = _mm512_setzero_si512();
  for (int c = 0; c < chains; ++c) codes[c] = _mm512_set1_epi8(static_cast<char>(c + 1));
  for (int i = 0; i < kSteps; i += before_widening) {
    for (int c = 0; c < chains; ++c) sums[c] = _mm512_setzero_si512();
    for (int j = 0; j < before_widening; ++j) {
      unknown(y);
      for (int c = 0; c < chains; ++c) sums[c] = _mm512_add_epi16(sums[c], _mm512_maddubs_epi16(codes[c], y));
    }
    for (int c = 0; c < chains; ++c) total = _mm512_add_epi32(total, _mm512_madd_epi16(sums[c], ones));
  }
  _mm512_storeu_si512(sink, total);
  return 2.0 * 64 * chains * kSteps;
}

}  // namespace

const PeakSet avx512_peaks = {read_all, float_chains<12>, int_chains};
}  // namespace octavo
