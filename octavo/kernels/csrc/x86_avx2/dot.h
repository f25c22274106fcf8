// Integer dot products of unsigned codes and int8 activations, eight outputs in a ymm register. Every set's dot.h offers the same types and
// functions; see generic/dot.h for their meaning.
#pragma once

#include "strip8.h"
// Registers first.
#include "../ops/dot_pairs.h"

namespace octavo {
namespace {

// Eight bits do not fit twice: signs move to the activation, and what remains is at most 2 * 128 * 127. The codes are centered here already, so
// the sum starts from zero.
template <>
struct Dot<8> {
  Ints total;

  void start(int32_t) { total = Ints::set(0); }
  void add(Bytes codes, Quad quad, int) {
    const __m256i centered = _mm256_xor_si256(codes.v, _mm256_set1_epi8(-128));
    const Ints pairs = multiply_pairs({_mm256_abs_epi8(centered)}, Quad{_mm256_sign_epi8(quad.v, centered)});
    total = add32(total, widen(pairs, 1));
    keep_order(total);
  }
  Floats value() const { return to_floats(total); }
};

}  // namespace
}  // namespace octavo
