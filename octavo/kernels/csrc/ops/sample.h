// Sampling of one token a row. The rules are stated at SampleArgs; what follows is how to reach the same decision without sorting a vocabulary.
//
// Noise: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox4x32-10).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../memory.h"
#include "../pool.h"

namespace octavo {
namespace {

struct NoiseKey {
  uint32_t seed_low, seed_high, index, position_low, position_high;
};

// Words of ``N`` blocks from ``first`` on, token by token: 4 N words. Plain loops over N, which the compiler turns into vectors unless it
// unrolls them first.
template <int N>
inline void philox(const NoiseKey& key, uint32_t first, uint32_t* words) {
  uint32_t c0[N], c1[N], c2[N], c3[N], k0 = key.seed_low, k1 = key.seed_high;
  for (int i = 0; i < N; ++i) c0[i] = first + static_cast<uint32_t>(i), c1[i] = key.index, c2[i] = key.position_low, c3[i] = key.position_high;
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
#pragma GCC unroll 1
    for (int i = 0; i < N; ++i) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[i], p1 = uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0, c1[i] = static_cast<uint32_t>(p1);
      c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1, c3[i] = static_cast<uint32_t>(p0);
    }
  }
  for (int i = 0; i < N; ++i) words[4 * i] = c0[i], words[4 * i + 1] = c1[i], words[4 * i + 2] = c2[i], words[4 * i + 3] = c3[i];
}

inline double gumbel(uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -std::log(-std::log(u));
}

// The best score seen so far; the lower id wins a tie.
struct Race {
  const NoiseKey& key;
  double score = -static_cast<double>(kInfinity);
  int64_t id = -1;

  void enter(int64_t token, double x, uint32_t word) {
    const double s = x + gumbel(word);
    if (s > score || (s == score && token < id)) score = s, id = token;
  }
  void enter(int64_t token, double x) {
    uint32_t words[4];
    philox<1>(key, static_cast<uint32_t>(token / 4), words);
    enter(token, x, words[token % 4]);
  }
};

struct Candidate {
  float x;
  int32_t id;
};
struct BetterCandidate {
  bool operator()(const Candidate& a, const Candidate& b) const { return a.x > b.x || (a.x == b.x && a.id < b.id); }
};

// x = logit / temperature with NaN as -inf; returns the maximum. ``x`` is padded to a multiple of 16 with -inf.
inline float temper(const float* logits, int64_t vocab, float temperature, float* x) {
  const Vec divisor = Vec::set(temperature), lowest = Vec::set(-kInfinity);
  Vec top = lowest;
  for (int64_t i = 0; i < vocab; i += kLanes) {
    const int64_t n = std::min(kLanes, vocab - i);
    const Vec v = n == kLanes ? Vec::load(logits + i) : keep_lanes(Vec::load_n(logits + i, n), 0, n, lowest);
    const Vec clean = max(v / divisor, lowest);  // the second argument if the first is NaN
    clean.store(x + i);
    top = max(top, clean);
  }
  return maximum(top);
}

inline int64_t first_equal(const float* x, int64_t count, float value) {
  for (int64_t i = 0; i < count; ++i) {
    if (x[i] == value) return i;
  }
  return -1;
}

inline int64_t count_at_least(const float* x, int64_t padded, float least) {
  Vec count[2] = {Vec::zero(), Vec::zero()};
  int64_t total = 0;
  for (int64_t i = 0; i < padded; i += kLanes) {
    count[i / kLanes % 2] = count[i / kLanes % 2] + select_less(Vec::load(x + i), Vec::set(least), Vec::zero(), Vec::set(1.0f));
    if (i % (1 << 22) == 0) total += static_cast<int64_t>(sum(count[0] + count[1])), count[0] = count[1] = Vec::zero();
  }
  return total + static_cast<int64_t>(sum(count[0] + count[1]));
}

