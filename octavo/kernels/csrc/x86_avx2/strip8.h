// What the eight-wide dot products share: bytes, integers, floats and tile sizes.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "bytes.h"

namespace octavo {
namespace {

constexpr int kStrip = 8;

struct Bytes {
  __m256i v;
  static Bytes load(const uint8_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
  void store(uint8_t* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
};
inline Bytes operator|(Bytes a, Bytes b) { return {_mm256_or_si256(a.v, b.v)}; }
inline Bytes low_nibbles(Bytes a) { return {_mm256_and_si256(a.v, _mm256_set1_epi8(15))}; }
inline Bytes high_nibbles(Bytes a) { return {_mm256_and_si256(_mm256_srli_epi16(a.v, 4), _mm256_set1_epi8(15))}; }
inline Bytes even_bytes(Bytes a) { return {_mm256_and_si256(a.v, _mm256_set1_epi16(0xff))}; }
inline Bytes odd_bytes(Bytes a) { return {_mm256_srli_epi16(a.v, 8)}; }
inline Bytes shifted_left(Bytes a, int count, int mask) {
  return {_mm256_and_si256(_mm256_slli_epi16(a.v, count), _mm256_set1_epi8(static_cast<char>(mask)))};
}
inline Bytes shifted_right(Bytes a, int count, int mask) {
  return {_mm256_and_si256(_mm256_srli_epi16(a.v, count), _mm256_set1_epi8(static_cast<char>(mask)))};
}
inline Bytes in_register(Bytes a) {
  asm("" : "+x"(a.v));
  return a;
}

struct Quad {
  __m256i v;
  static Quad load(const void* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof four);
    Quad quad{_mm256_set1_epi32(four)};
    asm("" : "+x"(quad.v));
    return quad;
  }
};

struct Ints {
  __m256i v;
  static Ints set(int32_t x) { return {_mm256_set1_epi32(x)}; }
};
inline Ints add16(Ints a, Ints b) { return {_mm256_add_epi16(a.v, b.v)}; }
inline Ints add32(Ints a, Ints b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline Ints multiply_pairs(Bytes codes, Quad x) { return {_mm256_maddubs_epi16(codes.v, x.v)}; }
inline Ints multiply_wide(Bytes codes, Quad x) { return {_mm256_madd_epi16(codes.v, x.v)}; }
inline void keep_order(Ints& a) { asm("" : "+x"(a.v)); }
inline Ints widen(Ints pairs, int16_t factor) { return {_mm256_madd_epi16(pairs.v, _mm256_set1_epi16(factor))}; }

struct Floats {
  __m256 v;
  static Floats zero() { return {_mm256_setzero_ps()}; }
  static Floats set(float x) { return {_mm256_set1_ps(x)}; }
  static Floats load(const float* p) { return {_mm256_loadu_ps(p)}; }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  static Floats load_half(const uint8_t* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
  static Floats load_n(const float* p, int64_t n) { return {n >= kStrip ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, first_lanes(n))}; }
  void store_n(float* p, int64_t n) const {
    if (n >= kStrip) {
      _mm256_storeu_ps(p, v);
    } else {
      _mm256_maskstore_ps(p, first_lanes(n), v);
    }
  }
};
inline Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }

// low, then high, rounded to int8 (ties to even; magnitudes up to 127), and the sums of both.
inline void store_bytes(int8_t* to, Vec low, Vec high, int32_t* low_sum, int32_t* high_sum) {
  const __m256i first = _mm256_packs_epi32(_mm256_cvtps_epi32(low.a), _mm256_cvtps_epi32(low.b));
  const __m256i second = _mm256_packs_epi32(_mm256_cvtps_epi32(high.a), _mm256_cvtps_epi32(high.b));
  const __m256i bytes = _mm256_packs_epi16(first, second);  // 128-bit lanes interleave: restore the order of fours
  store_with_sums(to, _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)), low_sum, high_sum);
}

}  // namespace
}  // namespace octavo
