#include "pool.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace octavo {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int64_t kMaxTasks = int64_t{1} << 31;
// Longer than the gaps between the operations of a step, shorter than anyone notices.
constexpr std::chrono::microseconds kSpin{80};

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  explicit Pool(int threads) {
    try {
      for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
    } catch (...) {  // the system refused a thread: end those that started
      stop();
      throw;
    }
  }
  ~Pool() { stop(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // False if the pool is busy; then nothing was done.
  bool run(int64_t count, Task task, void* context) {
    if (busy_.exchange(true, std::memory_order_acquire)) return false;
    task_ = task, context_ = context, count_ = count, error_ = nullptr;
    failed_.store(false, std::memory_order_relaxed);
    unfinished_.store(count, std::memory_order_relaxed);
    const uint64_t generation = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store((generation << 32) | static_cast<uint64_t>(count));
    wake(count - 1);
    while (take()) {
    }
    await();
    std::exception_ptr error = std::move(error_);
    error_ = nullptr;
    busy_.store(false, std::memory_order_release);
    if (error) std::rethrow_exception(error);
    return true;
  }

 private:
  static uint32_t unclaimed(uint64_t ticket) { return static_cast<uint32_t>(ticket); }

  // Claims and does one task. The generation in the upper half makes a stale claim fail; after a claim the job cannot end before we do.
  bool take() {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (unclaimed(ticket) != 0) {
      if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      try {
        task_(context_, count_ - static_cast<int64_t>(unclaimed(ticket)));
      } catch (...) {
        if (!failed_.exchange(true)) error_ = std::current_exception();
      }
      unfinished_.fetch_sub(1, std::memory_order_acq_rel);
      return true;
    }
    return false;
  }

  void work() {
    for (;;) {
      while (take()) {
      }
      if (!spin()) {
        std::unique_lock<std::mutex> lock(sleep_);
        sleepers_.fetch_add(1);
        wake_.wait(lock, [this] { return stopping_ || unclaimed(ticket_.load()) != 0; });
        sleepers_.fetch_sub(1);
        if (stopping_) return;
      }
    }
  }

  // True as soon as there is work, false when none came for a while.
  bool spin() {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 32; ++i) {
        if (unclaimed(ticket_.load(std::memory_order_relaxed)) != 0) return true;
        relax();
      }
    } while (std::chrono::steady_clock::now() < end);
    return false;
  }

  void wake(int64_t wanted) {
    if (wanted <= 0 || sleepers_.load() == 0) return;
    std::lock_guard<std::mutex> lock(sleep_);
    if (wanted >= sleepers_.load()) {
      wake_.notify_all();
    } else {
      for (int64_t i = 0; i < wanted; ++i) wake_.notify_one();
    }
  }

  // Waits for tasks that other threads still have in hand; gives the core away if they take long.
  void await() {
    for (int64_t spins = 0; unfinished_.load(std::memory_order_acquire) != 0; ++spins) {
      if (spins < 20000) {
        relax();
      } else {
        std::this_thread::yield();
      }
    }
  }

  void stop() {
    {
      std::lock_guard<std::mutex> lock(sleep_);
      stopping_ = true;
      wake_.notify_all();
    }
    for (auto& worker : workers_) worker.join();
  }

  alignas(64) std::atomic<uint64_t> ticket_{0};  // generation << 32 | tasks not yet claimed
  alignas(64) std::atomic<int64_t> unfinished_{0};
  alignas(64) std::atomic<bool> busy_{false};
  std::atomic<bool> failed_{false};
  Task task_ = nullptr;
  void* context_ = nullptr;
  int64_t count_ = 0;
  std::exception_ptr error_;
  std::mutex sleep_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

// Never destroyed: at exit the workers may be asleep on it.
struct State {
  std::mutex mutex;
  std::shared_ptr<Pool> pool;
  int threads = 0;
};

State& state() {
  static State* instance = new State;
  return *instance;
}

// In a forked child the workers are gone. Their pool is abandoned, its memory included, and a new one starts at the next run.
void register_fork_handlers() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { state().mutex.lock(); }, [] { state().mutex.unlock(); },
                   [] {
                     new std::shared_ptr<Pool>(std::move(state().pool));
                     state().pool = nullptr;
                     state().mutex.unlock();
                   });
  });
}

int chosen_threads(State& s) {
  if (s.threads == 0) s.threads = available_cores();
  return s.threads;
}

std::shared_ptr<Pool> current_pool() {
  State& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  const int threads = chosen_threads(s);
  if (threads == 1) return nullptr;
  if (!s.pool) {
    register_fork_handlers();
    s.pool = std::make_shared<Pool>(threads);
  }
  return s.pool;
}

}  // namespace

void run_tasks(int64_t count, Task task, void* context) {
  if (count <= 0) return;
  if (count >= kMaxTasks) throw std::length_error("too many tasks in one run");
  if (count > 1) {
    const std::shared_ptr<Pool> pool = current_pool();
    if (pool && pool->run(count, task, context)) return;
  }
  for (int64_t i = 0; i < count; ++i) task(context, i);
}

int num_threads() {
  State& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  return chosen_threads(s);
}

void set_num_threads(int count) {
  if (count < 0 || count > kMaxThreads) {
    throw std::invalid_argument("threads must be between 0 and " + std::to_string(kMaxThreads) + ", got " + std::to_string(count));
  }
  State& s = state();
  std::shared_ptr<Pool> old;  // joined after the lock is gone
  std::lock_guard<std::mutex> lock(s.mutex);
  const int wanted = count == 0 ? available_cores() : count;
  if (wanted == s.threads) return;
  s.threads = wanted;
  old = std::move(s.pool);
  s.pool = nullptr;
}

}  // namespace octavo
