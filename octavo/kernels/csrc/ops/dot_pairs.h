// Integer dot products by multiplying and adding pairs of bytes, for sets without VNNI; see generic/dot.h for the meaning of each type. A set's
// strip header gives the registers: Ints, of 32-bit sums or of 16-bit ones.
#pragma once

#include <cstdint>

namespace octavo {
namespace {

// Sums of pairs stay in 16 bits while they fit: 2 * 15 * 127 eight times, 2 * 31 * 127 four times, 2 * 63 * 127 twice.
template <int Bits>
struct Dot {
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

// Eight bits do not fit twice: each product takes one nibble of the code, 2 * 15 * 127 eight times, and the two meet when they are widened.
template <>
struct Dot<8> {
  Ints low, high, from;

  void start(int32_t value) {
    low = high = Ints::set(0);
    from = Ints::set(value);
  }
  void add(Bytes codes, Quad quad, int n) {
    const Ints first = multiply_pairs(low_nibbles(codes), quad), second = multiply_pairs(high_nibbles(codes), quad);
    low = n == 0 ? first : add16(low, first);
    high = n == 0 ? second : add16(high, second);
    keep_order(low);
    keep_order(high);
  }
  Floats value() const { return to_floats(add32(from, add32(widen(low, 1), widen(high, 16)))); }
};

}  // namespace
}  // namespace octavo
