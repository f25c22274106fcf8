// Paged attention: one kernel for prefill, chunks and decode.
//
// Order of reduction for a (token, head), whatever else is in the call: see AttentionArgs. Online softmax: M. Milakov, N. Gimelshein, "Online
// normalizer calculation for softmax", 2018; splits: T. Dao et al., "Flash-Decoding", 2023; pages: W. Kwon et al., "Efficient memory
// management for large language model serving with PagedAttention", SOSP 2023.
//
// Work is cut into query tiles: some tokens of one row by some heads of one key/value head ("queries" below, tokens outermost). When there
// are fewer tiles than threads can share, the splits of a tile become tasks of their own and are combined afterwards.
#pragma once

#include <algorithm>
#include <cstring>

#include "../memory.h"
#include "../pool.h"
#include "attention_cache.h"
#include "attention_tiles.h"

namespace octavo {
namespace {

constexpr int64_t kSplit = 512;     // positions that share a softmax state; a multiple of kTile
constexpr int64_t kMaxQueries = 32;  // of a query tile

// Running softmax of some queries: maximum, sum of weights and weighted sum of values, [queries][padded D].
struct Softmax {
  float *maximum, *total, *out;

  static int64_t floats(int64_t queries, int64_t padded) { return queries * (padded + 2); }
  static Softmax at(float* memory, int64_t queries, int64_t padded) {
    return {memory + queries * padded, memory + queries * padded + queries, memory};
  }
  void clear(int64_t queries, int64_t padded) const {
    std::memset(out, 0, static_cast<size_t>(queries * padded) * sizeof(float));
    for (int64_t i = 0; i < queries; ++i) maximum[i] = -kInfinity, total[i] = 0.0f;
  }
};

inline float exp_one(float x) {
  float y[kLanes];
  exp_nonpositive(Vec::set(x)).store(y);
  return y[0];
}

inline void scale_row(float* row, int64_t padded, float factor) {
  const Vec f = Vec::set(factor);
  for (int64_t d = 0; d < padded; d += kLanes) (Vec::load(row + d) * f).store(row + d);
}

// One query's state of a later split into the sum of the earlier ones.
inline void combine(const Softmax& sum, const Softmax& part, int64_t i, int64_t padded) {
  if (part.total[i] == 0.0f) return;  // it saw no key there
  float *to = sum.out + i * padded, *from = part.out + i * padded;
  if (sum.total[i] == 0.0f) {
    std::memcpy(to, from, static_cast<size_t>(padded) * sizeof(float));
    sum.maximum[i] = part.maximum[i], sum.total[i] = part.total[i];
    return;
  }
  const float top = std::max(sum.maximum[i], part.maximum[i]), a = exp_one(sum.maximum[i] - top), b = exp_one(part.maximum[i] - top);
  const Vec va = Vec::set(a), vb = Vec::set(b);
  for (int64_t d = 0; d < padded; d += kLanes) fma(Vec::load(from + d), vb, Vec::load(to + d) * va).store(to + d);
  sum.total[i] = sum.total[i] * a + part.total[i] * b;
  sum.maximum[i] = top;
}

struct QueryTile {
  int64_t row, token, tokens;  // token: first of the tile within the step
  int64_t head, heads;         // query heads of one key/value head
  int64_t first_split, splits;
};

// Scratch and steps of one query tile.
class QueryTask {
 public:
  QueryTask(const AttentionArgs& args, const QueryTile& tile)
      : args_(args), tile_(tile), view_{args, args.tables + tile.row * args.table_stride, tile.head / (args.heads / args.kv_heads)},
        queries_(tile.tokens * tile.heads), padded_((args.head_dim + kLanes - 1) / kLanes * kLanes),
        first_position_(args.starts[tile.row] + tile.token - args.offsets[tile.row]), end_(first_position_ + tile.tokens) {
    const int64_t state = Softmax::floats(queries_, padded_);
    float* memory = scratch(Slot::task, static_cast<size_t>(2 * state + queries_ * (args.head_dim + kTile) + 2 * kTile * args.head_dim));
    part_ = Softmax::at(memory, queries_, padded_), sum_ = Softmax::at(memory + state, queries_, padded_);
    q_ = memory + 2 * state, weights_ = q_ + queries_ * args.head_dim, keys_ = weights_ + queries_ * kTile, values_ = keys_ + kTile * args.head_dim;
    for (int64_t i = 0; i < queries_; ++i) {
      const float* from = args.q + (tile.token + i / tile.heads) * args.q_stride + (tile.head + i % tile.heads) * args.head_dim;
      std::memcpy(q_ + i * args.head_dim, from, static_cast<size_t>(args.head_dim) * sizeof(float));
    }
  }

