#include "x86_avx2/vec.h"
#include "peaks_unit.h"

namespace octavo {
namespace {

double int_chains(int32_t* sink) {
  constexpr int chains = 12;
  const __m256i x = _mm256_set1_epi8(3);
  __m256i sums[chains], y = _mm256_set1_epi8(5);
  for (int c = 0; c < chains; ++c) sums[c] = _mm256_set1_epi32(c);
  for (int i = 0; i < kSteps; ++i) {
    unknown(y);
    for (int c = 0; c < chains; ++c) sums[c] = _mm256_dpbusd_avx_epi32(sums[c], x, y);
  }
  for (int c = 1; c < chains; ++c) sums[0] = _mm256_add_epi32(sums[0], sums[c]);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(sink), sums[0]);
  return 2.0 * 32 * chains * kSteps;
}

}  // namespace

const PeakSet avxvnni_peaks = {read_all, float_chains<5>, int_chains};
}  // namespace octavo
