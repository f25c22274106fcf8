// Dequantization of GGUF tensor types into panels. Formulas and block layouts: octavo/kernels/dequant.py.
// No product and sum is fused, so values equal the numpy formulas bit for bit.
#pragma once

#include <algorithm>
#include <cstring>

#include "../pool.h"

namespace octavo {
namespace {

inline float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return half_to_float(bits);
}

// A decoder turns ``blocks`` blocks of its type into floats.
using Decoder = void (*)(const uint8_t* in, int64_t blocks, float* out);

inline void decode_f32(const uint8_t* in, int64_t count, float* out) { std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float)); }

inline void decode_f16(const uint8_t* in, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) load_half(in + 2 * i).store(out + i);
  for (; i < count; ++i) out[i] = half_at(in + 2 * i);
}

inline void decode_bf16(const uint8_t* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, in + 2 * i, sizeof bits);
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    std::memcpy(out + i, &wide, sizeof wide);
  }
}

inline void decode_q4_0(const uint8_t* in, int64_t blocks, float* out) {
  for (; blocks-- > 0; in += 18, out += 32) {
    const float d = half_at(in);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>((in[2 + i] & 15) - 8);
      out[16 + i] = d * static_cast<float>((in[2 + i] >> 4) - 8);
    }
  }
}

inline void decode_q4_1(const uint8_t* in, int64_t blocks, float* out) {
  for (; blocks-- > 0; in += 20, out += 32) {
    const float d = half_at(in), m = half_at(in + 2);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>(in[4 + i] & 15) + m;
      out[16 + i] = d * static_cast<float>(in[4 + i] >> 4) + m;
    }
  }
}

// The 32 five-bit values of a block: bit i of ``high`` is bit 4 of weight i.
inline void five_bits(const uint8_t* high, const uint8_t* nibbles, int32_t* q) {
  uint32_t bits;
  std::memcpy(&bits, high, sizeof bits);
  for (int i = 0; i < 16; ++i) {
    q[i] = (nibbles[i] & 15) | static_cast<int32_t>((bits >> i & 1) << 4);
    q[16 + i] = (nibbles[i] >> 4) | static_cast<int32_t>((bits >> (16 + i) & 1) << 4);
  }
}

inline void decode_q5_0(const uint8_t* in, int64_t blocks, float* out) {
  for (; blocks-- > 0; in += 22, out += 32) {
    const float d = half_at(in);
    int32_t q[32];
    five_bits(in + 2, in + 6, q);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(q[i] - 16);
  }
}

inline void decode_q5_1(const uint8_t* in, int64_t blocks, float* out) {
  for (; blocks-- > 0; in += 24, out += 32) {
    const float d = half_at(in), m = half_at(in + 2);
    int32_t q[32];
    five_bits(in + 4, in + 8, q);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(q[i]) + m;
  }
}

inline void decode_q8_0(const uint8_t* in, int64_t blocks, float* out) {
  for (; blocks-- > 0; in += 34, out += 32) {
    const float d = half_at(in);
    const auto* q = reinterpret_cast<const int8_t*>(in + 2);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(q[i]);
  }
}

// Scale and minimum of group g (of 8) from the 12 packed bytes.
inline void k_scale(const uint8_t* packed, int g, float* scale, float* minimum) {
  if (g < 4) {
    *scale = static_cast<float>(packed[g] & 63);
    *minimum = static_cast<float>(packed[4 + g] & 63);
  } else {
    *scale = static_cast<float>((packed[4 + g] & 15) | packed[g - 4] >> 6 << 4);
    *minimum = static_cast<float>(packed[4 + g] >> 4 | packed[g] >> 6 << 4);
  }
}

inline void decode_q4_k(const uint8_t* in, int64_t blocks, float* out) {
  for (; blocks-- > 0; in += 144) {
    const float d = half_at(in), m = half_at(in + 2);
    for (int g = 0; g < 8; ++g, out += 32) {
      float scale, minimum;
      k_scale(in + 4, g, &scale, &minimum);
      const float a = d * scale, b = m * minimum;
      const uint8_t* nibbles = in + 16 + g / 2 * 32;
      const int shift = g % 2 * 4;
      for (int i = 0; i < 32; ++i) out[i] = a * static_cast<float>(nibbles[i] >> shift & 15) - b;
    }
  }
}

inline void decode_q5_k(const uint8_t* in, int64_t blocks, float* out) {
  for (; blocks-- > 0; in += 176) {
    const float d = half_at(in), m = half_at(in + 2);
    for (int g = 0; g < 8; ++g, out += 32) {
      float scale, minimum;
      k_scale(in + 4, g, &scale, &minimum);
      const float a = d * scale, b = m * minimum;
      const uint8_t *high = in + 16, *nibbles = in + 48 + g / 2 * 32;
      const int shift = g % 2 * 4;
      for (int i = 0; i < 32; ++i) out[i] = a * static_cast<float>((nibbles[i] >> shift & 15) | (high[i] >> g & 1) << 4) - b;
    }
  }
}

