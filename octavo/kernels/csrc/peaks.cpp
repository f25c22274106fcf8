#include "peaks.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>
#include <vector>

#include "memory.h"
#include "pool.h"

namespace octavo {
namespace {

constexpr int kRounds = 5;
constexpr size_t kLine = 8;  // words of a cache line

const PeakSet& peak_set(const std::string& name) {
  static const std::pair<const char*, const PeakSet*> sets[] = {
      {"generic", &generic_peaks},
#if defined(OCTAVO_X86_64)
      {"avx2", &avx2_peaks}, {"avxvnni", &avxvnni_peaks}, {"avx512", &avx512_peaks}, {"avx512vnni", &avx512vnni_peaks},
#endif
  };
  for (const auto& [known, set] : sets) {
    if (name == known) return *set;
  }
  throw std::invalid_argument("no peaks are known for kernel set \"" + name + "\"");
}

struct alignas(64) Share {
  std::chrono::steady_clock::time_point begin, end;
  double done = 0;
  alignas(64) char sink[64];
};

// Work a second of all threads together; bout(thread, sink) does some and says how much.
template <class Bout>
double best_rate(double seconds, const Bout& bout) {
  using clock = std::chrono::steady_clock;
  const int threads = num_threads();
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<Share> shares(static_cast<size_t>(threads));
    parallel_for(threads, [&](int64_t thread) {
      Share& share = shares[static_cast<size_t>(thread)];
      share.begin = clock::now();
      do {
        share.done += bout(thread, share.sink);
        share.end = clock::now();
      } while (share.end - share.begin < std::chrono::duration<double>(seconds));
    });
    double done = 0;
    clock::time_point begin = shares[0].begin, end = shares[0].end;
    for (const Share& share : shares) {
      done += share.done;
      begin = std::min(begin, share.begin);
      end = std::max(end, share.end);
    }
    best = std::max(best, done / std::chrono::duration<double>(end - begin).count());
  }
  return best;
}

}  // namespace

Peaks measure_peaks(const std::string& name, size_t bytes, double seconds) {
  const PeakSet& set = peak_set(name);
  const auto threads = static_cast<size_t>(num_threads());
  const size_t count = bytes / sizeof(uint64_t) / threads / kLine * kLine;
  if (count == 0 || !(seconds > 0)) throw std::invalid_argument("peaks need a cache line a thread and a positive time");
  const Memory memory(threads * count * sizeof(uint64_t));
  auto* data = static_cast<uint64_t*>(memory.data());
  const auto share = [&](int64_t thread) { return data + static_cast<size_t>(thread) * count; };
  parallel_for(static_cast<int64_t>(threads), [&](int64_t thread) { std::fill_n(share(thread), count, static_cast<uint64_t>(thread) + 1); });
  Peaks peaks{};
  peaks.read = best_rate(seconds, [&](int64_t thread, char* sink) {
    *reinterpret_cast<volatile uint64_t*>(sink) = set.read(share(thread), count);
    return static_cast<double>(count * sizeof(uint64_t));
  });
  peaks.floats = best_rate(seconds, [&](int64_t, char* sink) { return set.floats(reinterpret_cast<float*>(sink)); });
  peaks.ints = best_rate(seconds, [&](int64_t, char* sink) { return set.ints(reinterpret_cast<int32_t*>(sink)); });
  return peaks;
}

}  // namespace octavo
