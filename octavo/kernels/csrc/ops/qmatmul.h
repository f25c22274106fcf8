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

// The same activations in 16 bits for Dots that take pairs of them: of a quad first inputs 0 and 2, then 1 and 3.
struct alignas(64) WideGroup {
  int16_t q[kGroup];
};

constexpr int64_t kPanelStrips = kLanes / kStrip;
constexpr int kMostStrips = 4;
// Bytes of quantized rows that are worked on together, sized for the second-level cache.
constexpr int64_t kQuantBlockBytes = 256 << 10;
// How far ahead panels are fetched into the second-level cache: the processor's own prefetcher stops at every page.
constexpr int64_t kAheadBytes = 16 << 10;

inline void quantize_group(const float* x, QuantGroup* to, WideGroup* wide) {
  const Vec low = Vec::load(x), high = Vec::load(x + kLanes);
  // x - x is zero exactly for finite x, and a NaN is less than nothing.
  const Vec odd = (low - low) + (high - high), one = Vec::set(1.0f), infinity = Vec::set(__builtin_inff());
  const float largest = maximum(select_less(odd, one, max(abs(low), abs(high)), infinity));
  const bool finite = largest < __builtin_inff(), zero = !finite || largest < 1e-30f;
  const Vec inverse = Vec::set(zero ? 0.0f : 127.0f / largest);
  int32_t low_sum, high_sum;
  store_bytes(to->q, zero ? Vec::zero() : low * inverse, zero ? Vec::zero() : high * inverse, &low_sum, &high_sum);
  const int32_t total = low_sum + high_sum;
  to->scale = finite ? (zero ? 0.0f : largest / 127.0f) : __builtin_nanf("");
  to->scaled_sum = to->scale * static_cast<float>(total);
  to->minus8 = -8 * total;
  to->minus16 = -16 * total;
  to->minus128 = -128 * total;
  to->low32 = -32 * low_sum;
  to->high32 = -32 * high_sum;
  to->unused = 0;
  if (wide == nullptr) return;
  for (int i = 0; i < kGroup; i += 4) {
    wide->q[i] = to->q[i];
    wide->q[i + 1] = to->q[i + 2];
    wide->q[i + 2] = to->q[i + 1];
    wide->q[i + 3] = to->q[i + 3];
  }
}

// Where a tile reads its strips and writes its results; ``columns``: valid outputs from the first strip on.
struct QTileArgs {
  const QuantGroup* x;    // [groups][R]
  const WideGroup* wide;  // the same, if some Dot needs it
  const uint8_t* header[kMostStrips];
  const uint8_t* codes[kMostStrips];
  float* y;
  int64_t y_stride, groups, columns;
  bool add;           // y holds the sums of the groups before
  const char* ahead;  // what to fetch meanwhile, as many bytes as the strips have, or null
};

// Codes of quad i (i < 4), or of quad i + 4.
template <int Bits>
inline Bytes quad_codes(const uint8_t* group, int i, bool upper) {
  if constexpr (Bits == 8) return Bytes::load(group + 64 * (upper ? i + 4 : i));
  const Bytes both = Bytes::load(group + 64 * i), nibbles = upper ? high_nibbles(both) : low_nibbles(both);
  if constexpr (Bits == 5) {
    const Bytes fifth = Bytes::load(group + 256);
    return nibbles | (upper ? shifted_right(fifth, i, 0x10) : shifted_left(fifth, 4 - i, 0x10));
  }
  if constexpr (Bits == 6) {
    const Bytes high = Bytes::load(group + (upper ? 320 : 256));
    return nibbles | (i < 2 ? shifted_left(high, 4 - 2 * i, 0x30) : shifted_right(high, 2 * i - 4, 0x30));
  }
  return nibbles;
}

inline int32_t center_term(Kind kind, const QuantGroup& x, bool upper) {
  switch (kind) {
    case Kind::symmetric4: return x.minus8;
    case Kind::symmetric5: return x.minus16;
    case Kind::symmetric8: return x.minus128;
    case Kind::halves6: return upper ? x.high32 : x.low32;
    default: return 0;
  }
}

template <Kind kind>
using DotOf = Dot<kind_info(kind).bits>;