  // All splits, then the result.
  void run() {
    sum_.clear(queries_, padded_);
    for (int64_t s = 0; s < tile_.splits; ++s) {
      run_split(s, part_);
      for (int64_t i = 0; i < queries_; ++i) combine(sum_, part_, i, padded_);
    }
    finish(sum_);
  }

  void run_split(int64_t s, const Softmax& state) {
    const int64_t first = (tile_.first_split + s) * kSplit, last = std::min(first + kSplit, end_);
    state.clear(queries_, padded_);
    for (int64_t base = first; base < last; base += kTile) run_tile(base, state);
  }

  void run_combine(float* parts) {
    const int64_t size = Softmax::floats(queries_, padded_);
    sum_.clear(queries_, padded_);
    for (int64_t s = 0; s < tile_.splits; ++s) {
      for (int64_t i = 0; i < queries_; ++i) combine(sum_, Softmax::at(parts + s * size, queries_, padded_), i, padded_);
    }
    finish(sum_);
  }

 private:
  int64_t position(int64_t query) const { return first_position_ + query / tile_.heads; }
  // Visible keys of a query within a tile of positions: [low, high), empty if high <= low.
  int64_t low(int64_t query, int64_t base) const { return args_.window > 0 ? std::max<int64_t>(0, position(query) - args_.window + 1 - base) : 0; }
  int64_t high(int64_t query, int64_t base) const { return std::min(kTile, position(query) + 1 - base); }

  void run_tile(int64_t base, const Softmax& state) {
    // Later queries see later keys, so those that see something here are neighbours.
    int64_t begin = 0, end = queries_;
    while (begin < end && high(begin, base) <= 0) ++begin;
    while (end > begin && low(end - 1, base) >= kTile) --end;
    if (begin == end) return;
    const int64_t first = low(begin, base) / kLanes, last = (high(end - 1, base) + kLanes - 1) / kLanes;
    const float *keys[kTileVectors], *values[kTile];
    for (int64_t v = first; v < last; ++v) keys[v] = view_.keys(base + v * kLanes, end_, keys_ + v * kLanes * args_.head_dim);
    view_.values(base, low(begin, base), high(end - 1, base), values_, values);
    for (int64_t i = begin; i < end; i += kAttentionRows) {
      const int64_t rows = std::min<int64_t>(kAttentionRows, end - i);
      score(i, rows, keys, first, last);
      for (int64_t r = i; r < i + rows; ++r) weigh(r, base, first, last, state);
      accumulate(i, rows, base, values, state);
    }
  }

  void score(int64_t i, int64_t rows, const float* const* keys, int64_t first, int64_t last) {
    const auto& tiles = kAttentionTiles[static_cast<size_t>(rows - 1)].score;
    const int64_t widest = attention_vectors(static_cast<int>(rows));
    for (int64_t v = first; v < last; v += widest) {
      const int64_t n = std::min(widest, last - v);
      tiles[static_cast<size_t>(n - 1)](q_ + i * args_.head_dim, args_.head_dim, keys + v, weights_ + i * kTile + v * kLanes);
    }
  }

