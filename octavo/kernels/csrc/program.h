// Kernel calls recorded once and replayed over the same memory, without the interpreter between them.
#pragma once

#include <cstddef>
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
    for (const auto& call : calls_) call();
  }
  size_t size() const { return calls_.size(); }

 private:
  template <class Call>
  friend void submit(Call call);

  static Program*& recording() {
    static thread_local Program* current = nullptr;
    return current;
  }

  std::vector<std::function<void()>> calls_;
};

template <class Call>
void submit(Call call) {
  call();
  if (Program* program = Program::recording()) program->calls_.emplace_back(std::move(call));
}

}  // namespace octavo