// Where a tile finds the strips of a group: in panels, or unpacked for many tiles: 32-bit floats instead of binary16, a byte for every code.
template <Kind kind>
struct PackedStrips {
  static constexpr int64_t kHeaderStep = kind_info(kind).header * 32, kCodeStep = kind_info(kind).rows * 64;
  static Floats header(const uint8_t* group, int which) { return Floats::load_half(group + 32 * which); }
  static Bytes codes(const uint8_t* group, int i, bool upper) { return quad_codes<kind_info(kind).bits>(group, i, upper); }
};
template <Kind kind>
struct UnpackedStrips {
  static constexpr int64_t kHeaderStep = kind_info(kind).header * kStrip * 4, kCodeStep = 8 * kStrip * 4;
  static Floats header(const uint8_t* group, int which) { return Floats::load(reinterpret_cast<const float*>(group) + kStrip * which); }
  static Bytes codes(const uint8_t* group, int i, bool upper) { return Bytes::load(group + 4 * kStrip * (upper ? i + 4 : i)); }
};

// Sums of one group of S strips for R rows; for halves those of the first or of the second one. A load of activations serves all strips.
template <template <Kind> class Strips, Kind kind, int R, int S>
inline void qtile_sums(const QuantGroup* x, const WideGroup* wide, const uint8_t* const* group, bool upper_half,
                       DotOf<kind> (*dot)[R]) {
  constexpr bool halves = kind == Kind::halves6, pairs = DotOf<kind>::kPairs;
  OCTAVO_UNROLL
  for (int s = 0; s < S; ++s) {
    OCTAVO_UNROLL
    for (int r = 0; r < R; ++r) dot[s][r].start(center_term(kind, x[r], upper_half));
  }
  OCTAVO_UNROLL
  for (int n = 0; n < (halves ? 4 : pairs ? 16 : 8); ++n) {
    const int i = halves ? n : pairs ? n / 2 % 4 : n / 2;
    const bool upper = halves ? upper_half : pairs ? n >= 8 : n % 2 == 1;
    const int quad = upper ? i + 4 : i;
    Bytes codes[S];
    OCTAVO_UNROLL
    for (int s = 0; s < S; ++s) {
      codes[s] = Strips<kind>::codes(group[s], i, upper);
      if constexpr (pairs) codes[s] = DotOf<kind>::pair(codes[s], n % 2);
      codes[s] = in_register(codes[s]);
    }
    OCTAVO_UNROLL
    for (int r = 0; r < R; ++r) {
      const Quad four = pairs ? Quad::load(wide[r].q + 4 * quad + 2 * (n % 2)) : Quad::load(x[r].q + 4 * quad);
      OCTAVO_UNROLL
      for (int s = 0; s < S; ++s) dot[s][r].add(codes[s], four, n);
    }
  }
}

template <template <Kind> class Strips, Kind kind, int R, int S>
inline void qtile_group(const QuantGroup* x, const WideGroup* wide, const uint8_t* const* header, const uint8_t* const* group, Floats (*acc)[R]) {
  constexpr KindInfo info = kind_info(kind);
  constexpr bool halves = kind == Kind::halves6;
  OCTAVO_UNROLL
  for (int half = 0; half < (halves ? 2 : 1); ++half) {
    DotOf<kind> dot[S][R];
    qtile_sums<Strips, kind, R, S>(x, wide, group, half == 1, dot);
    OCTAVO_UNROLL
    for (int s = 0; s < S; ++s) {
      const Floats scale = Strips<kind>::header(header[s], half);
      OCTAVO_UNROLL
      for (int r = 0; r < R; ++r) acc[s][r] = fma(dot[s][r].value(), scale * Floats::set(x[r].scale), acc[s][r]);
      if constexpr (info.affine) {
        const Floats minimum = Strips<kind>::header(header[s], 1);
        OCTAVO_UNROLL
        for (int r = 0; r < R; ++r) acc[s][r] = fma(minimum, Floats::set(x[r].scaled_sum), acc[s][r]);
      }
    }
  }
}

template <template <Kind> class Strips, Kind kind, int R, int S>
void qtile(const QTileArgs& args) {
  Floats acc[S][R];
  OCTAVO_UNROLL
  for (int s = 0; s < S; ++s) {
    OCTAVO_UNROLL
    for (int r = 0; r < R; ++r) {
      acc[s][r] = args.add ? Floats::load_n(args.y + r * args.y_stride + s * kStrip, args.columns - s * kStrip) : Floats::zero();
    }
  }
  constexpr int lines = static_cast<int>((S * (PackedStrips<kind>::kCodeStep + PackedStrips<kind>::kHeaderStep) / kPanelStrips + 63) / 64);
  const QuantGroup* x = args.x;
  const char* ahead = args.ahead;
  for (int64_t g = 0; g < args.groups; ++g, x += R) {
    if (ahead != nullptr) {
      OCTAVO_UNROLL
      for (int line = 0; line < lines; ++line) __builtin_prefetch(ahead + 64 * line, 0, 2);
      ahead += 64 * lines;
    }
    const uint8_t *header[S], *codes[S];
    OCTAVO_UNROLL
    for (int s = 0; s < S; ++s) {
      header[s] = args.header[s] + g * Strips<kind>::kHeaderStep;
      codes[s] = args.codes[s] + g * Strips<kind>::kCodeStep;
    }
    qtile_group<Strips, kind, R, S>(x, args.wide + (DotOf<kind>::kPairs ? g * R : 0), header, codes, acc);
  }
  OCTAVO_UNROLL
  for (int s = 0; s < S; ++s) {
    OCTAVO_UNROLL
    for (int r = 0; r < R; ++r) acc[s][r].store_n(args.y + r * args.y_stride + s * kStrip, args.columns - s * kStrip);
  }
}

