// Python module octavo._native: raw pointers and strides in, the GIL released while a kernel runs. octavo/backend/cpu.py is its one caller and
// checks dtypes, shapes and layouts; what could corrupt memory and is cheap to check is checked again here. The operations of a model's step go
// through submit(), so that a Program can record them; what depends on the numbers in their memory is checked inside it, at every replay.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "cpu.h"
#include "kernels.h"
#include "memory.h"
#include "peaks.h"
#include "pool.h"
#include "program.h"

namespace nb = nanobind;
using namespace octavo;

namespace {

template <class T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

void require(bool ok, const std::string& message) {
  if (!ok) throw std::invalid_argument(message);
}

void check_range(const int64_t* values, int64_t count, int64_t end, const char* what) {
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] < 0 || values[i] >= end) {
      throw std::out_of_range(std::string(what) + " " + std::to_string(values[i]) + " is outside 0 .. " + std::to_string(end - 1));
    }
  }
}

Element element_of(int32_t number, Element last = Element::bf16) {
  require(number >= 0 && number <= static_cast<int32_t>(last), "unknown element number " + std::to_string(number));
  return static_cast<Element>(number);
}

void matmul(uintptr_t x, uintptr_t panels, uintptr_t y, int64_t x_stride, int64_t y_stride, int64_t tokens, int64_t outputs, int64_t inputs,
            int32_t element) {
  require(tokens >= 0 && outputs >= 0 && inputs > 0, "matmul needs tokens, outputs >= 0 and inputs > 0");
  const MatmulArgs args{pointer<const float>(x), pointer<const void>(panels), pointer<float>(y), x_stride, y_stride, tokens, outputs, inputs,
                        element_of(element)};
  submit("matmul", [args] { kernels().matmul(args); });
}

using Part = std::tuple<uintptr_t, int64_t, int64_t, int32_t>;

void pack(const std::vector<Part>& parts, uintptr_t panels, int64_t inputs, int32_t element) {
  const Format only = static_cast<Format>(element);  // the formats without blocks have the numbers of the elements
  std::vector<PackPart> list;
  int64_t outputs = 0;
  for (const auto& [data, row_stride, rows, format] : parts) {
    require(format >= 0 && format < static_cast<int32_t>(Format::count), "unknown tensor format number " + std::to_string(format));
    require(rows > 0 && inputs > 0, "pack needs rows > 0 and inputs > 0");
    require(element_of(element) == Element::f32 || static_cast<Format>(format) == only, "panels of 16-bit elements need parts of the same type");
    list.push_back({pointer<const uint8_t>(data), row_stride, rows, static_cast<Format>(format)});
    outputs += rows;
  }
  kernels().pack({list.data(), static_cast<int64_t>(list.size()), pointer<void>(panels), outputs, inputs, element_of(element)});
}

void gather(uintptr_t panels, uintptr_t ids, uintptr_t y, float scale, int64_t tokens, int64_t outputs, int64_t inputs, int32_t element) {
  const GatherArgs args{pointer<const void>(panels), pointer<const int64_t>(ids), pointer<float>(y), scale, tokens, outputs, inputs,
                        element_of(element)};
  submit("gather", [args] {
    check_range(args.ids, args.tokens, args.outputs, "row");
    kernels().gather(args);
  });
}

bool kind_of(Format format, Kind* kind) {
  switch (format) {
    case Format::q4_0: *kind = Kind::symmetric4; return true;
    case Format::q4_1:
    case Format::q4_k: *kind = Kind::affine4; return true;
    case Format::q5_0: *kind = Kind::symmetric5; return true;
    case Format::q5_1:
    case Format::q5_k: *kind = Kind::affine5; return true;
    case Format::q6_k: *kind = Kind::halves6; return true;
    case Format::q8_0: *kind = Kind::symmetric8; return true;
    default: return false;
  }
}

