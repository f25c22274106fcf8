// Quantized activations of both strip widths.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace octavo {
namespace {

// Stores 32 int8 and gives the sums of either half.
inline void store_with_sums(int8_t* to, __m256i bytes, int32_t* low_sum, int32_t* high_sum) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
  const __m256i biased = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));  // + 128
  const __m256i eights = _mm256_sad_epu8(biased, _mm256_setzero_si256()), halves = _mm256_add_epi64(eights, _mm256_srli_si256(eights, 8));
  *low_sum = _mm_cvtsi128_si32(_mm256_castsi256_si128(halves)) - 16 * 128;
  *high_sum = _mm_cvtsi128_si32(_mm256_extracti128_si256(halves, 1)) - 16 * 128;
}

}  // namespace
}  // namespace octavo
