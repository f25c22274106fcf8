// Sixteen floats in four 128-bit vectors of the compiler's own: SSE2, NEON, or whatever the target has.
//
// ``fma`` is fused where the target has it (aarch64) and a multiplication followed by an addition elsewhere. ``max`` and ``min`` return their
// second argument if either is NaN. ``sum`` and ``maximum`` fold halves: lane i with i + 8, then i + 4, i + 2, i + 1.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace octavo {
namespace {

// Register tiles: four registers a vector, 32 of them on aarch64 and 16 elsewhere.
#if defined(__aarch64__)
constexpr int kMatmulRows = 6;
constexpr int matmul_panels(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
constexpr int kAttentionRows = 6;
constexpr int attention_vectors(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
#else
constexpr int kMatmulRows = 3;
constexpr int matmul_panels(int rows) { return rows == 1 ? 2 : 1; }
constexpr int kAttentionRows = 3;
constexpr int attention_vectors(int rows) { return rows == 1 ? 2 : 1; }
#endif

typedef float F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));

inline F4 load4(const float* p) {
  F4 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline F4 blend(I4 mask, F4 yes, F4 no) { return reinterpret_cast<F4>((mask & reinterpret_cast<I4>(yes)) | (~mask & reinterpret_cast<I4>(no))); }

struct Vec {
  F4 q[4];

  static Vec zero() { return set(0.0f); }
  static Vec set(float x) {
    const F4 v = {x, x, x, x};
    return {{v, v, v, v}};
  }
  static Vec lanes() { return {{F4{0, 1, 2, 3}, F4{4, 5, 6, 7}, F4{8, 9, 10, 11}, F4{12, 13, 14, 15}}}; }
  static Vec load(const float* p) { return {{load4(p), load4(p + 4), load4(p + 8), load4(p + 12)}}; }
  // The first n floats, then zeros; memory beyond them is not touched.
  static Vec load_n(const float* p, int64_t n) {
    float copy[16] = {};
    if (n > 0) std::memcpy(copy, p, sizeof(float) * static_cast<size_t>(n < 16 ? n : 16));
    return load(copy);
  }
  void store(float* p) const { std::memcpy(p, q, sizeof q); }
  void store_n(float* p, int64_t n) const {
    if (n > 0) std::memcpy(p, q, sizeof(float) * static_cast<size_t>(n < 16 ? n : 16));
  }
};

template <class F>
inline Vec each(const F& f) {
  return {{f(0), f(1), f(2), f(3)}};
}

inline Vec operator+(Vec a, Vec b) { return each([&](int i) { return a.q[i] + b.q[i]; }); }
inline Vec operator-(Vec a, Vec b) { return each([&](int i) { return a.q[i] - b.q[i]; }); }
inline Vec operator*(Vec a, Vec b) { return each([&](int i) { return a.q[i] * b.q[i]; }); }
inline Vec operator/(Vec a, Vec b) { return each([&](int i) { return a.q[i] / b.q[i]; }); }
// a * b + c
inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__aarch64__)
  return each([&](int i) { return (F4)vfmaq_f32((float32x4_t)c.q[i], (float32x4_t)a.q[i], (float32x4_t)b.q[i]); });
#else
  return each([&](int i) { return a.q[i] * b.q[i] + c.q[i]; });
#endif
}
inline Vec max(Vec a, Vec b) { return each([&](int i) { return blend(a.q[i] > b.q[i], a.q[i], b.q[i]); }); }
inline Vec min(Vec a, Vec b) { return each([&](int i) { return blend(a.q[i] < b.q[i], a.q[i], b.q[i]); }); }
// Nearest integer, ties to even, for |a| < 2^22.
inline Vec round(Vec a) {
  const Vec magic = Vec::set(12582912.0f);  // 1.5 * 2^23
  return (a + magic) - magic;
}
inline Vec abs(Vec a) {
  const I4 rest = {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX};
  return each([&](int i) { return reinterpret_cast<F4>(reinterpret_cast<I4>(a.q[i]) & rest); });
}
// a (not negative) with the sign of s.
inline Vec with_sign(Vec a, Vec s) {
  const I4 sign = {INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN};
  return each([&](int i) { return reinterpret_cast<F4>(reinterpret_cast<I4>(a.q[i]) | (reinterpret_cast<I4>(s.q[i]) & sign)); });
}
// a < b ? yes : no, lane by lane; false for NaN.
inline Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
  return each([&](int i) { return blend(a.q[i] < b.q[i], yes.q[i], no.q[i]); });
}
// 2^n for integers n in [-126, 127].
inline Vec power_of_two(Vec n) {
  return each([&](int i) { return reinterpret_cast<F4>((__builtin_convertvector(n.q[i], I4) + 127) << 23); });
}
// Lanes low .. high - 1 of a, the others from ``other``.
inline Vec keep_lanes(Vec a, int64_t low, int64_t high, Vec other) {
  const Vec lanes = Vec::lanes();
  const float lowest = static_cast<float>(low < 0 ? 0 : low > 16 ? 16 : low), end = static_cast<float>(high < 0 ? 0 : high > 16 ? 16 : high);
  return each([&](int i) { return blend((lanes.q[i] >= lowest) & (lanes.q[i] < end), a.q[i], other.q[i]); });
}

