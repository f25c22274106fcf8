// Integer dot products of unsigned codes and int8 activations, eight outputs in a ymm register. Every set's dot.h offers the same types and
// functions; see generic/dot.h for their meaning.
#pragma once

#include "strip8.h"
// Registers first.
#include "../ops/dot_pairs.h"

namespace octavo {
namespace {

constexpr int kDotRows = 4;
constexpr int dot_strips(int rows, int) { return rows == 1 ? 4 : 2; }
constexpr int64_t unpack_tiles(int bits) { return bits == 8 ? 0 : bits == 4 ? 12 : 4; }

}  // namespace
}  // namespace octavo
