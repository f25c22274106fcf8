// Kernel calls recorded once and replayed over the same memory, without the interpreter between them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace octavo {

// While a program records, every call that its thread makes through submit() is kept besides being done.
class Program {
 public:
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { stop(); }

  void start() { recording() = this; }
  void stop() {
    if (recording() == this) recording() = nullptr;
  }
  // Repeats the calls in order. Their memory must be what it was while they were recorded; two runs must not overlap.
  void run() const {
    for (const Call& call : calls_) call.work();
  }
  // The same, with the name of each call and the nanoseconds it took.
  std::vector<std::pair<const char*, int64_t>> profile() const {
    std::vector<std::pair<const char*, int64_t>> times;
    times.reserve(calls_.size());
    for (const Call& call : calls_) {
      const auto began = std::chrono::steady_clock::now();
      call.work();
      times.emplace_back(call.name, std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count());
    }
    return times;
  }
  size_t size() const { return calls_.size(); }

 private:
  struct Call {
    const char* name;
    std::function<void()> work;
  };

  template <class Work>
  friend void submit(const char* name, Work work);

  static Program*& recording() {
    static thread_local Program* current = nullptr;
    return current;
  }

  std::vector<Call> calls_;
};

template <class Work>
void submit(const char* name, Work work) {
  work();
  if (Program* program = Program::recording()) program->calls_.push_back({name, std::move(work)});
}

}  // namespace octavo
