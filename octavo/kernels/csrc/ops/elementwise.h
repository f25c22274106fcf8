// Norms, rotary embedding and activations. Rows are independent; tails use masked loads with the same arithmetic as full vectors.
#pragma once

#include <algorithm>
#include <cmath>

#include "../pool.h"

namespace octavo {
namespace {

// Runs f(row) for all rows, in tasks of at least ``kTaskFloats`` floats.
constexpr int64_t kTaskFloats = 8192;
template <class F>
inline void for_rows(int64_t rows, int64_t floats_per_row, const F& f) {
  const int64_t chunk = std::max<int64_t>(1, kTaskFloats / std::max<int64_t>(1, floats_per_row));
  parallel_for((rows + chunk - 1) / chunk, [&](int64_t c) {
    for (int64_t r = c * chunk; r < std::min(rows, (c + 1) * chunk); ++r) f(r);
  });
}

// f(offset, n): vectors of a row, the last one with n < 16 lanes.
template <class F>
inline void for_vectors(int64_t width, const F& f) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) f(i, kLanes);
  if (i < width) f(i, width - i);
}

inline Vec load_at(const float* p, int64_t n) { return n == kLanes ? Vec::load(p) : Vec::load_n(p, n); }
inline void store_at(Vec v, float* p, int64_t n) {
  if (n == kLanes) {
    v.store(p);
  } else {
    v.store_n(p, n);
  }
}