inline void decode_q6_k(const uint8_t* in, int64_t blocks, float* out) {
  for (; blocks-- > 0; in += 210) {
    const auto* scales = reinterpret_cast<const int8_t*>(in + 192);
    const float d = half_at(in + 208);
    for (int g = 0; g < 16; ++g, out += 16) {  // groups of 16 weights; 8 of them share a half of the low and high bits
      const int part = g / 2 % 4, at = g % 2 * 16;
      const uint8_t *low = in + g / 8 * 64 + part % 2 * 32 + at, *high = in + 128 + g / 8 * 32 + at;
      const int low_shift = part / 2 * 4, high_shift = part * 2;
      const float a = d * static_cast<float>(scales[g]);
      for (int i = 0; i < 16; ++i) out[i] = a * static_cast<float>(((low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4) - 32);
    }
  }
}

struct FormatInfo {
  int64_t weights, bytes;  // of a block
  Decoder decode;
};

constexpr FormatInfo kFormats[] = {
    {1, 4, decode_f32},     {1, 2, decode_f16},     {1, 2, decode_bf16},      {32, 18, decode_q4_0},    {32, 20, decode_q4_1},  {32, 22, decode_q5_0},
    {32, 24, decode_q5_1},  {32, 34, decode_q8_0},  {256, 144, decode_q4_k},  {256, 176, decode_q5_k},  {256, 210, decode_q6_k},
};

struct PackRow {
  const uint8_t* data;
  const FormatInfo* format;
};

// A multiple of every block size; 16 rows of it fit the first-level cache.
constexpr int64_t kPackInputs = 256;

// Panels of 16-bit elements: the stored bits change their place and nothing else.
inline void pack_bits(const PackRow* rows, int64_t valid, int64_t inputs, uint16_t* out) {
  for (int64_t k = 0; k < inputs; ++k) {
    for (int64_t r = 0; r < kLanes; ++r) {
      if (r < valid) {
        std::memcpy(out + k * kLanes + r, rows[r].data + 2 * k, sizeof(uint16_t));
      } else {
        out[k * kLanes + r] = 0;
      }
    }
  }
}

inline void pack_panel(const PackArgs& args, int64_t panel) {
  PackRow rows[kLanes];
  const int64_t first = panel * kLanes, valid = std::min(kLanes, args.outputs - first);
  int64_t part = 0, before = 0;  // rows of the parts already passed
  for (int64_t r = 0; r < valid; ++r) {
    while (first + r - before >= args.parts[part].rows) before += args.parts[part++].rows;
    const PackPart& from = args.parts[part];
    rows[r] = {from.data + (first + r - before) * from.row_stride, &kFormats[static_cast<int>(from.format)]};
  }
  if (args.element != Element::f32) {
    pack_bits(rows, valid, args.inputs, static_cast<uint16_t*>(args.panels) + panel * kLanes * args.inputs);
    return;
  }
  alignas(64) float decoded[kLanes][kPackInputs];
  for (int64_t r = valid; r < kLanes; ++r) std::memset(decoded[r], 0, sizeof decoded[r]);
  float* out = static_cast<float*>(args.panels) + panel * kLanes * args.inputs;
  for (int64_t k = 0; k < args.inputs; k += kPackInputs) {
    const int64_t count = std::min(kPackInputs, args.inputs - k);
    for (int64_t r = 0; r < valid; ++r) {
      const FormatInfo& f = *rows[r].format;
      f.decode(rows[r].data + k / f.weights * f.bytes, count / f.weights, decoded[r]);
    }
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) transpose(&decoded[0][i], kPackInputs, out + (k + i) * kLanes);
    for (; i < count; ++i) {
      for (int64_t r = 0; r < kLanes; ++r) out[(k + i) * kLanes + r] = decoded[r][i];
    }
  }
}

inline void pack(const PackArgs& args) {
  const int64_t panels = (args.outputs + kLanes - 1) / kLanes;
  const int64_t chunk = std::max<int64_t>(1, 65536 / (args.inputs * kLanes));  // at least 64 Ki weights a task
  parallel_for((panels + chunk - 1) / chunk, [&](int64_t c) {
    for (int64_t p = c * chunk; p < std::min(panels, (c + 1) * chunk); ++p) pack_panel(args, p);
  });
}

}  // namespace
}  // namespace octavo
