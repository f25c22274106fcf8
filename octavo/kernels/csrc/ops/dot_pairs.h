// Integer dot products by multiplying and adding pairs of bytes, for sets without VNNI; see generic/dot.h for the meaning of each type. A set's
// strip header gives the registers: Ints, of 32-bit sums or of 16-bit ones.
#pragma once

#include <cstdint>

namespace octavo {
namespace {

// Sums of pairs stay in 16 bits while they fit: 2 * 15 * 127 eight times, 2 * 31 * 127 four times, 2 * 63 * 127 twice.
template <int Bits>
struct Dot {
  static constexpr bool kPairs = false;
  static constexpr int kFit = Bits == 4 ? 8 : Bits == 5 ? 4 : 2;
  Ints pairs, total;

  void start(int32_t from) {
    pairs = Ints::set(0);
    total = Ints::set(from);
  }
  void add(Bytes codes, Quad quad, int n) {
    const Ints product = multiply_pairs(codes, quad);
    pairs = n % kFit == 0 ? product : add16(pairs, product);
    keep_order(pairs);
    if (n % kFit == kFit - 1) total = add32(total, widen(pairs, 1));
  }
  Floats value() const { return to_floats(total); }
};

// Two products of eight bits do not fit in 16: codes are widened here and activations came so. No sum can be too large for 32 bits.
template <>
struct Dot<8> {
  static constexpr bool kPairs = true;
  Ints total;

  static Bytes pair(Bytes codes, int part) { return part == 0 ? even_bytes(codes) : odd_bytes(codes); }

  void start(int32_t from) { total = Ints::set(from); }
  void add(Bytes codes, Quad pair, int) {
    total = add32(total, multiply_wide(codes, pair));
    keep_order(total);
  }
  Floats value() const { return to_floats(total); }
};

}  // namespace
}  // namespace octavo