inline float sum(Vec a) {
  const F4 four = (a.q[0] + a.q[2]) + (a.q[1] + a.q[3]);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

inline float maximum(Vec a) {
  const auto larger = [](float x, float y) { return x > y ? x : y; };
  const F4 low = blend(a.q[0] > a.q[2], a.q[0], a.q[2]), high = blend(a.q[1] > a.q[3], a.q[1], a.q[3]);
  const F4 four = blend(low > high, low, high);
  return larger(larger(four[0], four[2]), larger(four[1], four[3]));
}

// Columns of 16 rows: to[16 k + r] = from[r * stride + k] for k, r < 16.
inline void transpose(const float* from, int64_t stride, float* to) {
  for (int k = 0; k < 16; ++k) {
    for (int r = 0; r < 16; ++r) to[16 * k + r] = from[r * stride + k];
  }
}

// IEEE 754 binary16 to binary32, exact; subnormals, infinities and NaN included.
inline float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, exponent = bits >> 10 & 0x1fu, fraction = bits & 0x3ffu;
  uint32_t out;
  if (exponent == 0x1f) {
    out = sign | 0x7f800000u | fraction << 13 | (fraction != 0 ? 0x400000u : 0u);
  } else if (exponent != 0) {
    out = sign | (exponent + 112) << 23 | fraction << 13;
  } else {  // zero or subnormal: fraction * 2^-24 is exact
    const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-8f;
    std::memcpy(&out, &magnitude, sizeof out);
    out |= sign;
  }
  float value;
  std::memcpy(&value, &out, sizeof value);
  return value;
}

// binary32 to binary16, rounded to nearest even.
inline uint16_t float_to_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (rest >> 13 & 0x3ffu));  // NaN
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);                         // 65520 and above round to infinity
  if (rest >= 0x38800000u) return static_cast<uint16_t>(sign | (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13);
  float magnitude;  // below 2^-14 the result is a multiple of 2^-24: adding 0.5 rounds to that
  std::memcpy(&magnitude, &rest, sizeof magnitude);
  magnitude += 0.5f;
  std::memcpy(&bits, &magnitude, sizeof bits);
  return static_cast<uint16_t>(sign | (bits - 0x3f000000u));
}

inline Vec load_bfloat(const uint8_t* p) {
  float values[16];
  for (int i = 0; i < 16; ++i) {
    uint16_t bits;
    std::memcpy(&bits, p + 2 * i, sizeof bits);
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    std::memcpy(&values[i], &wide, sizeof wide);
  }
  return Vec::load(values);
}

inline Vec load_half(const uint8_t* p) {
  float values[16];
  for (int i = 0; i < 16; ++i) {
    uint16_t bits;
    std::memcpy(&bits, p + 2 * i, sizeof bits);
    values[i] = half_to_float(bits);
  }
  return Vec::load(values);
}

}  // namespace
}  // namespace octavo
