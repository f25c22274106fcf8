#include "generic/vec.h"
#include "peaks_unit.h"

namespace octavo {
namespace {

double int_chains(int32_t* sink) {
  constexpr int lanes = 16;
  uint32_t sums[lanes] = {};
  uint8_t codes[lanes];
  for (int j = 0; j < lanes; ++j) codes[j] = static_cast<uint8_t>(3 * j);
  for (int i = 0; i < kSteps; ++i) {
    const auto value = static_cast<int8_t>(i);
    for (int j = 0; j < lanes; ++j) sums[j] += static_cast<uint32_t>(codes[j] * value);
  }
  for (int j = 0; j < lanes; ++j) sink[j] = static_cast<int32_t>(sums[j]);
  return 2.0 * lanes * kSteps;
}

}  // namespace

const PeakSet generic_peaks = {read_all, float_chains<3>, int_chains};
}  // namespace octavo