  // Scores of a query become weights; its running sums are brought to the new maximum.
  void weigh(int64_t i, int64_t base, int64_t first, int64_t last, const Softmax& state) {
    const int64_t low_key = low(i, base), high_key = high(i, base);
    if (high_key <= low_key) return;
    const Vec scale = Vec::set(args_.scale), hidden = Vec::set(-kInfinity);
    Vec s[kTileVectors] = {hidden, hidden, hidden, hidden};
    for (int64_t v = std::max(first, low_key / kLanes); v < std::min(last, (high_key + kLanes - 1) / kLanes); ++v) {
      Vec x = Vec::load(weights_ + i * kTile + v * kLanes) * scale;
      if (args_.softcap > 0.0f) x = tanh(x / Vec::set(args_.softcap)) * Vec::set(args_.softcap);
      if (args_.slopes != nullptr) {
        const Vec distance = Vec::lanes() + Vec::set(static_cast<float>(base + v * kLanes - position(i)));
        x = fma(distance, Vec::set(args_.slopes[tile_.head + i % tile_.heads]), x);
      }
      s[v] = keep_lanes(x, low_key - v * kLanes, high_key - v * kLanes, hidden);
    }
    const float before = state.maximum[i], top = std::max(before, maximum(max(max(s[0], s[1]), max(s[2], s[3]))));
    if (top == -kInfinity) {  // every score is -inf: such keys have no weight
      for (int64_t v = 0; v < kTileVectors; ++v) Vec::zero().store(weights_ + i * kTile + v * kLanes);
      return;
    }
    const Vec shift = Vec::set(top);
    for (int64_t v = 0; v < kTileVectors; ++v) {
      s[v] = exp_nonpositive(s[v] - shift);
      s[v].store(weights_ + i * kTile + v * kLanes);
    }
    const float total = sum((s[0] + s[1]) + (s[2] + s[3]));
    if (top != before) {
      const float factor = before == -kInfinity ? 0.0f : exp_one(before - top);
      state.total[i] *= factor;
      scale_row(state.out + i * padded_, padded_, factor);
      state.maximum[i] = top;
    }
    state.total[i] += total;
  }

  // Adds the values that queries i .. i + rows - 1 see. A hidden value is never read: it may belong to another request, or be NaN.
  void accumulate(int64_t i, int64_t rows, int64_t base, const float* const* values, const Softmax& state) {
    const int64_t end = i + rows, shared_low = low(end - 1, base), shared_high = high(i, base);
    if (shared_high <= shared_low) {
      for (int64_t r = i; r < end; ++r) add_values(r, 1, low(r, base), high(r, base), values, state);
      return;
    }
    for (int64_t r = i; r < end; ++r) add_values(r, 1, low(r, base), shared_low, values, state);
    add_values(i, rows, shared_low, shared_high, values, state);
    for (int64_t r = i; r < end; ++r) add_values(r, 1, shared_high, high(r, base), values, state);
  }

  void add_values(int64_t i, int64_t rows, int64_t low_key, int64_t high_key, const float* const* values, const Softmax& state) {
    if (high_key <= low_key) return;
    const auto& tiles = kAttentionTiles[static_cast<size_t>(rows - 1)].value;
    const int64_t widest = attention_vectors(static_cast<int>(rows)), vectors = padded_ / kLanes;
    for (int64_t v = 0; v < vectors; v += widest) {
      const int64_t n = std::min(widest, vectors - v), d = v * kLanes, tail = v + n == vectors ? args_.head_dim - (vectors - 1) * kLanes : kLanes;
      tiles[static_cast<size_t>(n - 1)](weights_ + i * kTile, values, low_key, high_key, state.out + i * padded_ + d, padded_, d, tail);
    }
  }

  void finish(const Softmax& state) {
    for (int64_t i = 0; i < queries_; ++i) {
      float* to = args_.out + ((tile_.token + i / tile_.heads) * args_.heads + tile_.head + i % tile_.heads) * args_.head_dim;
      const Vec total = Vec::set(state.total[i]);
      for (int64_t d = 0; d < args_.head_dim; d += kLanes) {
        (Vec::load(state.out + i * padded_ + d) / total).store_n(to + d, std::min(kLanes, args_.head_dim - d));
      }
    }
  }

