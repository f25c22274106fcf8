// The product on quantized panels. Activations are quantized once a call; a tile is some rows of x by some strips (registers of outputs) of w.
// Integer sums are exact and the float operations of an output follow one another in the order of groups, so tiles change speed and never a bit.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "../memory.h"
#include "../pool.h"

#define OCTAVO_UNROLL _Pragma("GCC unroll 16")

namespace octavo {
namespace {

// A group of 32 activations: what every kind of panel needs of it, in one cache line.
struct alignas(64) QuantGroup {
  int8_t q[kGroup];
  float scale, scaled_sum;  // scaled_sum = scale * float(sum of q)
  int32_t minus8, minus16, minus128;  // -C * sum of q
  int32_t low32, high32;              // -32 * sum over inputs 0 .. 15, and 16 .. 31
  int32_t unused;
};
static_assert(sizeof(QuantGroup) == 64, "one cache line");

constexpr int64_t kPanelStrips = kLanes / kStrip;
constexpr int kMostStrips = 4;
// Bytes of quantized rows that are worked on together, sized for the second-level cache.
constexpr int64_t kQuantBlockBytes = 256 << 10;
// How far ahead of a single row codes are fetched.
constexpr int64_t kAheadBytes = 1024;

inline void quantize_group(const float* x, QuantGroup* to) {
  const Vec low = Vec::load(x), high = Vec::load(x + kLanes);
  const float largest = maximum(max(abs(low), abs(high)));
  const bool finite = sum((low - low) + (high - high)) == 0.0f;
  const bool zero = !finite || !(largest >= 1e-30f);
  const Vec inverse = Vec::set(zero ? 0.0f : 127.0f / largest);
  const Vec first = zero ? Vec::zero() : round(low * inverse), second = zero ? Vec::zero() : round(high * inverse);
  store_bytes(to->q, first, second);
  const float low_sum = sum(first), high_sum = sum(second), total = low_sum + high_sum;  // exact
  to->scale = finite ? (zero ? 0.0f : largest / 127.0f) : __builtin_nanf("");
  to->scaled_sum = to->scale * total;
  const int32_t count = static_cast<int32_t>(total);
  to->minus8 = -8 * count;
  to->minus16 = -16 * count;
  to->minus128 = -128 * count;
  to->low32 = -32 * static_cast<int32_t>(low_sum);
  to->high32 = -32 * static_cast<int32_t>(high_sum);
  to->unused = 0;
}

// Where a tile reads its strips and writes its results; ``columns``: valid outputs from the first strip on.
struct QTileArgs {
  const QuantGroup* x;  // [groups][R]
  const uint8_t* header[kMostStrips];
  const uint8_t* codes[kMostStrips];
  float* y;
  int64_t y_stride, groups, columns;
};

// Codes of quad i and of quad i + 4 (i < 4).
template <int Bits>
inline void quad_codes(const uint8_t* group, int i, Bytes* low, Bytes* high) {
  if constexpr (Bits == 8) {
    *low = Bytes::load(group + 64 * i);
    *high = Bytes::load(group + 64 * (i + 4));
    return;
  }
  const Bytes both = Bytes::load(group + 64 * i);
  *low = low_nibbles(both);
  *high = high_nibbles(both);
  if constexpr (Bits == 5) {
    const Bytes bits = Bytes::load(group + 256);
    *low = *low | shifted_left(bits, 4 - i, 0x10);
    *high = *high | shifted_right(bits, i, 0x10);
  }
  if constexpr (Bits == 6) {
    const Bytes first = Bytes::load(group + 256), second = Bytes::load(group + 320);
    *low = *low | (i < 2 ? shifted_left(first, 4 - 2 * i, 0x30) : shifted_right(first, 2 * i - 4, 0x30));
    *high = *high | (i < 2 ? shifted_left(second, 4 - 2 * i, 0x30) : shifted_right(second, 2 * i - 4, 0x30));
  }
}

inline int32_t center_term(Kind kind, const QuantGroup& x) {
  return kind == Kind::symmetric4 ? x.minus8 : kind == Kind::symmetric5 ? x.minus16 : kind == Kind::symmetric8 ? x.minus128 : 0;
}

// One group of one strip for R rows.
template <Kind kind, int R>
inline void qtile_group(const QuantGroup* x, const uint8_t* header, const uint8_t* group, Floats* acc) {
  constexpr KindInfo info = kind_info(kind);
  constexpr bool halves = kind == Kind::halves6;
  Dot<info.bits> dot[R], second[halves ? R : 1];
  OCTAVO_UNROLL
  for (int r = 0; r < R; ++r) {
    dot[r].start(halves ? x[r].low32 : center_term(kind, x[r]));
    if constexpr (halves) second[r].start(x[r].high32);
  }
  OCTAVO_UNROLL
  for (int i = 0; i < 4; ++i) {
    Bytes low, high;
    quad_codes<info.bits>(group, i, &low, &high);
    OCTAVO_UNROLL
    for (int r = 0; r < R; ++r) {
      if constexpr (halves) {
        dot[r].add(low, x[r].q + 4 * i, i);
        second[r].add(high, x[r].q + 4 * (i + 4), i);
      } else {
        dot[r].add(low, x[r].q + 4 * i, 2 * i);
        dot[r].add(high, x[r].q + 4 * (i + 4), 2 * i + 1);
      }
    }
  }
  const Floats scale = Floats::load_half(header);
  OCTAVO_UNROLL
  for (int r = 0; r < R; ++r) acc[r] = fma(dot[r].value(), scale * Floats::set(x[r].scale), acc[r]);
  if constexpr (info.header == 2) {
    const Floats other = Floats::load_half(header + 32);
    OCTAVO_UNROLL
    for (int r = 0; r < R; ++r) {
      if constexpr (halves) {
        acc[r] = fma(second[r].value(), other * Floats::set(x[r].scale), acc[r]);
      } else {
        acc[r] = fma(other, Floats::set(x[r].scaled_sum), acc[r]);
      }
    }
  }
}

template <Kind kind, int R, int S>
void qtile(const QTileArgs& args) {
  constexpr int64_t header_step = kind_info(kind).header * 32, code_step = kind_info(kind).rows * 64;
  Floats acc[S][R];
  OCTAVO_UNROLL
  for (int s = 0; s < S; ++s) {
    OCTAVO_UNROLL
    for (int r = 0; r < R; ++r) acc[s][r] = Floats::zero();
  }
  const QuantGroup* x = args.x;
  for (int64_t g = 0; g < args.groups; ++g, x += R) {
    if constexpr (R == 1) {  // bound by memory: the processor's own prefetcher stops at pages
      OCTAVO_UNROLL
      for (int s = 0; s < S; s += static_cast<int>(kPanelStrips)) {
        const auto* ahead = reinterpret_cast<const char*>(args.codes[s] + g * code_step) + kAheadBytes;
        OCTAVO_UNROLL
        for (int64_t line = 0; line < code_step; line += 64) __builtin_prefetch(ahead + line);
      }
    }
    OCTAVO_UNROLL
    for (int s = 0; s < S; ++s) qtile_group<kind, R>(x, args.header[s] + g * header_step, args.codes[s] + g * code_step, acc[s]);
  }
  OCTAVO_UNROLL
  for (int s = 0; s < S; ++s) {
    OCTAVO_UNROLL
    for (int r = 0; r < R; ++r) acc[s][r].store_n(args.y + r * args.y_stride + s * kStrip, args.columns - s * kStrip);
  }
}

using QTile = void (*)(const QTileArgs&);

// Tiles of one height: [0] one strip, [1] dot_strips(R) of them.
template <Kind kind, int... R>
constexpr std::array<std::array<QTile, 2>, sizeof...(R)> qtile_table(std::integer_sequence<int, R...>) {
  return {std::array<QTile, 2>{&qtile<kind, R + 1, 1>, &qtile<kind, R + 1, dot_strips(R + 1)>}...};
}
template <Kind kind>
constexpr auto kKindTiles = qtile_table<kind>(std::make_integer_sequence<int, kDotRows>{});
constexpr std::array<std::array<QTile, 2>, kDotRows> const* kQTiles[] = {
    &kKindTiles<Kind::symmetric4>, &kKindTiles<Kind::affine4>, &kKindTiles<Kind::symmetric5>,
    &kKindTiles<Kind::affine5>,    &kKindTiles<Kind::halves6>, &kKindTiles<Kind::symmetric8>,
};

// Rows split into tiles of nearly equal height.
struct DotTiles {
  int64_t tokens, count;
  explicit DotTiles(int64_t t) : tokens(t), count((t + kDotRows - 1) / kDotRows) {}
  int64_t first(int64_t i) const { return tokens / count * i + std::min(i, tokens % count); }
  int rows(int64_t i) const { return static_cast<int>(first(i + 1) - first(i)); }
};

inline void quantize_tile(const QMatmulArgs& args, const DotTiles& tiles, int64_t tile, QuantGroup* to) {
  const int64_t groups = args.inputs / kGroup, first = tiles.first(tile);
  const int rows = tiles.rows(tile);
  for (int r = 0; r < rows; ++r) {
    const float* x = args.x + (first + r) * args.x_stride;
    for (int64_t g = 0; g < groups; ++g) quantize_group(x + g * kGroup, to + first * groups + g * rows + r);
  }
}

// Part of a product: row tiles first_tile .. end_tile - 1.
struct QMatmulSpan {
  const QMatmulArgs& args;
  const QuantGroup* x;
  const DotTiles& tiles;
  int64_t first_tile, end_tile;

