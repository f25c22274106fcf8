// The dense product on panels. One register tile is some rows of x by some panels of w; its sums run over k in order, so the size of a tile
// changes speed and never a bit.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "../memory.h"
#include "../pool.h"

namespace octavo {
namespace {

// Inputs a block of the summation order holds; a function of K alone.
constexpr int64_t kBlockInputs = 384;
inline int64_t k_block(int64_t inputs) {
  const int64_t blocks = (inputs + kBlockInputs - 1) / kBlockInputs;
  return ((inputs + blocks - 1) / blocks + 7) / 8 * 8;
}

constexpr int kMatmulPanels = 4;

// Sixteen neighbouring elements as floats.
template <Element>
struct Stored {
  using Type = uint16_t;
};
template <>
struct Stored<Element::f32> {
  using Type = float;
};
template <Element E>
inline Vec load_elements(const typename Stored<E>::Type* p) {
  if constexpr (E == Element::f32) {
    return Vec::load(p);
  } else if constexpr (E == Element::f16) {
    return load_half(reinterpret_cast<const uint8_t*>(p));
  } else {
    return load_bfloat(reinterpret_cast<const uint8_t*>(p));
  }
}
constexpr int64_t element_bytes(Element e) { return e == Element::f32 ? 4 : 2; }
// Rows and inputs that are worked on together, sized for the second-level cache.
constexpr int64_t kRowBlock = 256, kInputBlock = 4 * kBlockInputs;

// Inputs between a load of weights and the prefetch beside it: the processor's own prefetcher stops at every 4 KiB page, 64 inputs long.
constexpr int64_t kPrefetch = 48;

// What to fetch into the cache while a tile is computed: ``step`` bytes for every input.
struct Ahead {
  const char* at;
  int64_t step;
};

// x: [inputs][R] (rows interleaved), panels ``panel_stride`` elements apart, columns: valid outputs of the P panels.
template <Element E, int R, int P>
void matmul_tile(const float* x, const void* panels, int64_t panel_stride, int64_t inputs, float* y, int64_t y_stride, int64_t columns, bool add,
                 Ahead ahead) {
  const auto* w = static_cast<const typename Stored<E>::Type*>(panels);
  Vec acc[R][P];
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) acc[r][p] = Vec::zero();
  }
  for (int64_t k = 0; k < inputs; ++k) {
    if constexpr (R > 1) __builtin_prefetch(ahead.at + k * ahead.step, 0, 2);
    for (int p = 0; p < P; ++p) __builtin_prefetch(w + p * panel_stride + (k + kPrefetch) * kLanes, 0, 3);
    Vec b[P];
    for (int p = 0; p < P; ++p) b[p] = load_elements<E>(w + p * panel_stride + k * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec a = Vec::set(x[k * R + r]);
      for (int p = 0; p < P; ++p) acc[r][p] = fma(a, b[p], acc[r][p]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) {
      float* at = y + r * y_stride + p * kLanes;
      const int64_t valid = columns - p * kLanes;
      if (valid >= kLanes) {
        (add ? Vec::load(at) + acc[r][p] : acc[r][p]).store(at);
      } else {
        (add ? Vec::load_n(at, valid) + acc[r][p] : acc[r][p]).store_n(at, valid);
      }
    }
  }
}

using MatmulTile = void (*)(const float*, const void*, int64_t, int64_t, float*, int64_t, int64_t, bool, Ahead);
using MatmulTileRow = std::array<MatmulTile, kMatmulPanels>;

template <Element E, int R, int P>
constexpr MatmulTile matmul_tile_or_null() {
  if constexpr (P <= matmul_panels(R)) {
    return &matmul_tile<E, R, P>;
  } else {
    return nullptr;
  }
}
template <Element E, int R>
constexpr MatmulTileRow matmul_tile_row() {
  return {matmul_tile_or_null<E, R, 1>(), matmul_tile_or_null<E, R, 2>(), matmul_tile_or_null<E, R, 3>(), matmul_tile_or_null<E, R, 4>()};
}
template <Element E, int... R>
constexpr std::array<MatmulTileRow, sizeof...(R)> matmul_tile_table(std::integer_sequence<int, R...>) {
  return {matmul_tile_row<E, R + 1>()...};
}
// By element, height and width.
constexpr std::array<MatmulTileRow, kMatmulRows> kMatmulTiles[] = {
    matmul_tile_table<Element::f32>(std::make_integer_sequence<int, kMatmulRows>{}),
    matmul_tile_table<Element::f16>(std::make_integer_sequence<int, kMatmulRows>{}),
    matmul_tile_table<Element::bf16>(std::make_integer_sequence<int, kMatmulRows>{}),
};

// Rows split into tiles of nearly equal height.
struct RowTiles {
  int64_t tokens, count;
  explicit RowTiles(int64_t t) : tokens(t), count((t + kMatmulRows - 1) / kMatmulRows) {}
  int64_t first(int64_t i) const { return tokens / count * i + std::min(i, tokens % count); }
  int rows(int64_t i) const { return static_cast<int>(first(i + 1) - first(i)); }
};

inline void interleave_rows(const MatmulArgs& args, const RowTiles& tiles, int64_t tile, float* to) {
  const int64_t first = tiles.first(tile);
  const int rows = tiles.rows(tile);
  const float* in = args.x + first * args.x_stride;
  float* out = to + first * args.inputs;
  for (int64_t k = 0; k < args.inputs; ++k) {
    for (int r = 0; r < rows; ++r) *out++ = in[r * args.x_stride + k];
  }
}

// Part of a product: panels first .. end - 1, row tiles first_tile .. end_tile - 1 of the interleaved x.
struct MatmulSpan {
  const MatmulArgs& args;
  const float* x;
  const RowTiles& tiles;
  int64_t first_tile, end_tile, first, end;

