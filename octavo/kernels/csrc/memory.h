// Memory of weights (huge pages, freed as a whole) and scratch of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace octavo {

class Slab;

// A piece of a slab, 64-byte aligned, uninitialized. Small pieces share slabs, so that a model of many small matrices still lies in huge pages;
// a slab is returned to the system when its last piece is gone.
class Memory {
 public:
  explicit Memory(size_t bytes);
  void* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::shared_ptr<Slab> slab_;
  void* data_;
  size_t size_;
};

// Map the pages of a memory-mapped file at once, which costs far less than a fault for each. A hint: without support nothing happens.
void populate(const void* data, size_t bytes);

// Buffers of the calling thread, 64-byte aligned, valid until its next call with the same slot; they grow and are kept.
// Slot 0 belongs to the caller of an operation (shared with its tasks), slot 1 to a task.
enum class Slot { shared = 0, task = 1 };
float* scratch(Slot slot, size_t floats);

}  // namespace octavo