// A weight in quantized panels, one range a part.
class QuantPanels {
 public:
  QuantPanels(const std::vector<Part>& parts, int64_t inputs) : inputs_(inputs), memory_(0) {
    require(inputs > 0 && inputs % kGroup == 0, "quantized panels need inputs in groups of 32, got " + std::to_string(inputs));
    std::vector<PackPart> stored;
    size_t bytes = 0;
    for (const auto& [data, row_stride, rows, format] : parts) {
      PanelRange range{};
      require(format >= 0 && format < static_cast<int32_t>(Format::count) && kind_of(static_cast<Format>(format), &range.kind),
              "tensor format number " + std::to_string(format) + " is not quantized");
      require(rows > 0, "quantized panels need rows > 0");
      range.first = outputs_;
      range.outputs = rows;
      ranges_.push_back(range);
      stored.push_back({pointer<const uint8_t>(data), row_stride, rows, static_cast<Format>(format)});
      outputs_ += rows;
      bytes += static_cast<size_t>(range.count() * panel_bytes(range.kind, inputs));
    }
    memory_ = Memory(bytes);
    auto* at = static_cast<uint8_t*>(memory_.data());
    for (PanelRange& range : ranges_) {
      range.panels = at;
      at += range.count() * panel_bytes(range.kind, inputs);
    }
    ok_ = kernels().qpack({stored.data(), ranges_.data(), count(), inputs});
  }

  bool ok() const { return ok_; }
  size_t nbytes() const { return memory_.size(); }

  void matmul(uintptr_t x, uintptr_t y, int64_t x_stride, int64_t y_stride, int64_t tokens) const {
    require(tokens >= 0, "a product needs tokens >= 0");
    const QMatmulArgs args{pointer<const float>(x), ranges_.data(), pointer<float>(y), x_stride, y_stride, tokens, count(), inputs_};
    submit("qmatmul", [args] { kernels().qmatmul(args); });
  }

  void gather(uintptr_t ids, uintptr_t y, float scale, int64_t tokens) const {
    const QGatherArgs args{ranges_.data(), pointer<const int64_t>(ids), pointer<float>(y), scale, tokens, count(), inputs_};
    submit("qgather", [args, outputs = outputs_] {
      check_range(args.ids, args.tokens, outputs, "row");
      kernels().qgather(args);
    });
  }

 private:
  int64_t count() const { return static_cast<int64_t>(ranges_.size()); }

  int64_t inputs_, outputs_ = 0;
  bool ok_ = false;
  std::vector<PanelRange> ranges_;
  Memory memory_;
};

void norm(uintptr_t x, uintptr_t residual, uintptr_t weight, uintptr_t bias, uintptr_t out, uintptr_t sum, float eps, int64_t outer, int64_t inner,
          int64_t width, int64_t x_stride, int64_t weight_stride, bool center) {
  require((residual == 0) == (sum == 0), "norm needs both residual and sum, or neither");
  const NormArgs args{pointer<const float>(x), pointer<const float>(residual), pointer<const float>(weight), pointer<const float>(bias),
                      pointer<float>(out), pointer<float>(sum), eps, outer, inner, width, x_stride, weight_stride, center};
  submit("norm", [args] { kernels().norm(args); });
}

void rope(uintptr_t q, uintptr_t k, uintptr_t positions, uintptr_t table, int64_t table_rows, int64_t q_stride, int64_t k_stride, int64_t tokens,
          int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t rot, bool interleaved) {
  require(rot >= 0 && rot <= head_dim && rot % 2 == 0, "rotary width " + std::to_string(rot) + " does not fit a head of " + std::to_string(head_dim));
  const RopeArgs args{pointer<float>(q), pointer<float>(k), pointer<const int64_t>(positions), pointer<const float>(table), q_stride, k_stride, tokens,
                      heads, kv_heads, head_dim, rot, interleaved};
  submit("rope", [args, table_rows] {
    check_range(args.positions, args.tokens, table_rows, "position");
    kernels().rope(args);
  });
}

