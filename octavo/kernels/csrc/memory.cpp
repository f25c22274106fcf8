#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, bytes) ((void)(data), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(data, bytes) ((void)(data), (void)(bytes))
#endif

namespace octavo {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSlabBytes = size_t{64} << 20;
constexpr size_t kAlignment = 64;
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kGuard = 4096;  // between the pieces of a slab; touching it is an error
#else
constexpr size_t kGuard = 0;
#endif

size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

}  // namespace

class Slab {
 public:
  explicit Slab(size_t bytes) : size_(round_up(bytes, kHugePage)), mapped_(size_ + kHugePage) {
    void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    mapping_ = memory;
    base_ = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(memory), kHugePage));
#if defined(MADV_HUGEPAGE)
    madvise(base_, size_, MADV_HUGEPAGE);  // a hint: refusal costs speed only
#endif
    ASAN_POISON_MEMORY_REGION(mapping_, mapped_);
  }
  ~Slab() {
    ASAN_UNPOISON_MEMORY_REGION(mapping_, mapped_);
    munmap(mapping_, mapped_);
  }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  // Null if the piece, in whole cache lines, does not fit.
  void* take(size_t bytes) {
    const size_t lines = round_up(std::max<size_t>(bytes, 1), kAlignment) + kGuard;
    if (lines > size_ - used_) return nullptr;
    void* piece = base_ + used_;
    used_ += lines;
    ASAN_UNPOISON_MEMORY_REGION(piece, bytes);
    return piece;
  }

 private:
  size_t size_, mapped_, used_ = 0;
  void* mapping_;
  char* base_;
};

namespace {

std::mutex slab_mutex;
std::weak_ptr<Slab> open_slab;  // the one that small pieces come from

struct Buffer {
  void* data = nullptr;
  size_t bytes = 0;
  ~Buffer() { std::free(data); }
};

}  // namespace

Memory::Memory(size_t bytes) : size_(bytes) {
  const size_t needed = round_up(std::max<size_t>(bytes, 1), kAlignment) + kGuard;
  if (needed < bytes) throw std::bad_alloc();
  if (needed > kSlabBytes / 4) {
    slab_ = std::make_shared<Slab>(needed);
    data_ = slab_->take(bytes);
    return;
  }
  std::lock_guard<std::mutex> lock(slab_mutex);
  slab_ = open_slab.lock();
  data_ = slab_ ? slab_->take(bytes) : nullptr;
  if (data_ == nullptr) {
    slab_ = std::make_shared<Slab>(kSlabBytes);
    open_slab = slab_;
    data_ = slab_->take(bytes);
  }
}

void populate(const void* data, size_t bytes) {
#if defined(__linux__)
  constexpr int populate_read = 22;  // MADV_POPULATE_READ, Linux 5.14; older headers lack it
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = reinterpret_cast<uintptr_t>(data) / page * page;
  madvise(reinterpret_cast<void*>(first), reinterpret_cast<uintptr_t>(data) + bytes - first, populate_read);
#else
  (void)data, (void)bytes;
#endif
}

float* scratch(Slot slot, size_t floats) {
  thread_local Buffer buffers[2];
  Buffer& buffer = buffers[static_cast<int>(slot)];
  const size_t bytes = round_up(std::max<size_t>(floats, 1) * sizeof(float), 4096);
  if (buffer.bytes < bytes) {
    std::free(buffer.data);
    buffer.bytes = 0;
    buffer.data = std::aligned_alloc(4096, bytes);
    if (buffer.data == nullptr) throw std::bad_alloc();
    buffer.bytes = bytes;
  }
  ASAN_UNPOISON_MEMORY_REGION(buffer.data, buffer.bytes);
  ASAN_POISON_MEMORY_REGION(static_cast<float*>(buffer.data) + floats, buffer.bytes - floats * sizeof(float));
  return static_cast<float*>(buffer.data);
}

}  // namespace octavo