// The sum of f(offset, n) over the vectors of a row: vector i goes to sum i % 4.
template <class F>
inline float sum_vectors(int64_t width, const F& f) {
  Vec sums[4] = {Vec::zero(), Vec::zero(), Vec::zero(), Vec::zero()};
  for_vectors(width, [&](int64_t i, int64_t n) { f(i, n, sums[i / kLanes % 4]); });
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Shift and scale a row: y = (s - mean) * inverse * weight (+ bias).
template <bool center>
inline void norm_values(const NormArgs& args, const float* s, const float* weight, const float* bias, float* out) {
  const float width = static_cast<float>(args.width);
  const Vec mean = Vec::set(center ? sum_vectors(args.width, [&](int64_t i, int64_t n, Vec& to) { to = to + load_at(s + i, n); }) / width : 0.0f);
  const auto value = [&](int64_t i, int64_t n) { return center ? load_at(s + i, n) - mean : load_at(s + i, n); };
  const float squares = sum_vectors(args.width, [&](int64_t i, int64_t n, Vec& to) {
    Vec v = value(i, n);
    if (center) v = keep_lanes(v, 0, n, Vec::zero());  // lanes beyond the row hold -mean
    to = fma(v, v, to);
  });
  const Vec inverse = Vec::set(1.0f / std::sqrt(squares / width + args.eps));
  for_vectors(args.width, [&](int64_t i, int64_t n) {
    const Vec y = (value(i, n) * inverse) * load_at(weight + i, n);
    store_at(bias == nullptr ? y : y + load_at(bias + i, n), out + i, n);
  });
}

inline void norm_row(const NormArgs& args, int64_t row) {
  const float* x = args.x + row / args.inner * args.x_stride + row % args.inner * args.width;
  const float* s = x;
  if (args.residual != nullptr) {
    const float* residual = args.residual + row * args.width;
    float* sum = args.sum + row * args.width;
    for_vectors(args.width, [&](int64_t i, int64_t n) { store_at(load_at(x + i, n) + load_at(residual + i, n), sum + i, n); });
    s = sum;
  }
  const int64_t at = row % args.inner * args.weight_stride;
  const float* bias = args.bias == nullptr ? nullptr : args.bias + at;
  const auto values = args.center ? norm_values<true> : norm_values<false>;
  values(args, s, args.weight + at, bias, args.out + row * args.width);
}

inline void norm(const NormArgs& args) {
  for_rows(args.outer * args.inner, args.width, [&](int64_t row) { norm_row(args, row); });
}

inline void rotate_halves(float* x, const float* cosines, const float* sines, int64_t half) {
  for_vectors(half, [&](int64_t i, int64_t n) {
    const Vec a = load_at(x + i, n), b = load_at(x + half + i, n), c = load_at(cosines + i, n), s = load_at(sines + i, n);
    store_at(a * c - b * s, x + i, n);
    store_at(b * c + a * s, x + half + i, n);
  });
}

inline void rotate_neighbours(float* x, const float* cosines, const float* sines, int64_t half) {
  float even[kLanes], odd[kLanes];
  for_vectors(half, [&](int64_t i, int64_t n) {
    float* pairs = x + 2 * i;
    for (int64_t j = 0; j < n; ++j) even[j] = pairs[2 * j], odd[j] = pairs[2 * j + 1];
    const Vec a = load_at(even, n), b = load_at(odd, n), c = load_at(cosines + i, n), s = load_at(sines + i, n);
    store_at(a * c - b * s, even, n);
    store_at(b * c + a * s, odd, n);
    for (int64_t j = 0; j < n; ++j) pairs[2 * j] = even[j], pairs[2 * j + 1] = odd[j];
  });
}

inline void rope(const RopeArgs& args) {
  const auto rotate = args.interleaved ? rotate_neighbours : rotate_halves;
  for_rows(args.tokens, (args.heads + args.kv_heads) * args.head_dim, [&](int64_t t) {
    const float* row = args.table + args.positions[t] * args.rot;
    const int64_t half = args.rot / 2;
    for (int64_t h = 0; h < args.heads; ++h) rotate(args.q + t * args.q_stride + h * args.head_dim, row, row + half, half);
    for (int64_t h = 0; h < args.kv_heads; ++h) rotate(args.k + t * args.k_stride + h * args.head_dim, row, row + half, half);
  });
}

inline Vec silu(Vec x) { return x / (Vec::set(1.0f) + exp(Vec::zero() - x)); }
inline Vec gelu(Vec x) { return x * normal_cdf(x); }
// D. Hendrycks, K. Gimpel, "Gaussian error linear units", 2016: (1 + tanh u) / 2 = 1 / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
inline Vec gelu_tanh(Vec x) {
  const Vec minus_2u = fma((x * x) * x, Vec::set(0.044715f), x) * Vec::set(-1.5957691216057308f);
  return x / (Vec::set(1.0f) + exp(minus_2u));
}

// NaN stays NaN: it is the second operand.
inline Vec relu(Vec x) { return max(Vec::zero(), x); }

template <class F>
inline void act_with(const ActArgs& args, const F& f) {
  constexpr int64_t piece = 512;  // a wide row is shared by several tasks
  const int64_t pieces = (args.features + piece - 1) / piece;
  for_rows(args.tokens * pieces, piece, [&](int64_t task) {
    const int64_t t = task / pieces, first = task % pieces * piece, width = std::min(piece, args.features - first);
    const float *x = args.x + t * args.x_stride + first, *up = x + args.features;
    float* y = args.y + t * args.features + first;
    if (args.gated) {
      for_vectors(width, [&](int64_t i, int64_t n) { store_at(f(load_at(x + i, n)) * load_at(up + i, n), y + i, n); });
    } else {
      for_vectors(width, [&](int64_t i, int64_t n) { store_at(f(load_at(x + i, n)), y + i, n); });
    }
  });
}

inline void act(const ActArgs& args) {
  switch (args.kind) {
    case Activation::silu: return act_with(args, [](Vec x) { return silu(x); });
    case Activation::gelu: return act_with(args, [](Vec x) { return gelu(x); });
    case Activation::gelu_tanh: return act_with(args, [](Vec x) { return gelu_tanh(x); });
    case Activation::relu: return act_with(args, [](Vec x) { return relu(x); });
    case Activation::relu2: return act_with(args, [](Vec x) { return relu(x) * relu(x); });
    case Activation::count: return;
  }
}

inline void take(const TakeArgs& args) {
  for_rows(args.tokens, args.width, [&](int64_t t) {
    const float* x = args.x + t * args.x_stride;
    float* y = args.y + t * args.width;
    for (int64_t k = 0; k < args.width; ++k) y[k] = x[args.columns[k]];
  });
}

inline void add(const AddArgs& args) {
  const bool bounded = args.limit < kInfinity;
  const Vec scale = Vec::set(args.scale), most = Vec::set(args.limit), least = Vec::set(-args.limit);
  for_rows(args.tokens, args.width, [&](int64_t t) {
    const float *x = args.x + t * args.x_stride, *other = args.other == nullptr ? nullptr : args.other + t * args.other_stride;
    float* y = args.y + t * args.width;
    for_vectors(args.width, [&](int64_t i, int64_t n) {
      Vec v = load_at(x + i, n) * scale;
      if (other != nullptr) v = v + load_at(other + i, n);
      store_at(bounded ? max(least, min(most, v)) : v, y + i, n);
    });
  });
}

}  // namespace
}  // namespace octavo
