// Integer dot products without VNNI, sixteen outputs in a zmm register; see generic/dot.h for the meaning of each type.
#pragma once

#include "strip16.h"
// Registers first.
#include "../ops/dot_pairs.h"

namespace octavo {
namespace {

constexpr int kDotRows = 6;
constexpr int dot_strips(int rows, int) { return rows == 1 ? 4 : 2; }
constexpr int64_t unpack_tiles(int bits) { return bits == 8 ? 0 : bits == 4 ? 12 : 4; }

}  // namespace
}  // namespace octavo
