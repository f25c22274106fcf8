// What a kernel set offers: argument blocks of raw pointers and strides, and one table of functions an instruction set.
//
// Letters: T tokens of a step, R rows (requests), H query heads, G key/value heads, D head size, N outputs, K inputs of a product, V vocabulary.
// All activations are float32. Strides count elements. Every kernel obeys one rule: the result for a token or a row is computed in an order
// fixed by that row's own shape, whatever the number of rows, threads or tasks. The avx2 and avx512 sets give equal bits.
//
// Panels, the layout of a packed weight [N, K]: ceil(N / 16) panels of [K][16] elements; panel p holds outputs 16 p .. 16 p + 15, those beyond
// N are zero. Elements of 16 bits are widened as they are used, so results are those of float32 panels with the same values.
//
// Cache layout of a layer, with L = min(block_size, 16):
//   keys    [block][G][block_size / L][D][L]   so that one load gives component d of L neighbouring positions
//   values  [block][G][block_size][D]
//   scales  [block][G][block_size]             float32, for keys and for values; with 8-bit elements alone
#pragma once

#include <cstdint>

namespace octavo {

constexpr int64_t kLanes = 16;
constexpr int64_t kMaxHeadDim = 512;

// How weights and caches store a number. All are widened exactly on the way out; a cache rounds to nearest even on the way in. The 8-bit ones
// (int8; OCP FP8 of 4 and 3, or of 5 and 2 bits of exponent and mantissa) are for caches alone and come with a scale for each position and
// key/value head: largest magnitude / 127, 448 or 57344, beside the codes in the same block.
enum class Element : int32_t { f32, f16, bf16, int8, e4m3, e5m2, count };
constexpr float kLargest[] = {0, 0, 0, 127.0f, 448.0f, 57344.0f};  // code of an 8-bit element

// y[t, n] = sum over k of x[t, k] * w[n, k].
//
// Order: inputs are cut into blocks of k_block(K); within a block one chain of fused multiply-adds in ascending k starting from zero; block
// sums are added in ascending order.
struct MatmulArgs {
  const float* x;
  const void* panels;
  float* y;
  int64_t x_stride, y_stride;
  int64_t tokens, outputs, inputs;
  Element element;
};

// Tensor types as in GGUF files; their formulas: octavo/kernels/dequant.py.
enum class Format : int32_t { f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k, count };

struct PackPart {
  const uint8_t* data;
  int64_t row_stride;  // bytes
  int64_t rows;
  Format format;
};

// Dequantize the parts, concatenated along N, into panels. Values are exact float32 results of the formula of each type. Panels of 16-bit
// elements take parts of that very type.
struct PackArgs {
  const PackPart* parts;
  int64_t num_parts;
  void* panels;
  int64_t outputs, inputs;
  Element element;
};

// Quantized panels, the layout of a packed weight [N, K] with K a multiple of 32, in one of six kinds. Inputs form groups of 32, a group eight
// quads of 4. Codes are unsigned; with center C = 8, 16, 32, 128 for 4, 5, 6, 8 bits the value of a weight is
//   symmetric  scale * (code - C)        affine  scale * code + minimum        halves  as symmetric, with one scale for 16 inputs
// A panel of 16 outputs is [K / 32][H][16] binary16 (H = 1: scales; 2: scales, then minimums, or the scales of both halves), padded to 64 bytes,
// then [K / 32] groups of rows of 64 bytes. Byte 4 o + c of a row belongs to output o and input c of a quad:
//   4 to 6 bits  row i < 4: low four bits of quad i in its low nibble, of quad i + 4 in its high one
//   5 bits       row 4: bit j is bit 4 of quad j's code        6 bits  rows 4, 5: bits 2 j, 2 j + 1 are bits 4, 5 of quads j and 4 + j
//   8 bits       row i: quad i
// Outputs beyond N have zero scales and codes. A panel takes the bytes of the file's own blocks (K-quants, whose 6-bit scales are multiplied
// out and rounded to binary16: 5.0 for 4.5 bits a weight, 6.0 for 5.5, 7.0 for 6.56).
constexpr int64_t kGroup = 32;
enum class Kind : int32_t { symmetric4, affine4, symmetric5, affine5, halves6, symmetric8 };

struct KindInfo {
  int bits, center, header, rows;  // header: vectors of 16 binary16 numbers a group; rows: of 64 bytes a group
  bool affine;
};
constexpr KindInfo kKinds[] = {
    {4, 8, 1, 4, false}, {4, 8, 2, 4, true}, {5, 16, 1, 5, false}, {5, 16, 2, 5, true}, {6, 32, 2, 6, false}, {8, 128, 1, 8, false},
};
constexpr const KindInfo& kind_info(Kind kind) { return kKinds[static_cast<int>(kind)]; }

constexpr int64_t header_bytes(Kind kind, int64_t inputs) { return (inputs / kGroup * kind_info(kind).header * 32 + 63) / 64 * 64; }
constexpr int64_t panel_bytes(Kind kind, int64_t inputs) { return header_bytes(kind, inputs) + inputs / kGroup * kind_info(kind).rows * 64; }

// Outputs first .. first + outputs - 1 of a packed weight: one stored tensor, in panels of its own.
struct PanelRange {
  Kind kind;
  int64_t first, outputs;
  uint8_t* panels;
  int64_t count() const { return (outputs + kLanes - 1) / kLanes; }
};

// Fill the panels of each part's range. False, with the panels unspecified, if a scale or minimum is no finite binary16.
struct QPackArgs {
  const PackPart* parts;
  const PanelRange* ranges;
  int64_t count, inputs;
};

// The product on quantized panels. Each group of 32 inputs of a row becomes int8 q = round(x * (127 / m)), ties to even, with m its largest
// magnitude, and scale s = m / 127; m < 1e-30 counts as zero, and an infinity or NaN makes s NaN.
//
// Order for (t, n), with i an exact integer and fma fused in every set but generic: y = 0, then for groups in ascending order
//   symmetric  i = sum of (code - C) * q;  y = fma(float(i), scale * s, y)        halves  the same for inputs 0 .. 15, then for 16 .. 31
//   affine     i = sum of code * q;        y = fma(float(i), scale * s, y), then y = fma(minimum, s * float(sum of q), y)
struct QMatmulArgs {
  const float* x;
  const PanelRange* ranges;
  float* y;
  int64_t x_stride, y_stride;
  int64_t tokens, count, inputs;  // count: ranges
};

// y[t, :] = scale * w[ids[t], :], with the values defined above, product and sum rounded apart.
struct QGatherArgs {
  const PanelRange* ranges;
  const int64_t* ids;
  float* y;
  float scale;
  int64_t tokens, count, inputs;
};

// y[t, :] = scale * w[ids[t], :].
struct GatherArgs {
  const void* panels;
  const int64_t* ids;
  float* y;
  float scale;
  int64_t tokens, outputs, inputs;
  Element element;
};

// s = x + residual (or x); c = s - mean(s) if ``center``, else s; out = c / sqrt(mean(c * c) + eps) * weight (+ bias).
// Rows are (outer, inner) pairs; inner rows of x are contiguous.
struct NormArgs {
  const float* x;
  const float* residual;  // contiguous, or null
  const float* weight;
  const float* bias;  // or null
  float* out;  // contiguous
  float* sum;  // contiguous; null exactly if residual is
  float eps;
  int64_t outer, inner, width;
  int64_t x_stride;  // between outer rows
  int64_t weight_stride;  // between inner rows, of weight and bias: 0 if they share one
  bool center;
};

// Rotate the first ``rot`` components of each head, in place: pairs are (i, i + rot / 2), or neighbours (2 i, 2 i + 1) if ``interleaved``.
// table [positions, rot]: rot / 2 cosines, then rot / 2 sines.
struct RopeArgs {
  float* q;
  float* k;
  const int64_t* positions;
  const float* table;
  int64_t q_stride, k_stride;  // between tokens
  int64_t tokens, heads, kv_heads, head_dim, rot;
  bool interleaved;
};

enum class Activation : int32_t { silu, gelu, gelu_tanh, relu, relu2, count };  // relu2: max(x, 0)^2

// y[t, f] = act(x[t, f]), times x[t, F + f] if ``gated``.
struct ActArgs {
  const float* x;
  float* y;
  int64_t x_stride;
  int64_t tokens, features;
  Activation kind;
  bool gated;
};

// y[t, k] = x[t, columns[k]]; y contiguous.
struct TakeArgs {
  const float* x;
  const int32_t* columns;
  float* y;
  int64_t x_stride, tokens, width;
};

// y[t, n] = x[t, n] * scale, plus other[t, n], then bounded to -limit .. limit; each step rounds. y contiguous, and may be x.
struct AddArgs {
  const float* x;
  const float* other;  // or null
  float* y;
  float scale, limit;
  int64_t x_stride, other_stride;  // other_stride 0: the same for every token
  int64_t tokens, width;
};

// Store k, v of the step in the paged cache, then causal attention of q over it.
//
// Order for a (token, head): scores are chains over d; positions are walked in tiles of 64 at absolute multiples of 64 with online softmax, and
// in splits of 512 at absolute multiples of 512, each from a fresh state; splits are combined in ascending order.
struct AttentionArgs {
  const float *q, *k, *v;
  float* out;  // [T, H, D] contiguous
  void *key_cache, *value_cache;
  float *key_scales, *value_scales;  // null unless the elements have 8 bits
  Element cache_type;
  const int32_t *offsets, *starts, *tables;
  const float* slopes;  // ALiBi, one a query head, or null
  int64_t q_stride, k_stride, v_stride;  // between tokens; heads are contiguous
  int64_t tokens, rows, heads, kv_heads, head_dim, block_size, table_stride;
  int64_t window;  // 0: none
  float scale, softcap;  // softcap 0: none
};

// Token ids of the rows, by the rules that octavo/backend/sampling.py states:
//
// 1. NaN counts as -inf. If nothing is above -inf the answer is -1. Greedy (temperature < 1e-5): the largest logit, lowest id on ties.
// 2. x = logit / temperature in float32, then float64. If some x is +inf, the lowest id of those wins.
// 3. top_k in 1 .. V - 1 keeps every x that is at least the k-th largest.
// 4. top_p < 1 sorts what is left by x descending, ties by id, takes e = exp(x - max) and keeps the shortest prefix whose sum reaches top_p
//    times the whole sum, at least one token. Sums are float64. 5. min_p > 0 keeps e >= min_p.
// 6. The largest x + noise wins, lowest id on ties. Noise of token i: lane i % 4 of Philox4x32-10 with counter (i / 4, index, position low,
//    position high) and key (seed low, seed high); u = (lane + 0.5) * 2^-32; noise = -log(-log(u)), all in float64.
struct SampleArgs {
  const float* logits;
  int64_t stride, rows, vocab;
  const float* temperature;
  const int32_t* top_k;
  const float *top_p, *min_p;
  const uint64_t* seed;
  const uint32_t* index;
  const uint64_t* position;
  int64_t* out;
};

struct KernelSet {
  const char* name;
  void (*matmul)(const MatmulArgs&);
  void (*pack)(const PackArgs&);
  void (*gather)(const GatherArgs&);
  void (*qmatmul)(const QMatmulArgs&);
  bool (*qpack)(const QPackArgs&);
  void (*qgather)(const QGatherArgs&);
  void (*norm)(const NormArgs&);
  void (*rope)(const RopeArgs&);
  void (*act)(const ActArgs&);
  void (*take)(const TakeArgs&);
  void (*add)(const AddArgs&);
  void (*attention)(const AttentionArgs&);
  void (*sample)(const SampleArgs&);
};

extern const KernelSet generic_kernels;
#if defined(OCTAVO_X86_64)
extern const KernelSet avx2_kernels;
extern const KernelSet avx512_kernels;
// Replace the quantized product of a set above where the processor has the dot products of VNNI.
void qmatmul_avxvnni(const QMatmulArgs&);
void qmatmul_avx512vnni(const QMatmulArgs&);
#endif

}  // namespace octavo
