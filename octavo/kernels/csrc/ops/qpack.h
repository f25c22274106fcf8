// GGUF blocks to quantized panels and back to rows of floats. Block layouts: octavo/kernels/dequant.py; panels: kernels.h.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>

#include "../memory.h"
#include "../pool.h"

namespace octavo {
namespace {

// A group as stored: codes and the two numbers of its header (scale and minimum, or the scales of both halves).
struct StoredGroup {
  uint8_t code[kGroup];
  float header[2];
};

inline void nibble_codes(const uint8_t* nibbles, uint8_t* code) {
  for (int i = 0; i < 16; ++i) {
    code[i] = nibbles[i] & 15;
    code[16 + i] = nibbles[i] >> 4;
  }
}

inline void fifth_bits(const uint8_t* high, uint8_t* code) {
  uint32_t bits;
  std::memcpy(&bits, high, sizeof bits);
  for (int i = 0; i < kGroup; i += 8) {  // eight bits to bit 4 of eight bytes
    const uint64_t spread = ((bits >> i & 0xff) * 0x0101010101010101u & 0x8040201008040201u) + 0x7f7f7f7f7f7f7f7fu;
    uint64_t eight;
    std::memcpy(&eight, code + i, sizeof eight);
    eight |= spread >> 3 & 0x1010101010101010u;
    std::memcpy(code + i, &eight, sizeof eight);
  }
}

// Group g of a row, by type. Blocks of 32 are groups; blocks of 256 hold eight.
using GroupReader = void (*)(const uint8_t* row, int64_t g, StoredGroup* to);

inline void read_q4_0(const uint8_t* row, int64_t g, StoredGroup* to) {
  const uint8_t* in = row + 18 * g;
  to->header[0] = half_at(in);
  nibble_codes(in + 2, to->code);
}

inline void read_q4_1(const uint8_t* row, int64_t g, StoredGroup* to) {
  const uint8_t* in = row + 20 * g;
  to->header[0] = half_at(in);
  to->header[1] = half_at(in + 2);
  nibble_codes(in + 4, to->code);
}

inline void read_q5_0(const uint8_t* row, int64_t g, StoredGroup* to) {
  const uint8_t* in = row + 22 * g;
  to->header[0] = half_at(in);
  nibble_codes(in + 6, to->code);
  fifth_bits(in + 2, to->code);
}

inline void read_q5_1(const uint8_t* row, int64_t g, StoredGroup* to) {
  const uint8_t* in = row + 24 * g;
  to->header[0] = half_at(in);
  to->header[1] = half_at(in + 2);
  nibble_codes(in + 8, to->code);
  fifth_bits(in + 4, to->code);
}

inline void read_q8_0(const uint8_t* row, int64_t g, StoredGroup* to) {
  const uint8_t* in = row + 34 * g;
  to->header[0] = half_at(in);
  for (int i = 0; i < kGroup; ++i) to->code[i] = in[2 + i] ^ 0x80;
}

inline void read_k_header(const uint8_t* in, int g, StoredGroup* to) {
  float scale, minimum;
  k_scale(in + 4, g, &scale, &minimum);
  to->header[0] = half_at(in) * scale;
  to->header[1] = -(half_at(in + 2) * minimum);
}

inline void read_q4_k(const uint8_t* row, int64_t group, StoredGroup* to) {
  const uint8_t* in = row + 144 * (group / 8);
  const int g = static_cast<int>(group % 8), shift = g % 2 * 4;
  read_k_header(in, g, to);
  const uint8_t* nibbles = in + 16 + g / 2 * 32;
  for (int i = 0; i < kGroup; ++i) to->code[i] = nibbles[i] >> shift & 15;
}

inline void read_q5_k(const uint8_t* row, int64_t group, StoredGroup* to) {
  const uint8_t* in = row + 176 * (group / 8);
  const int g = static_cast<int>(group % 8), shift = g % 2 * 4;
  read_k_header(in, g, to);
  const uint8_t *high = in + 16, *nibbles = in + 48 + g / 2 * 32;
  for (int i = 0; i < kGroup; ++i) to->code[i] = static_cast<uint8_t>((nibbles[i] >> shift & 15) | (high[i] >> g & 1) << 4);
}

inline void read_q6_k(const uint8_t* row, int64_t group, StoredGroup* to) {
  const uint8_t* in = row + 210 * (group / 8);
  const int g = static_cast<int>(group % 8), part = g % 4, low_shift = part / 2 * 4, high_shift = part * 2;
  const uint8_t *low = in + g / 4 * 64 + part % 2 * 32, *high = in + 128 + g / 4 * 32;
  const auto* scales = reinterpret_cast<const int8_t*>(in + 192);
  for (int h = 0; h < 2; ++h) to->header[h] = half_at(in + 208) * static_cast<float>(scales[2 * g + h]);
  for (int i = 0; i < kGroup; ++i) to->code[i] = static_cast<uint8_t>((low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4);
}

inline GroupReader group_reader(Format format) {
  switch (format) {
    case Format::q4_0: return read_q4_0;
    case Format::q4_1: return read_q4_1;
    case Format::q5_0: return read_q5_0;
    case Format::q5_1: return read_q5_1;
    case Format::q8_0: return read_q8_0;
    case Format::q4_k: return read_q4_k;
    case Format::q5_k: return read_q5_k;
    case Format::q6_k: return read_q6_k;
    default: return nullptr;
  }
}

// Column o of a group's rows.
inline void store_codes(const uint8_t* code, int bits, int64_t o, uint8_t* group) {
  uint8_t* column = group + 4 * o;
  if (bits == 8) {
    for (int j = 0; j < 8; ++j) std::memcpy(column + 64 * j, code + 4 * j, 4);
    return;
  }
  uint8_t nibbles[16];
  for (int i = 0; i < 16; ++i) nibbles[i] = static_cast<uint8_t>((code[i] & 15) | code[16 + i] << 4);
  for (int j = 0; j < 4; ++j) std::memcpy(column + 64 * j, nibbles + 4 * j, 4);
  uint32_t high[2] = {};
  for (int j = 0; j < 8; ++j) {
    uint32_t quad;
    std::memcpy(&quad, code + 4 * j, sizeof quad);
    if (bits == 5) {
      high[0] |= (quad >> 4 & 0x01010101u) << j;
    } else if (bits == 6) {
      high[j / 4] |= (quad >> 4 & 0x03030303u) << 2 * (j % 4);
    }
  }
  if (bits >= 5) std::memcpy(column + 256, &high[0], 4);
  if (bits == 6) std::memcpy(column + 320, &high[1], 4);
}

// False if a number of a header is no finite binary16. None is flushed to zero: each is an integer times a binary16.
inline bool qpack_panel(const PackPart& part, const PanelRange& range, int64_t panel, int64_t inputs) {
  const KindInfo& info = kind_info(range.kind);
  const GroupReader read = group_reader(part.format);
  const int64_t first = panel * kLanes, valid = std::min(kLanes, range.outputs - first);
  uint8_t* to = range.panels + panel * panel_bytes(range.kind, inputs);
  uint8_t* codes = to + header_bytes(range.kind, inputs);
  if (valid < kLanes) std::memset(to, 0, static_cast<size_t>(panel_bytes(range.kind, inputs)));
  bool finite = true;
  for (int64_t g = 0; g < inputs / kGroup; ++g) {
    for (int64_t o = 0; o < valid; ++o) {
      StoredGroup stored;
      read(part.data + (first + o) * part.row_stride, g, &stored);
      for (int h = 0; h < info.header; ++h) {
        const uint16_t bits = float_to_half(stored.header[h]);
        finite = finite && (bits & 0x7fff) < 0x7c00;
        std::memcpy(to + (g * info.header + h) * 32 + 2 * o, &bits, sizeof bits);
      }
      store_codes(stored.code, info.bits, o, codes + g * info.rows * 64);
    }
  }
  return finite;
}

// The pages of a part, which may lie in a mapped file.
inline void populate_part(const PackPart& part, int64_t inputs) {
  const FormatInfo& format = kFormats[static_cast<int>(part.format)];
  const int64_t bytes = (part.rows - 1) * part.row_stride + inputs / format.weights * format.bytes;
  constexpr int64_t piece = 1 << 20;
  parallel_for((bytes + piece - 1) / piece, [&](int64_t i) {
    populate(part.data + i * piece, static_cast<size_t>(std::min(piece, bytes - i * piece)));
  });
}

inline bool qpack(const QPackArgs& args) {
  std::atomic<bool> ok{true};
  for (int64_t i = 0; i < args.count; ++i) {
    const PanelRange& range = args.ranges[i];
    populate_part(args.parts[i], args.inputs);
    const int64_t chunk = std::max<int64_t>(1, 65536 / (args.inputs * kLanes)), panels = range.count();  // at least 64 Ki weights a task
    parallel_for((panels + chunk - 1) / chunk, [&](int64_t c) {
      for (int64_t p = c * chunk; p < std::min(panels, (c + 1) * chunk); ++p) {
        if (!qpack_panel(args.parts[i], range, p, args.inputs)) ok = false;
      }
    });
  }
  return ok;
}

// Codes of column o of a group.
inline void load_codes(const uint8_t* group, int bits, int64_t o, uint8_t* code) {
  const uint8_t* column = group + 4 * o;
  for (int j = 0; j < 8; ++j) {
    for (int c = 0; c < 4; ++c) {
      uint8_t& to = code[4 * j + c];
      if (bits == 8) {
        to = column[64 * j + c];
        continue;
      }
      to = column[64 * (j % 4) + c] >> (j < 4 ? 0 : 4) & 15;
      if (bits == 5) to = static_cast<uint8_t>(to | (column[256 + c] >> j & 1) << 4);
      if (bits == 6) to = static_cast<uint8_t>(to | (column[(j < 4 ? 256 : 320) + c] >> 2 * (j % 4) & 3) << 4);
    }
  }
}

inline void qgather_row(const PanelRange& range, int64_t row, int64_t inputs, float factor, float* y) {
  const KindInfo& info = kind_info(range.kind);
  const uint8_t* panel = range.panels + row / kLanes * panel_bytes(range.kind, inputs);
  const uint8_t* codes = panel + header_bytes(range.kind, inputs);
  const int64_t o = row % kLanes;
  for (int64_t g = 0; g < inputs / kGroup; ++g, y += kGroup) {
    uint8_t code[kGroup];
    load_codes(codes + g * info.rows * 64, info.bits, o, code);
    const uint8_t* header = panel + g * info.header * 32 + 2 * o;
    const float scale = half_at(header), other = info.header == 2 ? half_at(header + 32) : scale;
    if (info.affine) {
      for (int i = 0; i < kGroup; ++i) y[i] = (scale * static_cast<float>(code[i]) + other) * factor;
    } else {
      for (int i = 0; i < kGroup; ++i) y[i] = (i < 16 ? scale : other) * static_cast<float>(code[i] - info.center) * factor;
    }
  }
}

inline void qgather(const QGatherArgs& args) {
  constexpr int64_t chunk = 16;
  parallel_for((args.tokens + chunk - 1) / chunk, [&](int64_t c) {
    for (int64_t t = c * chunk; t < std::min(args.tokens, (c + 1) * chunk); ++t) {
      int64_t i = 0;
      while (args.ids[t] >= args.ranges[i].first + args.ranges[i].outputs) ++i;
      qgather_row(args.ranges[i], args.ids[t] - args.ranges[i].first, args.inputs, args.scale, args.y + t * args.inputs);
    }
  });
}

}  // namespace
}  // namespace octavo