void act(uintptr_t x, uintptr_t y, int64_t x_stride, int64_t tokens, int64_t features, int32_t kind, bool gated) {
  require(kind >= 0 && kind < static_cast<int32_t>(Activation::count), "unknown activation number " + std::to_string(kind));
  const ActArgs args{pointer<const float>(x), pointer<float>(y), x_stride, tokens, features, static_cast<Activation>(kind), gated};
  submit(gated ? "act_mul" : "act", [args] { kernels().act(args); });
}

void attention(uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t out, uintptr_t key_cache, uintptr_t value_cache, uintptr_t key_scales,
               uintptr_t value_scales, uintptr_t offsets, uintptr_t starts, uintptr_t tables, uintptr_t slopes,
               int64_t q_stride, int64_t k_stride, int64_t v_stride, int64_t tokens, int64_t rows, int64_t heads,
               int64_t kv_heads, int64_t head_dim, int64_t block_size, int64_t table_stride,
               int64_t window, float scale, float softcap, int32_t cache_type) {
  require(block_size >= 1 && block_size <= 128 && (block_size & (block_size - 1)) == 0,
          "block size must be a power of two up to 128, got " + std::to_string(block_size));
  require(head_dim >= 1 && head_dim <= kMaxHeadDim, "head size must be 1 .. " + std::to_string(kMaxHeadDim) + ", got " + std::to_string(head_dim));
  require(kv_heads >= 1 && heads % kv_heads == 0,
          std::to_string(heads) + " query heads cannot share " + std::to_string(kv_heads) + " key/value heads");
  const Element element = element_of(cache_type, Element::e5m2);
  require((element > Element::bf16) == (key_scales != 0 && value_scales != 0), "8-bit caches, and no others, have scales");
  if (tokens == 0) return;
  const AttentionArgs args{pointer<const float>(q), pointer<const float>(k), pointer<const float>(v), pointer<float>(out), pointer<void>(key_cache),
                           pointer<void>(value_cache), pointer<float>(key_scales), pointer<float>(value_scales), element, pointer<const int32_t>(offsets),
                           pointer<const int32_t>(starts), pointer<const int32_t>(tables), pointer<const float>(slopes), q_stride, k_stride, v_stride,
                           tokens, rows, heads, kv_heads, head_dim, block_size, table_stride, window, scale, softcap};
  submit("attention", [args] { kernels().attention(args); });
}

void take(uintptr_t x, uintptr_t columns, uintptr_t y, int64_t x_stride, int64_t tokens, int64_t width) {
  const TakeArgs args{pointer<const float>(x), pointer<const int32_t>(columns), pointer<float>(y), x_stride, tokens, width};
  submit("take", [args] { kernels().take(args); });
}

void add(uintptr_t x, uintptr_t other, uintptr_t y, float scale, float limit, int64_t x_stride, int64_t other_stride, int64_t tokens, int64_t width) {
  const AddArgs args{pointer<const float>(x), pointer<const float>(other), pointer<float>(y), scale, limit, x_stride, other_stride, tokens, width};
  submit("add", [args] { kernels().add(args); });
}

void sample(uintptr_t logits, int64_t stride, int64_t rows, int64_t vocab, uintptr_t temperature, uintptr_t top_k, uintptr_t top_p, uintptr_t min_p,
            uintptr_t seed, uintptr_t index, uintptr_t position, uintptr_t out) {
  require(vocab > 0 && vocab <= INT32_MAX, "vocabulary size must be 1 .. 2^31 - 1, got " + std::to_string(vocab));
  kernels().sample({pointer<const float>(logits), stride, rows, vocab, pointer<const float>(temperature), pointer<const int32_t>(top_k),
                    pointer<const float>(top_p), pointer<const float>(min_p), pointer<const uint64_t>(seed), pointer<const uint32_t>(index),
                    pointer<const uint64_t>(position), pointer<int64_t>(out)});
}

