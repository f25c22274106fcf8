#include "x86_avx512/vec.h"
#include "peaks_unit.h"

namespace octavo {
namespace {

double int_chains(int32_t* sink) {
  constexpr int chains = 12;
  const __m512i x = _mm512_set1_epi8(3);
  __m512i sums[chains], y = _mm512_set1_epi8(5);
  for (int c = 0; c < chains; ++c) sums[c] = _mm512_set1_epi32(c);
  for (int i = 0; i < kSteps; ++i) {
    unknown(y);
    for (int c = 0; c < chains; ++c) sums[c] = _mm512_dpbusd_epi32(sums[c], x, y);
  }
  for (int c = 1; c < chains; ++c) sums[0] = _mm512_add_epi32(sums[0], sums[c]);
  _mm512_storeu_si512(sink, sums[0]);
  return 2.0 * 64 * chains * kSteps;
}

}  // namespace

const PeakSet avx512vnni_peaks = {read_all, float_chains<12>, int_chains};
}  // namespace octavo
