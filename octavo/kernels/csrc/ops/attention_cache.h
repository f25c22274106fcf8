// The paged cache of attention: where positions lie, how keys and values go in and come out. Layout and element types: kernels.h.
#pragma once

#include <algorithm>
#include <cstring>

namespace octavo {
namespace {

inline uint16_t narrow(float x, Element type) {
  if (type == Element::f16) return float_to_half(x);
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);  // NaN stays NaN
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline void widen(const uint16_t* from, int64_t count, Element type, float* to) {
  const auto load = [&](const uint16_t* p) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(p);
    return type == Element::f16 ? load_half(bytes) : load_bfloat(bytes);
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) load(from + i).store(to + i);
  if (i == count) return;
  uint16_t rest[kLanes] = {};
  std::memcpy(rest, from + i, static_cast<size_t>(count - i) * sizeof(uint16_t));
  load(rest).store_n(to + i, count - i);
}

// Where positions lie in the caches of one (row, key/value head). Pointers are to float32: the cache itself, or a widened copy of it.
struct CacheView {
  const AttentionArgs& args;
  const int32_t* table;
  int64_t group;

  bool wide() const { return args.cache_type == Element::f32; }
  int64_t block_at(int64_t position) const {  // elements before the block that holds a position
    return (table[position / args.block_size] * args.kv_heads + group) * args.block_size * args.head_dim;
  }

  // Keys of 16 positions from a multiple of 16 on, as [D][16]. Reads no block from ``end`` on. ``space`` holds a copy if one is needed.
  const float* keys(int64_t position, int64_t end, float* space) const {
    const int64_t size = args.block_size, lanes = std::min(size, kLanes), d_count = args.head_dim;
    if (lanes == kLanes && wide()) return static_cast<const float*>(args.key_cache) + block_at(position) + position % size * d_count;
    for (int64_t at = 0; at < kLanes; at += lanes) copy_keys(position + at, lanes, position + at < end, space + at);
    return space;
  }

  void copy_keys(int64_t position, int64_t lanes, bool exists, float* to) const {
    if (!exists) {
      for (int64_t d = 0; d < args.head_dim; ++d) std::memset(to + d * kLanes, 0, static_cast<size_t>(lanes) * sizeof(float));
      return;
    }
    const int64_t from = block_at(position) + position % args.block_size * args.head_dim;
    for (int64_t d = 0; d < args.head_dim; ++d) {
      if (wide()) {
        std::memcpy(to + d * kLanes, static_cast<const float*>(args.key_cache) + from + d * lanes, static_cast<size_t>(lanes) * sizeof(float));
      } else {
        widen(static_cast<const uint16_t*>(args.key_cache) + from + d * lanes, lanes, args.cache_type, to + d * kLanes);
      }
    }
  }

  // values[j]: value of position base + j, for j in [first, end).
  void values(int64_t base, int64_t first, int64_t end, float* space, const float** values) const {
    const int64_t size = args.block_size, d_count = args.head_dim;
    for (int64_t j = first; j < end;) {
      const int64_t slot = (base + j) % size, count = std::min(size - slot, end - j), from = block_at(base + j) + slot * d_count;
      const float* at = static_cast<const float*>(args.value_cache) + from;
      if (!wide()) {
        widen(static_cast<const uint16_t*>(args.value_cache) + from, count * d_count, args.cache_type, space + j * d_count);
        at = space + j * d_count;
      }
      for (int64_t stop = j + count; j < stop; ++j, at += d_count) values[j] = at;
    }
  }
};

// One token of one key/value head. ``position``: its place in the row.
inline void store_kv_head(const AttentionArgs& args, const CacheView& view, int64_t position, const float* k, const float* v) {
  const int64_t lanes = std::min(args.block_size, kLanes), d_count = args.head_dim, slot = position % args.block_size;
  const int64_t block = view.block_at(position), key = block + slot / lanes * lanes * d_count + slot % lanes, value = block + slot * d_count;
  if (view.wide()) {
    float* keys = static_cast<float*>(args.key_cache) + key;
    for (int64_t d = 0; d < d_count; ++d) keys[d * lanes] = k[d];
    std::memcpy(static_cast<float*>(args.value_cache) + value, v, static_cast<size_t>(d_count) * sizeof(float));
    return;
  }
  uint16_t *keys = static_cast<uint16_t*>(args.key_cache) + key, *values = static_cast<uint16_t*>(args.value_cache) + value;
  for (int64_t d = 0; d < d_count; ++d) keys[d * lanes] = narrow(k[d], args.cache_type), values[d] = narrow(v[d], args.cache_type);
}

inline void store_kv(const AttentionArgs& args, int64_t row) {
  for (int64_t t = args.offsets[row]; t < args.offsets[row + 1]; ++t) {
    const int64_t position = args.starts[row] + t - args.offsets[row];
    for (int64_t g = 0; g < args.kv_heads; ++g) {
      const CacheView view{args, args.tables + row * args.table_stride, g};
      store_kv_head(args, view, position, args.k + t * args.k_stride + g * args.head_dim, args.v + t * args.v_stride + g * args.head_dim);
    }
  }
}

}  // namespace
}  // namespace octavo
