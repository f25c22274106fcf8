// Norm, rotary embedding and gated activations. Rows are independent; tails use masked loads with the same arithmetic as full vectors.
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

inline void norm_row(const NormArgs& args, int64_t row) {
  const float* x = args.x + row / args.inner * args.x_stride + row % args.inner * args.width;
  float* out = args.out + row * args.width;
  Vec squares[4] = {Vec::zero(), Vec::zero(), Vec::zero(), Vec::zero()};  // vector i goes to sum i % 4
  const float* s = x;
  if (args.residual != nullptr) {
    const float* residual = args.residual + row * args.width;
    float* sum = args.sum + row * args.width;
    for_vectors(args.width, [&](int64_t i, int64_t n) { store_at(load_at(x + i, n) + load_at(residual + i, n), sum + i, n); });
    s = sum;
  }
  for_vectors(args.width, [&](int64_t i, int64_t n) {
    const Vec v = load_at(s + i, n);
    Vec& to = squares[i / kLanes % 4];
    to = fma(v, v, to);
  });
  const float mean = sum((squares[0] + squares[1]) + (squares[2] + squares[3])) / static_cast<float>(args.width);
  const Vec inverse = Vec::set(1.0f / std::sqrt(mean + args.eps));
  for_vectors(args.width, [&](int64_t i, int64_t n) { store_at((load_at(s + i, n) * inverse) * load_at(args.weight + i, n), out + i, n); });
}

inline void norm(const NormArgs& args) {
  for_rows(args.outer * args.inner, args.width, [&](int64_t row) { norm_row(args, row); });
}

inline void rotate_heads(float* x, int64_t heads, int64_t head_dim, const float* cosines, const float* sines, int64_t half) {
  for (int64_t h = 0; h < heads; ++h, x += head_dim) {
    for_vectors(half, [&](int64_t i, int64_t n) {
      const Vec a = load_at(x + i, n), b = load_at(x + half + i, n), c = load_at(cosines + i, n), s = load_at(sines + i, n);
      store_at(a * c - b * s, x + i, n);
      store_at(b * c + a * s, x + half + i, n);
    });
  }
}

inline void rope(const RopeArgs& args) {
  for_rows(args.tokens, (args.heads + args.kv_heads) * args.head_dim, [&](int64_t t) {
    const float* row = args.table + args.positions[t] * args.rot;
    const int64_t half = args.rot / 2;
    rotate_heads(args.q + t * args.q_stride, args.heads, args.head_dim, row, row + half, half);
    rotate_heads(args.k + t * args.k_stride, args.kv_heads, args.head_dim, row, row + half, half);
  });
}

inline Vec silu(Vec x) { return x / (Vec::set(1.0f) + exp(Vec::zero() - x)); }
inline Vec gelu(Vec x) { return x * normal_cdf(x); }
// D. Hendrycks, K. Gimpel, "Gaussian error linear units", 2016: (1 + tanh u) / 2 = 1 / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
inline Vec gelu_tanh(Vec x) {
  const Vec minus_2u = fma((x * x) * x, Vec::set(0.044715f), x) * Vec::set(-1.5957691216057308f);
  return x / (Vec::set(1.0f) + exp(minus_2u));
}

template <class F>
inline void act_mul_with(const ActMulArgs& args, const F& act) {
  constexpr int64_t piece = 512;  // a wide row is shared by several tasks
  const int64_t pieces = (args.features + piece - 1) / piece;
  for_rows(args.tokens * pieces, piece, [&](int64_t task) {
    const int64_t t = task / pieces, first = task % pieces * piece;
    const float *gate = args.x + t * args.x_stride + first, *up = gate + args.features;
    float* y = args.y + t * args.features + first;
    const auto vector = [&](int64_t i, int64_t n) { store_at(act(load_at(gate + i, n)) * load_at(up + i, n), y + i, n); };
    for_vectors(std::min(piece, args.features - first), vector);
  });
}

inline void act_mul(const ActMulArgs& args) {
  switch (args.kind) {
    case Activation::silu: return act_mul_with(args, [](Vec x) { return silu(x); });
    case Activation::gelu: return act_mul_with(args, [](Vec x) { return gelu(x); });
    case Activation::gelu_tanh: return act_mul_with(args, [](Vec x) { return gelu_tanh(x); });
  }
}

inline void take(const TakeArgs& args) {
  for_rows(args.tokens, args.width, [&](int64_t t) {
    const float* x = args.x + t * args.x_stride;
    float* y = args.y + t * args.width;
    for (int64_t k = 0; k < args.width; ++k) y[k] = x[args.columns[k]];
  });
}

inline void add_bias(const BiasArgs& args) {
  for_rows(args.tokens, args.width, [&](int64_t t) {
    float* y = args.y + t * args.width;
    for_vectors(args.width, [&](int64_t i, int64_t n) { store_at(load_at(y + i, n) + load_at(args.bias + i, n), y + i, n); });
  });
}

}  // namespace
}  // namespace octavo