// Replaces the first ``count`` strips of ``args`` by copies of theirs, unpacked, from group ``first`` on.
template <Kind kind>
void unpack_strips(QTileArgs* args, int64_t first, int count) {
  using From = PackedStrips<kind>;
  using To = UnpackedStrips<kind>;
  const int64_t headers = args->groups * To::kHeaderStep, codes = args->groups * To::kCodeStep;
  auto* to = reinterpret_cast<uint8_t*>(scratch(Slot::task, static_cast<size_t>(count * (headers + codes)) / sizeof(float)));
  for (int s = 0; s < count; ++s, to += headers + codes) {
    for (int64_t g = 0; g < args->groups; ++g) {
      const uint8_t *from_header = args->header[s] + (first + g) * From::kHeaderStep, *from = args->codes[s] + (first + g) * From::kCodeStep;
      for (int h = 0; h < kind_info(kind).header; ++h) {
        From::header(from_header, h).store(reinterpret_cast<float*>(to + g * To::kHeaderStep) + h * kStrip);
      }
      OCTAVO_UNROLL
      for (int i = 0; i < 8; ++i) From::codes(from, i % 4, i >= 4).store(to + headers + g * To::kCodeStep + 4 * kStrip * i);
    }
    args->header[s] = to;
    args->codes[s] = to + headers;
  }
}

using QTile = void (*)(const QTileArgs&);

// The functions of a kind.
struct QTiles {
  struct Height {
    QTile single, wide, unpacked;  // for one strip, for dot_strips(rows, bits) of them, for as many unpacked ones
  };
  std::array<Height, kDotRows> heights;
  void (*unpack)(QTileArgs*, int64_t, int);
};

// Groups that are unpacked at a time: two strips of them and a tile's activations fit in 32 KiB.
constexpr int64_t kUnpackGroups = 24;

// Whether strips are unpacked for tiles of R rows: the least height of unpack_tiles(bits) tiles or more.
template <Kind kind, int R>
constexpr bool height_unpacks() {
  constexpr int64_t tiles = unpack_tiles(kind_info(kind).bits);
  return tiles > 0 && R * tiles >= (tiles - 1) * kDotRows + 1 - tiles;
}

// Tiles of a call differ in height by one row: as many strips as the higher ones take, if more than one, the lower ones must take too.
constexpr bool strips_suit_all() {
  for (int rows = 2; rows <= kDotRows; ++rows) {
    for (const int bits : {4, 5, 6, 8}) {
      if (dot_strips(rows, bits) > 1 && rows > 2 && dot_strips(rows - 1, bits) != dot_strips(rows, bits)) return false;
    }
  }
  return true;
}
static_assert(strips_suit_all() && kDotRows > 2, "strips chosen for the first tile of a call must suit the others");