  // Strips first .. end - 1 of a range, for all row tiles.
  void strips(const PanelRange& range, int64_t first, int64_t end) const {
    const int64_t groups = args.inputs / kGroup, stride = panel_bytes(range.kind, args.inputs), header = header_bytes(range.kind, args.inputs);
    QTileArgs tile;
    tile.y_stride = args.y_stride;
    tile.groups = groups;
    for (int64_t t = first_tile; t < end_tile; ++t) {
      const int rows = tiles.rows(t), widest = dot_strips(rows);
      const auto& choices = (*kQTiles[static_cast<int>(range.kind)])[static_cast<size_t>(rows - 1)];
      tile.x = x + tiles.first(t) * groups;
      for (int64_t strip = first; strip < end;) {
        const int count = end - strip >= widest ? widest : 1;
        for (int s = 0; s < count; ++s) {
          const uint8_t* panel = range.panels + (strip + s) / kPanelStrips * stride;
          const int64_t lane = (strip + s) % kPanelStrips * kStrip;
          tile.header[s] = panel + 2 * lane;
          tile.codes[s] = panel + header + 4 * lane;
        }
        tile.y = args.y + tiles.first(t) * args.y_stride + range.first + strip * kStrip;
        tile.columns = range.outputs - strip * kStrip;
        choices[count > 1](tile);
        strip += count;
      }
    }
  }

