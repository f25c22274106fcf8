#include "x86_avx2/vec.h"
#include "peaks_unit.h"

namespace octavo {
namespace {

// Products of pairs, summed in 16 bits as far as those of 4-bit codes can be, then widened.
double int_chains(int32_t* sink) {
  constexpr int chains = 6, before_widening = 8;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sums[chains], codes[chains], y = _mm256_set1_epi8(5), total = _mm256_setzero_si256();
  for (int c = 0; c < chains; ++c) codes[c] = _mm256_set1_epi8(static_cast<char>(c + 1));
  for (int i = 0; i < kSteps; i += before_widening) {
    for (int c = 0; c < chains; ++c) sums[c] = _mm256_setzero_si256();
    for (int j = 0; j < before_widening; ++j) {
      unknown(y);
      for (int c = 0; c < chains; ++c) sums[c] = _mm256_add_epi16(sums[c], _mm256_maddubs_epi16(codes[c], y));
    }
    for (int c = 0; c < chains; ++c) total = _mm256_add_epi32(total, _mm256_madd_epi16(sums[c], ones));
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(sink), total);
  return 2.0 * 32 * chains * kSteps;
}

}  // namespace

const PeakSet avx2_peaks = {read_all, float_chains<5>, int_chains};
}  // namespace octavo