template <Kind kind, int R>
constexpr QTiles::Height qtiles_of_height() {
  constexpr int S = dot_strips(R, kind_info(kind).bits);
  QTiles::Height height{&qtile<PackedStrips, kind, R, 1>, &qtile<PackedStrips, kind, R, S>, nullptr};
  if constexpr (height_unpacks<kind, R>()) height.unpacked = &qtile<UnpackedStrips, kind, R, S>;
  return height;
}
template <Kind kind, int... R>
constexpr QTiles qtiles_of_kind(std::integer_sequence<int, R...>) {
  return {{qtiles_of_height<kind, R + 1>()...}, &unpack_strips<kind>};
}
template <Kind kind>
constexpr QTiles kKindTiles = qtiles_of_kind<kind>(std::make_integer_sequence<int, kDotRows>{});
constexpr QTiles const* kQTiles[] = {
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

inline void quantize_tile(const QMatmulArgs& args, const DotTiles& tiles, int64_t tile, QuantGroup* to, WideGroup* wide) {
  const int64_t groups = args.inputs / kGroup, first = tiles.first(tile);
  const int rows = tiles.rows(tile);
  for (int64_t g = 0; g < groups; ++g) {
    for (int r = 0; r < rows; ++r) {
      const int64_t at = first * groups + g * rows + r;
      quantize_group(args.x + (first + r) * args.x_stride + g * kGroup, to + at, wide == nullptr ? nullptr : wide + at);
    }
  }
}

// Part of a product: row tiles first_tile .. end_tile - 1.
struct QMatmulSpan {
  const QMatmulArgs& args;
  const QuantGroup* x;
  const WideGroup* wide;
  const DotTiles& tiles;
  int64_t first_tile, end_tile;

  // Strips first .. first + count - 1 of a range, count at most ``widest`` of the highest tile, for all row tiles.
  void strips(const PanelRange& range, int64_t first, int count) const {
    const QTiles& choices = *kQTiles[static_cast<int>(range.kind)];
    const int64_t stride = panel_bytes(range.kind, args.inputs), header = header_bytes(range.kind, args.inputs);
    QTileArgs all;
    all.y_stride = args.y_stride;
    all.groups = args.inputs / kGroup;
    for (int s = 0; s < count; ++s) {
      const uint8_t* panel = range.panels + (first + s) / kPanelStrips * stride;
      const int64_t lane = (first + s) % kPanelStrips * kStrip;
      all.header[s] = panel + 2 * lane;
      all.codes[s] = panel + header + 4 * lane;
    }
    const int bits = kind_info(range.kind).bits;
    const int64_t enough = unpack_tiles(bits);
    const bool unpack = enough > 0 && end_tile - first_tile >= enough && count == dot_strips(tiles.rows(first_tile), bits);
    // Fetched meanwhile: what this thread most likely works on next.
    const char* next = reinterpret_cast<const char*>(range.panels) + first * stride / kPanelStrips;
    next += std::max(kAheadBytes, count * stride / kPanelStrips);
    const int64_t blocks = unpack ? (all.groups + kUnpackGroups - 1) / kUnpackGroups : 1;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t before = all.groups * block / blocks;
      QTileArgs part = all;
      part.groups = all.groups * (block + 1) / blocks - before;
      part.add = block > 0;
      if (unpack) choices.unpack(&part, before, count);
      for (int64_t t = first_tile; t < end_tile; ++t) {
        const int rows = tiles.rows(t);
        const auto& functions = choices.heights[static_cast<size_t>(rows - 1)];
        QTileArgs tile = part;
        const int64_t at = tiles.first(t) * all.groups + before * rows;
        tile.x = x + at;
        tile.wide = wide == nullptr ? nullptr : wide + at;
        tile.y = args.y + tiles.first(t) * args.y_stride + range.first + first * kStrip;
        tile.columns = range.outputs - first * kStrip;
        tile.ahead = t == first_tile ? next + before * (stride / all.groups) * count / kPanelStrips : nullptr;
        (unpack ? functions.unpacked : count > 1 ? functions.wide : functions.single)(tile);
      }
    }
  }

  // Panels first .. end - 1, counted over all ranges.
  void panels(int64_t first, int64_t end) const {
    for (int64_t i = 0, before = 0; i < args.count && before < end; before += args.ranges[i++].count()) {
      const PanelRange& range = args.ranges[i];
      const int64_t valid = (range.outputs + kStrip - 1) / kStrip, last = std::min(valid, (end - before) * kPanelStrips);
      const int widest = dot_strips(tiles.rows(first_tile), kind_info(range.kind).bits);
      for (int64_t strip = std::max<int64_t>(0, first - before) * kPanelStrips; strip < last;) {
        const int count = last - strip >= widest ? widest : 1;
        strips(range, strip, count);
        strip += count;
      }
    }
  }
};

inline void qmatmul(const QMatmulArgs& args) {
  int64_t panels = 0;
  bool pairs = false;
  for (int64_t i = 0; i < args.count; ++i) {
    panels += args.ranges[i].count();
    pairs = pairs || (kind_info(args.ranges[i].kind).bits == 8 && Dot<8>::kPairs);
  }
  if (args.tokens == 0 || panels == 0) return;
  const DotTiles tiles(args.tokens);
  const int64_t groups = args.inputs / kGroup, row_bytes = groups * static_cast<int64_t>(sizeof(QuantGroup) + (pairs ? sizeof(WideGroup) : 0));
  auto* x = reinterpret_cast<QuantGroup*>(scratch(Slot::shared, static_cast<size_t>(args.tokens * row_bytes) / sizeof(float)));
  auto* wide = pairs ? reinterpret_cast<WideGroup*>(x + args.tokens * groups) : nullptr;
  const auto quantize = [&](int64_t t) { quantize_tile(args, tiles, t, x, wide); };
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
    QMatmulSpan{args, x, wide, tiles, first_tile, end_tile}.panels(span * panels / spans, (span + 1) * panels / spans);
  });
}

}  // namespace
}  // namespace octavo
