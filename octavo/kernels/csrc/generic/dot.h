// Integer dot products of unsigned codes and int8 activations in plain C++.
//
// A strip is kStrip neighbouring outputs of a panel. ``Bytes`` are four bytes for each of them; shifts move bits within bytes and keep those of
// ``mask``, a mask that no bit of a neighbouring byte can reach; in_register() keeps the compiler from computing them twice. ``Quad`` is four
// activations for all outputs of a strip. ``Dot<Bits>`` sums code * x over quads, exactly, for codes of so many bits: start(-C * sum of x),
// add(codes, four activations, n) with n = 0, 1, ... counting the quads, value(). A Dot with kPairs takes 16-bit numbers instead, the two of
// pair(codes, 0), then those of pair(codes, 1), against the activations of a WideGroup. ``Floats`` are kStrip floats. Tiles have up to kDotRows
// rows, and dot_strips(rows, bits) strips where there are as many; from unpack_tiles(bits) tiles on (0: never) strips are unpacked for them.
#pragma once

#include <cstdint>
#include <cstring>

namespace octavo {
namespace {

constexpr int kStrip = 16;
constexpr int kDotRows = 4;
constexpr int dot_strips(int, int) { return 1; }
constexpr int64_t unpack_tiles(int bits) { return bits == 8 ? 0 : 4; }

struct Bytes {
  uint8_t b[64];
  static Bytes load(const uint8_t* p) {
    Bytes out;
    std::memcpy(out.b, p, sizeof out.b);
    return out;
  }
  void store(uint8_t* p) const { std::memcpy(p, b, sizeof b); }
};
template <class F>
inline Bytes each_byte(const F& f) {
  Bytes out;
  for (int i = 0; i < 64; ++i) out.b[i] = static_cast<uint8_t>(f(i));
  return out;
}
inline Bytes operator|(Bytes x, Bytes y) { return each_byte([&](int i) { return x.b[i] | y.b[i]; }); }
inline Bytes low_nibbles(Bytes x) { return each_byte([&](int i) { return x.b[i] & 15; }); }
inline Bytes high_nibbles(Bytes x) { return each_byte([&](int i) { return x.b[i] >> 4; }); }
inline Bytes shifted_left(Bytes x, int count, int mask) { return each_byte([&](int i) { return x.b[i] << count & mask; }); }
inline Bytes shifted_right(Bytes x, int count, int mask) { return each_byte([&](int i) { return x.b[i] >> count & mask; }); }

inline const Bytes& in_register(const Bytes& x) { return x; }

struct Quad {
  const int8_t* x;
  static Quad load(const void* p) { return {static_cast<const int8_t*>(p)}; }
};

struct Floats : Vec {
  static Floats zero() { return {Vec::zero()}; }
  static Floats set(float x) { return {Vec::set(x)}; }
  static Floats load(const float* p) { return {Vec::load(p)}; }
  static Floats load_n(const float* p, int64_t n) { return {Vec::load_n(p, n)}; }
  static Floats load_half(const uint8_t* p) { return {octavo::load_half(p)}; }
};
inline Floats operator*(Floats a, Floats b) { return {static_cast<Vec>(a) * static_cast<Vec>(b)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {fma(static_cast<Vec>(a), static_cast<Vec>(b), static_cast<Vec>(c))}; }

template <int Bits>
struct Dot {
  static constexpr bool kPairs = false;
  int32_t total[kStrip];

  void start(int32_t from) {
    for (int o = 0; o < kStrip; ++o) total[o] = from;
  }
  void add(const Bytes& codes, Quad quad, int) {
    for (int o = 0; o < kStrip; ++o) {
      const uint8_t* c = codes.b + 4 * o;
      total[o] += c[0] * quad.x[0] + c[1] * quad.x[1] + c[2] * quad.x[2] + c[3] * quad.x[3];
    }
  }
  Floats value() const {
    float out[kStrip];
    for (int o = 0; o < kStrip; ++o) out[o] = static_cast<float>(total[o]);
    return {Vec::load(out)};
  }
};

// low, then high, rounded to int8 (ties to even; magnitudes up to 127), and the sums of both.
inline void store_bytes(int8_t* to, Vec low, Vec high, int32_t* low_sum, int32_t* high_sum) {
  float values[32];
  round(low).store(values);
  round(high).store(values + 16);
  *low_sum = *high_sum = 0;
  for (int i = 0; i < 32; ++i) {
    to[i] = static_cast<int8_t>(values[i]);
    (i < 16 ? *low_sum : *high_sum) += to[i];
  }
}

}  // namespace
}  // namespace octavo