// Appends the candidates with least <= x < below to the ``count`` there are. ``to`` has room for one more than the vocabulary.
inline int64_t collect(const float* x, int64_t vocab, float least, float below, Candidate* to, int64_t count) {
  for (int64_t first = 0; first < vocab; first += kLanes) {
    if (maximum(Vec::load(x + first)) < least) continue;
    for (int64_t i = first; i < std::min(vocab, first + kLanes); ++i) {
      to[count] = {x[i], static_cast<int32_t>(i)};
      count += x[i] >= least && x[i] < below ? 1 : 0;
    }
  }
  return count;
}

// Everything at least as large as the k-th largest, unsorted. Values: widen the distance from the maximum until k fit, then select among those.
inline int64_t keep_top_k(const float* x, int64_t vocab, int64_t padded, float top, int64_t k, Candidate* to) {
  float least = top;
  for (float distance = 1.0f; distance <= 1024.0f; distance *= 2.0f) {
    least = top - distance;
    if (count_at_least(x, padded, least) >= k) break;
    least = -kInfinity;
  }
  const int64_t count = collect(x, vocab, least, kInfinity, to, 0);
  if (count <= k) return count;
  std::nth_element(to, to + k - 1, to + count, BetterCandidate{});
  const float kth = to[k - 1].x;
  int64_t kept = k;  // those before are better; ties lie behind
  for (int64_t i = k; i < count; ++i) {
    if (to[i].x == kth) std::swap(to[kept++], to[i]);
  }
  return kept;
}

inline double weight(float x, float top) { return std::exp(static_cast<double>(x) - static_cast<double>(top)); }

// Length of the shortest prefix of the sorted candidates whose sum reaches ``target``; -1 if all of them together do not.
inline int64_t prefix_reaching(const Candidate* sorted, int64_t count, float top, double target) {
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    total += weight(sorted[i].x, top);
    if (total >= target) return i + 1;
  }
  return -1;
}

inline int64_t keep_top_p(Candidate* kept, int64_t count, float top, float top_p) {
  std::sort(kept, kept + count, BetterCandidate{});
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) total += weight(kept[i].x, top);
  const int64_t prefix = prefix_reaching(kept, count, top, static_cast<double>(top_p) * total);
  return prefix < 0 ? count : prefix;
}