  // Panels first .. end - 1, counted over all ranges.
  void panels(int64_t first, int64_t end) const {
    const int64_t chunk = std::max<int64_t>(1, dot_strips(tiles.rows(first_tile)) / kPanelStrips);
    for (int64_t i = 0, before = 0; i < args.count && before < end; before += args.ranges[i++].count()) {
      const int64_t last = std::min(args.ranges[i].count(), end - before);
      for (int64_t p = std::max<int64_t>(0, first - before); p < last; p += chunk) {
        const int64_t valid = (args.ranges[i].outputs + kStrip - 1) / kStrip;
        strips(args.ranges[i], p * kPanelStrips, std::min({(p + chunk) * kPanelStrips, last * kPanelStrips, valid}));
      }
    }
  }
};

inline void qmatmul(const QMatmulArgs& args) {
  int64_t panels = 0;
  for (int64_t i = 0; i < args.count; ++i) panels += args.ranges[i].count();
  if (args.tokens == 0 || panels == 0) return;
  const DotTiles tiles(args.tokens);
  const int64_t groups = args.inputs / kGroup, row_bytes = groups * int64_t{sizeof(QuantGroup)};
  auto* x = reinterpret_cast<QuantGroup*>(scratch(Slot::shared, static_cast<size_t>(args.tokens * row_bytes) / sizeof(float)));
  const auto quantize = [&](int64_t t) { quantize_tile(args, tiles, t, x); };
  if (args.tokens * args.inputs < 16384) {
    for (int64_t t = 0; t < tiles.count; ++t) quantize(t);
  } else {
    parallel_for(tiles.count, quantize);
  }
  const int64_t threads = num_threads(), block_tiles = std::max<int64_t>(1, kQuantBlockBytes / (row_bytes * tiles.rows(0)));
  const int64_t row_blocks = (tiles.count + block_tiles - 1) / block_tiles;
  // Tasks of at least 64 Ki multiply-adds, about eight for each thread.
  const int64_t worth = std::max<int64_t>(1, args.tokens * args.inputs * panels * kLanes / 65536);
  const int64_t spans = std::clamp<int64_t>(std::min(worth, threads * 8) / row_blocks, 1, panels);
  parallel_for(spans * row_blocks, [&](int64_t task) {
    const int64_t span = task / row_blocks, rows = task % row_blocks;
    const int64_t first_tile = rows * block_tiles, end_tile = std::min(first_tile + block_tiles, tiles.count);
    QMatmulSpan{args, x, tiles, first_tile, end_tile}.panels(span * panels / spans, (span + 1) * panels / spans);
  });
}

}  // namespace
}  // namespace octavo
