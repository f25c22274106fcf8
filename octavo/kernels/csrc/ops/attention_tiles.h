// Register tiles of attention: some queries by some vectors of keys, or of a value. The size of a tile never changes a bit.
#pragma once

#include <array>
#include <utility>

namespace octavo {
namespace {

constexpr int64_t kTile = 64;  // positions whose weights are taken together
constexpr int64_t kTileVectors = kTile / kLanes;

// scores[r][16 v + lane] = q[r] . key, one chain over d.
template <int R, int N>
void score_tile(const float* q, int64_t d_count, const float* const* keys, float* scores) {
  Vec acc[R][N];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < N; ++v) acc[r][v] = Vec::zero();
  }
  const float* at[N];
  for (int v = 0; v < N; ++v) at[v] = keys[v];
  for (int64_t d = 0; d < d_count; ++d) {
    Vec b[N];
    for (int v = 0; v < N; ++v) b[v] = Vec::load(at[v] + d * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec a = Vec::set(q[r * d_count + d]);
      for (int v = 0; v < N; ++v) acc[r][v] = fma(a, b[v], acc[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < N; ++v) acc[r][v].store(scores + r * kTile + v * kLanes);
  }
}

// out[r][d] += weight[r][j] * value[j][d] in ascending j in [low, high); the last vector of d has ``tail`` lanes.
template <int R, int N>
void value_tile(const float* weights, const float* const* values, int64_t low, int64_t high, float* out, int64_t out_stride, int64_t d,
                int64_t tail) {
  Vec acc[R][N];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < N; ++v) acc[r][v] = Vec::load(out + r * out_stride + v * kLanes);
  }
  const auto walk = [&](const auto& load_last) {
    for (int64_t j = low; j < high; ++j) {
      const float* from = values[j] + d;
      Vec b[N];
      for (int v = 0; v < N - 1; ++v) b[v] = Vec::load(from + v * kLanes);
      b[N - 1] = load_last(from + (N - 1) * kLanes);
      for (int r = 0; r < R; ++r) {
        const Vec a = Vec::set(weights[r * kTile + j]);
        for (int v = 0; v < N; ++v) acc[r][v] = fma(a, b[v], acc[r][v]);
      }
    }
  };
  if (tail == kLanes) {
    walk([](const float* p) { return Vec::load(p); });
  } else {
    walk([&](const float* p) { return Vec::load_n(p, tail); });
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < N; ++v) acc[r][v].store(out + r * out_stride + v * kLanes);
  }
}

using ScoreTile = void (*)(const float*, int64_t, const float* const*, float*);
using ValueTile = void (*)(const float*, const float* const*, int64_t, int64_t, float*, int64_t, int64_t, int64_t);
struct AttentionTiles {
  std::array<ScoreTile, 4> score;
  std::array<ValueTile, 4> value;
};

template <int R, int N>
constexpr ScoreTile score_tile_or_null() {
  if constexpr (N <= attention_vectors(R)) {
    return &score_tile<R, N>;
  } else {
    return nullptr;
  }
}
template <int R, int N>
constexpr ValueTile value_tile_or_null() {
  if constexpr (N <= attention_vectors(R)) {
    return &value_tile<R, N>;
  } else {
    return nullptr;
  }
}
template <int R>
constexpr AttentionTiles attention_tile_row() {
  return {{score_tile_or_null<R, 1>(), score_tile_or_null<R, 2>(), score_tile_or_null<R, 3>(), score_tile_or_null<R, 4>()},
          {value_tile_or_null<R, 1>(), value_tile_or_null<R, 2>(), value_tile_or_null<R, 3>(), value_tile_or_null<R, 4>()}};
}
template <int... R>
constexpr std::array<AttentionTiles, sizeof...(R)> attention_tile_table(std::integer_sequence<int, R...>) {
  return {attention_tile_row<R + 1>()...};
}
constexpr auto kAttentionTiles = attention_tile_table(std::make_integer_sequence<int, kAttentionRows>{});

}  // namespace
}  // namespace octavo
