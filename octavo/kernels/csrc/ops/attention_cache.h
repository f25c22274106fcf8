// The paged cache of attention: where positions lie, how keys and values go in and come out. Layout and element types: kernels.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

namespace octavo {
namespace {

constexpr int64_t cache_bytes(Element e) { return e == Element::f32 ? 4 : e == Element::f16 || e == Element::bf16 ? 2 : 1; }

inline uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline uint16_t narrow(float x, Element type) {
  if (type == Element::f16) return float_to_half(x);
  const uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);  // NaN stays NaN
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// A finite number of at most the largest magnitude as FP8 with M bits of mantissa and exponents from 2^Least up.
template <int M, int Least>
inline uint8_t to_fp8(float x) {
  const uint32_t bits = float_bits(x), sign = bits >> 31 << 7, magnitude = bits & 0x7fffffffu;
  float absolute;
  std::memcpy(&absolute, &magnitude, sizeof absolute);
  if (magnitude < static_cast<uint32_t>(127 + Least) << 23) {  // subnormal: a multiple of 2^(Least - M)
    const float multiple = absolute * static_cast<float>(uint64_t{1} << (M - Least));
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(std::nearbyintf(multiple)));
  }
  constexpr int drop = 23 - M;
  const uint32_t rounded = magnitude + (1u << (drop - 1)) - 1 + (magnitude >> drop & 1u);
  return static_cast<uint8_t>(sign | ((rounded >> drop) - (static_cast<uint32_t>(126 + Least) << M)));
}

inline uint8_t to_code(float x, Element type) {
  if (type == Element::int8) return static_cast<uint8_t>(static_cast<int8_t>(std::nearbyintf(x)));
  return type == Element::e4m3 ? to_fp8<3, -6>(x) : to_fp8<2, -14>(x);
}

// Sixteen stored elements.
inline Vec load_stored(const uint8_t* p, Element type) {
  if (type == Element::f16) return load_half(p);
  if (type == Element::bf16) return load_bfloat(p);
  if (type == Element::int8) {
    float wide[kLanes];
    for (int i = 0; i < kLanes; ++i) wide[i] = static_cast<float>(static_cast<int8_t>(p[i]));
    return Vec::load(wide);
  }
  uint16_t half[kLanes];  // FP8 is a binary16 with fewer bits: e5m2 its upper half, e4m3 with exponents 8 less
  if (type == Element::e5m2) {
    for (int i = 0; i < kLanes; ++i) half[i] = static_cast<uint16_t>(p[i] << 8);
    return load_half(reinterpret_cast<const uint8_t*>(half));
  }
  for (int i = 0; i < kLanes; ++i) half[i] = static_cast<uint16_t>((p[i] & 0x80) << 8 | (p[i] & 0x7f) << 7);
  return load_half(reinterpret_cast<const uint8_t*>(half)) * Vec::set(256.0f);
}

// f(i, v): vectors of sixteen of ``count`` stored elements, the last one perhaps with fewer.
template <class F>
inline void for_stored(const uint8_t* from, int64_t count, Element type, const F& f) {
  const int64_t size = cache_bytes(type);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) f(i, kLanes, load_stored(from + i * size, type));
  if (i == count) return;
  uint8_t rest[kLanes * 2] = {};
  std::memcpy(rest, from + i * size, static_cast<size_t>((count - i) * size));
  f(i, count - i, load_stored(rest, type));
}

// Where positions lie in the caches of one (row, key/value head). Pointers are to float32: the cache itself, or a widened copy of it.
struct CacheView {
  const AttentionArgs& args;
  const int32_t* table;
  int64_t group;

  bool wide() const { return args.cache_type == Element::f32; }
  int64_t slot_at(int64_t position) const {  // positions before this one in the caches
    return (table[position / args.block_size] * args.kv_heads + group) * args.block_size + position % args.block_size;
  }
  int64_t block_at(int64_t position) const {  // elements before the block that holds a position
    return (slot_at(position) - position % args.block_size) * args.head_dim;
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
    const int64_t from = block_at(position) + position % args.block_size * args.head_dim, size = cache_bytes(args.cache_type);
    const auto* cache = static_cast<const uint8_t*>(args.key_cache) + from * size;
    const Vec scales = args.key_scales == nullptr ? Vec::set(1.0f) : Vec::load_n(args.key_scales + slot_at(position), lanes);
    for (int64_t d = 0; d < args.head_dim; ++d) {
      if (wide()) {
        std::memcpy(to + d * kLanes, cache + d * lanes * size, static_cast<size_t>(lanes) * sizeof(float));
      } else if (lanes == kLanes) {
        (load_stored(cache + d * lanes * size, args.cache_type) * scales).store(to + d * kLanes);
      } else {
        for_stored(cache + d * lanes * size, lanes, args.cache_type, [&](int64_t, int64_t n, Vec v) { (v * scales).store_n(to + d * kLanes, n); });
      }
    }
  }

  // values[j]: value of position base + j, for j in [first, end).
  void values(int64_t base, int64_t first, int64_t end, float* space, const float** values) const {
    const int64_t size = args.block_size, d_count = args.head_dim;
    for (int64_t j = first; j < end;) {
      const int64_t slot = (base + j) % size, count = std::min(size - slot, end - j), from = block_at(base + j) + slot * d_count;
      if (wide()) {
        const float* at = static_cast<const float*>(args.value_cache) + from;
        for (const int64_t stop = j + count; j < stop; ++j, at += d_count) values[j] = at;
        continue;
      }
      const auto* cache = static_cast<const uint8_t*>(args.value_cache) + from * cache_bytes(args.cache_type);
      for (const int64_t stop = j + count; j < stop; ++j, cache += d_count * cache_bytes(args.cache_type)) {
        const Vec scale = Vec::set(args.value_scales == nullptr ? 1.0f : args.value_scales[slot_at(base + j)]);
        float* to = space + j * d_count;
        for_stored(cache, d_count, args.cache_type, [&](int64_t i, int64_t n, Vec v) { (v * scale).store_n(to + i, n); });
        values[j] = to;
      }
    }
  }
};

// Codes of one position and head, ``stride`` elements apart, and their scale. An infinity or NaN makes the scale NaN; below 1e-30 all is zero.
inline float store_codes(const float* x, int64_t count, Element type, uint8_t* to, int64_t stride) {
  float largest = 0.0f;
  bool finite = true;
  for (int64_t d = 0; d < count; ++d) {
    finite = finite && x[d] - x[d] == 0.0f;
    largest = std::max(largest, std::fabs(x[d]));
  }
  const float most = kLargest[static_cast<int>(type)];
  const bool zero = !finite || !(largest >= 1e-30f);
  const float inverse = zero ? 0.0f : most / largest;
  for (int64_t d = 0; d < count; ++d) {
    to[d * stride] = zero ? 0 : to_code(std::min(most, std::max(-most, x[d] * inverse)), type);
  }
  return finite ? (zero ? 0.0f : largest / most) : __builtin_nanf("");
}

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
  if (args.key_scales != nullptr) {
    const int64_t at = view.slot_at(position);
    args.key_scales[at] = store_codes(k, d_count, args.cache_type, static_cast<uint8_t*>(args.key_cache) + key, lanes);
    args.value_scales[at] = store_codes(v, d_count, args.cache_type, static_cast<uint8_t*>(args.value_cache) + value, 1);
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