  // Row tiles by ``width`` panels, inputs from .. to - 1. Meanwhile the next panels are fetched, a share with each row tile; with few tiles
  // the processor's own prefetcher does better.
  void columns(int64_t panel, int64_t width, int64_t from, int64_t to) const {
    const int64_t block = k_block(args.inputs), panel_stride = args.inputs * kLanes, count = end_tile - first_tile, size = element_bytes(args.element);
    const auto& tile_rows = kMatmulTiles[static_cast<size_t>(args.element)];
    const char* panels = static_cast<const char*>(args.panels) + panel * panel_stride * size;
    const int64_t step = panel + width < end && count > 2 ? (width * kLanes * size + count - 1) / count : 0;
    const char* ahead = panels + ((step > 0 ? width : 0) * panel_stride + from * kLanes * width) * size;
    for (int64_t t = first_tile; t < end_tile; ++t) {
      const int rows = tiles.rows(t);
      const int64_t row = tiles.first(t);
      for (int64_t k = from; k < to; k += block) {
        const int64_t inputs = std::min(block, to - k);
        tile_rows[static_cast<size_t>(rows - 1)][static_cast<size_t>(width - 1)](
            x + row * args.inputs + k * rows, panels + k * kLanes * size, panel_stride, inputs,
            args.y + row * args.y_stride + panel * kLanes, args.y_stride, args.outputs - panel * kLanes, k > 0, {ahead, step});
        ahead += inputs * step;
      }
    }
  }

  void run() const {
    const int64_t widest = matmul_panels(tiles.rows(first_tile));  // the first tile is the tallest
    const int64_t stretch = kInputBlock / kBlockInputs * k_block(args.inputs);
    for (int64_t from = 0; from < args.inputs; from += stretch) {
      for (int64_t p = first; p < end; p += widest) columns(p, std::min(widest, end - p), from, std::min(args.inputs, from + stretch));
    }
  }
};

inline void matmul(const MatmulArgs& args) {
  if (args.tokens == 0 || args.outputs == 0) return;
  const RowTiles tiles(args.tokens);
  const float* x = args.x;
  if (args.tokens > 1) {
    float* packed = scratch(Slot::shared, static_cast<size_t>(args.tokens * args.inputs));
    const auto interleave = [&](int64_t t) { interleave_rows(args, tiles, t, packed); };
    if (args.tokens * args.inputs < 32768) {
      for (int64_t t = 0; t < tiles.count; ++t) interleave(t);
    } else {
      parallel_for(tiles.count, interleave);
    }
    x = packed;
  }
  const int64_t panels = (args.outputs + kLanes - 1) / kLanes, threads = num_threads();
  const int64_t block_tiles = std::max<int64_t>(1, kRowBlock / kMatmulRows), row_blocks = (tiles.count + block_tiles - 1) / block_tiles;
  // Tasks of at least 64 Ki multiply-adds, about eight for each thread.
  const int64_t worth = std::max<int64_t>(1, args.tokens * args.inputs * args.outputs / 65536);
  const int64_t spans = std::clamp<int64_t>(std::min(worth, threads * 8) / row_blocks, 1, panels);
  parallel_for(spans * row_blocks, [&](int64_t task) {
    const int64_t span = task / row_blocks, rows = task % row_blocks;
    const int64_t first_tile = rows * block_tiles, end_tile = std::min(first_tile + block_tiles, tiles.count);
    MatmulSpan{args, x, tiles, first_tile, end_tile, span * panels / spans, (span + 1) * panels / spans}.run();
  });
}

inline float element_at(const void* elements, int64_t i, Element e) {
  if (e == Element::f32) return static_cast<const float*>(elements)[i];
  const uint16_t bits = static_cast<const uint16_t*>(elements)[i];
  if (e == Element::f16) return half_to_float(bits);
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

inline void gather(const GatherArgs& args) {
  const auto row = [&](int64_t t) {
    const int64_t from = args.ids[t] / kLanes * args.inputs * kLanes + args.ids[t] % kLanes;
    float* to = args.y + t * args.inputs;
    for (int64_t k = 0; k < args.inputs; ++k) to[k] = element_at(args.panels, from + k * kLanes, args.element) * args.scale;
  };
  constexpr int64_t chunk = 16;
  parallel_for((args.tokens + chunk - 1) / chunk, [&](int64_t c) {
    for (int64_t t = c * chunk; t < std::min(args.tokens, (c + 1) * chunk); ++t) row(t);
  });
}

}  // namespace
}  // namespace octavo
