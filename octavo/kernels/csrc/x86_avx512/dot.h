// Integer dot products without VNNI, sixteen outputs in a zmm register; see generic/dot.h for the meaning of each type.
#pragma once

#include "strip16.h"
// Registers first.
#include "../ops/dot_pairs.h"

namespace octavo {
namespace {

constexpr int kDotRows = 6;
constexpr int dot_strips(int rows, int bits) { return rows == 1 ? 4 : bits == 8 ? 1 : 2; }

// Eight bits do not fit twice: each product takes one nibble of the code, and the two kinds of pairs meet when they are widened.
template <>
struct Dot<8> {
  Ints low, high, from;

  void start(int32_t value) {
    low = high = Ints::set(0);
    from = Ints::set(value);
  }
  void add(Bytes codes, Quad quad, int) {
    low = add16(low, multiply_pairs(low_nibbles(codes), quad));
    high = add16(high, multiply_pairs(high_nibbles(codes), quad));
    keep_order(low);
    keep_order(high);
  }
  Floats value() const { return to_floats(add32(from, add32(widen(low, 1), widen(high, 16)))); }
};

}  // namespace
}  // namespace octavo