  const AttentionArgs& args_;
  const QueryTile& tile_;
  const CacheView view_;
  const int64_t queries_, padded_, first_position_, end_;
  Softmax part_, sum_;
  float *q_, *weights_, *keys_, *values_;
};

// Calls f for every query tile of the step.
template <class F>
inline void for_query_tiles(const AttentionArgs& args, const F& f) {
  const int64_t group_heads = args.heads / args.kv_heads, heads = std::min(group_heads, kMaxQueries);
  const int64_t tokens = std::max<int64_t>(1, kMaxQueries / heads);
  for (int64_t row = 0; row < args.rows; ++row) {
    const int64_t end = args.offsets[row + 1];
    for (int64_t t = args.offsets[row]; t < end; t += tokens) {
      const int64_t count = std::min(tokens, end - t), position = args.starts[row] + t - args.offsets[row];
      const int64_t oldest = args.window > 0 ? std::max<int64_t>(0, position - args.window + 1) : 0;
      const int64_t first = oldest / kSplit, splits = (position + count - 1) / kSplit - first + 1;
      for (int64_t g = 0; g < args.kv_heads; ++g) {
        for (int64_t h = 0; h < group_heads; h += heads) {
          f(QueryTile{row, t, count, g * group_heads + h, std::min(heads, group_heads - h), first, splits});
        }
      }
    }
  }
}

// A growing array without the standard library: its functions compiled for this instruction set must not be shared with other units.
template <class T>
class List {
 public:
  List() = default;
  List(const List&) = delete;
  List& operator=(const List&) = delete;
  ~List() { ::operator delete(data_); }
  void add(const T& item) {
    if (size_ == capacity_) {
      const int64_t capacity = std::max<int64_t>(64, 2 * capacity_);
      T* data = static_cast<T*>(::operator new(static_cast<size_t>(capacity) * sizeof(T)));
      if (size_ > 0) std::memcpy(data, data_, static_cast<size_t>(size_) * sizeof(T));
      ::operator delete(data_);
      data_ = data, capacity_ = capacity;
    }
    data_[size_++] = item;
  }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0, capacity_ = 0;
};

struct SplitTask {
  int64_t tile, split, memory;  // memory: floats before its state
};

inline void attend_by_splits(const AttentionArgs& args, const List<QueryTile>& tiles) {
  List<SplitTask> tasks;
  int64_t memory = 0;
  const int64_t padded = (args.head_dim + kLanes - 1) / kLanes * kLanes;
  for (int64_t i = 0; i < tiles.size(); ++i) {
    const int64_t size = Softmax::floats(tiles[i].tokens * tiles[i].heads, padded);
    for (int64_t s = 0; s < tiles[i].splits; ++s, memory += size) tasks.add({i, s, memory});
  }
  float* parts = scratch(Slot::shared, static_cast<size_t>(memory));
  parallel_for(tasks.size(), [&](int64_t t) {
    const QueryTile& tile = tiles[tasks[t].tile];
    QueryTask(args, tile).run_split(tasks[t].split, Softmax::at(parts + tasks[t].memory, tile.tokens * tile.heads, padded));
  });
  parallel_for(tasks.size(), [&](int64_t t) {
    if (tasks[t].split == 0) QueryTask(args, tiles[tasks[t].tile]).run_combine(parts + tasks[t].memory);
  });
}

inline void attention(const AttentionArgs& args) {
  if (args.tokens * args.kv_heads * args.head_dim < 16384) {
    for (int64_t r = 0; r < args.rows; ++r) store_kv(args, r);
  } else {
    parallel_for(args.rows, [&](int64_t r) { store_kv(args, r); });
  }
  List<QueryTile> tiles;
  int64_t splits = 0;
  for_query_tiles(args, [&](const QueryTile& tile) {
    tiles.add(tile);
    splits += tile.splits;
  });
  const int64_t threads = num_threads();
  if (threads > 1 && tiles.size() < 4 * threads && splits > tiles.size()) {
    attend_by_splits(args, tiles);
  } else {
    // Later tiles of a long row see more keys: hand them out first.
    parallel_for(tiles.size(), [&](int64_t i) { QueryTask(args, tiles[tiles.size() - 1 - i]).run(); });
  }
}

}  // namespace
}  // namespace octavo