// Copies blocks of several caches; pairs: (source, destination) int64.
void copy_blocks(const std::vector<std::pair<uintptr_t, int64_t>>& caches, uintptr_t pairs, int64_t count) {
  const auto* pair = pointer<const int64_t>(pairs);
  parallel_for(static_cast<int64_t>(caches.size()), [&](int64_t c) {
    char* base = pointer<char>(caches[static_cast<size_t>(c)].first);
    const int64_t bytes = caches[static_cast<size_t>(c)].second;
    for (int64_t i = 0; i < count; ++i) std::memcpy(base + pair[2 * i + 1] * bytes, base + pair[2 * i] * bytes, static_cast<size_t>(bytes));
  });
}

// Around every call that computes: the GIL is released, and the time counted.
class Native {
 public:
  ~Native() { total += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin_).count(); }
  static inline std::atomic<int64_t> total{0};

 private:
  nb::gil_scoped_release unlocked_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

std::tuple<double, double, double> peaks(size_t bytes, double seconds) {
  const Peaks found = measure_peaks(kernels().name, bytes, seconds);
  return {found.read, found.floats, found.ints};
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Kernels of the cpu backend. Pointers are addresses, strides count elements.";
  const nb::call_guard<Native> unlocked;

  nb::class_<Memory>(m, "Memory", "Uninitialized memory for weights, 64-byte aligned, in huge pages where the system has them.")
      .def(nb::init<size_t>(), nb::arg("nbytes"))
      .def_prop_ro("ptr", [](const Memory& memory) { return reinterpret_cast<uintptr_t>(memory.data()); })
      .def_prop_ro("nbytes", [](const Memory& memory) { return memory.size(); });

  nb::class_<QuantPanels>(m, "QuantPanels", "A weight in quantized panels; not to be used unless ok.")
      .def(nb::init<const std::vector<Part>&, int64_t>(), nb::arg("parts"), nb::arg("inputs"), unlocked)
      .def_prop_ro("ok", &QuantPanels::ok)
      .def_prop_ro("nbytes", &QuantPanels::nbytes)
      .def("matmul", &QuantPanels::matmul, unlocked)
      .def("gather", &QuantPanels::gather, unlocked);

  nb::class_<Program>(m, "Program", "Operations recorded between start() and stop(), on the thread that calls them; run() repeats them in place.")
      .def(nb::init<>())
      .def("start", &Program::start)
      .def("stop", &Program::stop)
      .def("run", &Program::run, unlocked)
      .def("profile", &Program::profile, unlocked, "run(), telling the name of each operation and the nanoseconds it took.")
      .def("__len__", &Program::size);

  m.def("isa", [] { return std::string(kernels().name); }, "Name of the kernel set in use.");
  m.def("isas", &available_isas, "Kernel sets this processor can run, best last.");
  m.def("select_isa", &select_isa, nb::arg("name"));
  m.def("threads", &num_threads);
  m.def("set_threads", &set_num_threads, nb::arg("count"), unlocked, "0: every core this process may use.");
  m.def("nanoseconds", [] { return Native::total.load(); }, "Time that calls into this module have taken so far, all threads that called together.");
  m.def("peaks", &peaks, nb::arg("bytes"), nb::arg("seconds"), unlocked,
        "Bytes read, float32 and int8 operations a second that the kernel set in use and all threads reach at most: measured now.");
  m.def("cores", &available_cores, "Physical cores this process may use, bounded by its CPU quota.");

  m.def("matmul", &matmul, unlocked);
  m.def("pack", &pack, unlocked);
  m.def("gather", &gather, unlocked);
  m.def("norm", &norm, unlocked);
  m.def("rope", &rope, unlocked);
  m.def("act", &act, unlocked);
  m.def("take", &take, unlocked);
  m.def("add", &add, unlocked);
  m.def("attention", &attention, unlocked);
  m.def("sample", &sample, unlocked);
  m.def("copy_blocks", &copy_blocks, unlocked);
  kernels();  // a wrong OCTAVO_ISA is an error of the import
}
