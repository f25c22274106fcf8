// What the sixteen-wide dot products share: bytes, integers, floats and tile sizes.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "../x86_avx2/bytes.h"

namespace octavo {
namespace {

constexpr int kStrip = 16;

struct Bytes {
  __m512i v;
  static Bytes load(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
  void store(uint8_t* p) const { _mm512_storeu_si512(p, v); }
};
inline Bytes operator|(Bytes a, Bytes b) { return {_mm512_or_si512(a.v, b.v)}; }
inline Bytes low_nibbles(Bytes a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
inline Bytes high_nibbles(Bytes a) { return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))}; }
inline Bytes even_bytes(Bytes a) { return {_mm512_and_si512(a.v, _mm512_set1_epi16(0xff))}; }
inline Bytes odd_bytes(Bytes a) { return {_mm512_srli_epi16(a.v, 8)}; }
inline Bytes shifted_left(Bytes a, int count, int mask) {
  return {_mm512_and_si512(_mm512_slli_epi16(a.v, static_cast<unsigned>(count)), _mm512_set1_epi8(static_cast<char>(mask)))};
}
inline Bytes shifted_right(Bytes a, int count, int mask) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, static_cast<unsigned>(count)), _mm512_set1_epi8(static_cast<char>(mask)))};
}
inline Bytes in_register(Bytes a) {
  asm("" : "+v"(a.v));
  return a;
}

struct Quad {
  __m512i v;
  static Quad load(const void* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof four);
    return {_mm512_set1_epi32(four)};
  }
};

struct Ints {
  __m512i v;
  static Ints set(int32_t x) { return {_mm512_set1_epi32(x)}; }
};
inline Ints add16(Ints a, Ints b) { return {_mm512_add_epi16(a.v, b.v)}; }
inline Ints add32(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Ints multiply_pairs(Bytes codes, Quad x) { return {_mm512_maddubs_epi16(codes.v, x.v)}; }
inline Ints multiply_wide(Bytes codes, Quad x) { return {_mm512_madd_epi16(codes.v, x.v)}; }
inline void keep_order(Ints& a) { asm("" : "+v"(a.v)); }
inline Ints widen(Ints pairs, int16_t factor) { return {_mm512_madd_epi16(pairs.v, _mm512_set1_epi16(factor))}; }

struct Floats {
  __m512 v;
  static Floats zero() { return {_mm512_setzero_ps()}; }
  static Floats set(float x) { return {_mm512_set1_ps(x)}; }
  static Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  static Floats load_half(const uint8_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
  static Floats load_n(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(Vec::first(n), p)}; }
  void store_n(float* p, int64_t n) const { _mm512_mask_storeu_ps(p, Vec::first(n), v); }
};
inline Floats to_floats(Ints x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

// low, then high, rounded to int8 (ties to even; magnitudes up to 127), and the sums of both.
inline void store_bytes(int8_t* to, Vec low, Vec high, int32_t* low_sum, int32_t* high_sum) {
  const __m128i first = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(low.v)), second = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(high.v));
  store_with_sums(to, _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1), low_sum, high_sum);
}

}  // namespace
}  // namespace octavo