// Sum of the weights of ``padded`` (a multiple of 16) values, in 16 partial sums by index. The exponential is a Taylor polynomial of degree 13
// on |r| <= ln 2 / 2 (error below 5e-18 before rounding); plain loops, which the compiler turns into vectors.
inline double total_weight(const float* x, int64_t padded, float top) {
  constexpr double terms[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                              1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       0.5,          1.0,         1.0};
  double sums[kLanes] = {};
  for (int64_t first = 0; first < padded; first += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) {
      const double t = static_cast<double>(x[first + i]) - static_cast<double>(top), clamped = t > -708.0 ? t : -708.0;
      const double shifted = clamped * 1.4426950408889634 + 0x1.8p52;  // the nearest integer n stands in the lowest bits
      const double n = shifted - 0x1.8p52, r = (clamped - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
      double y = terms[0];
      for (int term = 1; term < 14; ++term) y = y * r + terms[term];
      uint64_t bits;
      std::memcpy(&bits, &shifted, sizeof bits);
      bits = (bits << 52) + 0x3ff0000000000000u;
      double power;
      std::memcpy(&power, &bits, sizeof power);
      sums[i] += t > -708.0 ? y * power : 0.0;
    }
  }
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// Top-p over the whole vocabulary: widen the distance from the maximum until what lies within reaches the target, and sort only that.
inline int64_t keep_top_p_of_all(const float* x, int64_t vocab, int64_t padded, float top, float top_p, Candidate* to) {
  const double target = static_cast<double>(top_p) * total_weight(x, padded, top);
  double within = 0.0;
  int64_t count = 0, summed = 0;
  for (float near = -1.0f, far = 2.0f; near < 100.0f; near = far, far += std::max(1.0f, far / 8)) {
    count = collect(x, vocab, top - far, near < 0.0f ? kInfinity : top - near, to, count);
    for (; summed < count; ++summed) within += weight(to[summed].x, top);
    if (within < target) continue;
    std::sort(to, to + count, BetterCandidate{});
    const int64_t prefix = prefix_reaching(to, count, top, target);
    if (prefix > 0) return prefix;
    summed = count;
  }
  return keep_top_p(to, collect(x, vocab, -kInfinity, kInfinity, to, 0), top, top_p);
}

// Gumbel-max over the whole vocabulary. Since -log(-log u) <= -log(1 - u), a token can only win if 1 - u <= e^(x - score): one comparison of
// random words with weights, sixteen at a time, leaves few to compute exactly. The bound is widened by far more than its rounding.
inline int64_t race_all(const float* x, int64_t vocab, float top, const NoiseKey& key) {
  constexpr int64_t kChunk = 64;
  Race race{key};
  const int64_t favourite = first_equal(x, vocab, top);
  race.enter(favourite, x[favourite]);
  const auto scale_now = [&] { return static_cast<float>(0x1p31 * 1.001 * std::exp(static_cast<double>(top) - race.score)); };
  float scale = scale_now();
  for (int64_t first = 0; first < vocab; first += kChunk) {
    uint32_t words[kChunk];
    float rest[kChunk];  // 2^31 (1 - u), rounded
    philox<kChunk / 4>(key, static_cast<uint32_t>(first / 4), words);
    for (int64_t i = 0; i < kChunk; ++i) rest[i] = static_cast<float>(static_cast<int32_t>(~words[i] >> 1));
    for (int64_t i = first; i < std::min(vocab, first + kChunk); i += kLanes) {
      const Vec bound = fma(exp_nonpositive(Vec::load(x + i) - Vec::set(top)), Vec::set(scale), Vec::set(1.0f));
      if (maximum(bound - Vec::load(rest + i - first)) < 0.0f) continue;
      for (int64_t j = i; j < std::min(vocab, i + kLanes); ++j) {
        if (x[j] > -kInfinity) race.enter(j, x[j], words[j - first]);
      }
      scale = scale_now();
    }
  }
  return race.id;
}

inline int64_t sample_row(const SampleArgs& args, int64_t r) {
  const float* logits = args.logits + r * args.stride;
  const int64_t vocab = args.vocab, padded = (vocab + kLanes - 1) / kLanes * kLanes;
  const bool greedy = args.temperature[r] < 1e-5f;
  float* x = scratch(Slot::task, static_cast<size_t>(padded + 2 * (vocab + 1)));
  auto* kept = reinterpret_cast<Candidate*>(x + padded);
  const float top = temper(logits, vocab, greedy ? 1.0f : args.temperature[r], x);
  if (top == -kInfinity) return -1;
  if (greedy || top == kInfinity) return first_equal(x, vocab, top);
  const NoiseKey key{static_cast<uint32_t>(args.seed[r]), static_cast<uint32_t>(args.seed[r] >> 32), args.index[r],
                     static_cast<uint32_t>(args.position[r]), static_cast<uint32_t>(args.position[r] >> 32)};
  const bool use_k = args.top_k[r] > 0 && args.top_k[r] < vocab, use_p = args.top_p[r] < 1.0f;
  const double min_p = static_cast<double>(args.min_p[r]);
  if (!use_k && !use_p && min_p <= 0.0) return race_all(x, vocab, top, key);
  int64_t count;
  if (use_k) {
    count = keep_top_k(x, vocab, padded, top, args.top_k[r], kept);
    if (use_p) count = keep_top_p(kept, count, top, args.top_p[r]);
  } else if (use_p) {
    count = keep_top_p_of_all(x, vocab, padded, top, args.top_p[r], kept);
  } else {  // nothing below log(min_p), with room for rounding, can pass
    count = collect(x, vocab, top + static_cast<float>(std::log(min_p)) - 1e-3f * (1.0f + std::fabs(top)), kInfinity, kept, 0);
  }
  Race race{key};
  for (int64_t i = 0; i < count; ++i) {
    if (min_p <= 0.0 || weight(kept[i].x, top) >= min_p) race.enter(kept[i].id, kept[i].x);
  }
  return race.id;
}

inline void sample(const SampleArgs& args) {
  parallel_for(args.rows, [&](int64_t r) { args.out[r] = sample_row(args, r); });
}

}  // namespace
}  // namespace octavo
