// Elementary functions on sixteen floats. Made of additions, multiplications and divisions, so a lane's bits depend on its own value alone.
// Include after a vec.h.
#pragma once

#include <limits>

namespace octavo {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896341f;
// ln 2 in two parts; the first has few bits, so n times it is exact.
constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;

// e^r for r = x - n ln 2. Coefficients: S. Moshier, Cephes, expf (on |r| <= ln 2 / 2 the error is below 1e-7).
inline Vec exp_reduced(Vec x, Vec n) {
  const Vec r = fma(n, Vec::set(-kLn2Low), fma(n, Vec::set(-kLn2High), x));
  Vec p = Vec::set(1.9875691500e-4f);
  p = fma(p, r, Vec::set(1.3981999507e-3f));
  p = fma(p, r, Vec::set(8.3334519073e-3f));
  p = fma(p, r, Vec::set(4.1665795894e-2f));
  p = fma(p, r, Vec::set(1.6666665459e-1f));
  p = fma(p, r, Vec::set(5.0000001201e-1f));
  return fma(p, r * r, r) + Vec::set(1.0f);
}

// e^x for x <= 0: exactly 1 at 0, 0 below -87.3 (where the result would be subnormal), NaN for NaN.
inline Vec exp_nonpositive(Vec x) {
  const Vec least = Vec::set(-87.3f);
  const Vec clamped = max(least, x);
  const Vec n = round(clamped * Vec::set(kLog2E));
  const Vec y = exp_reduced(clamped, n) * power_of_two(n);
  return select_less(x, least, Vec::zero(), y);
}

// e^x for any x; infinity above 88.72, 0 below -104, NaN for NaN.
inline Vec exp(Vec x) {
  const Vec clamped = min(Vec::set(89.0f), max(Vec::set(-105.0f), x));
  const Vec n = round(clamped * Vec::set(kLog2E));
  const Vec half = round(n * Vec::set(0.5f));  // in two factors, since 2^n itself may be out of range
  return exp_reduced(clamped, n) * power_of_two(half) * power_of_two(n - half);
}

// Coefficients: Cephes, tanhf.
inline Vec tanh(Vec x) {
  const Vec z = x * x;
  Vec p = Vec::set(-5.70498872745e-3f);
  p = fma(p, z, Vec::set(2.06390887954e-2f));
  p = fma(p, z, Vec::set(-5.37397155531e-2f));
  p = fma(p, z, Vec::set(1.33314422036e-1f));
  p = fma(p, z, Vec::set(-3.33332819422e-1f));
  const Vec near = fma(p * z, x, x);
  const Vec magnitude = abs(x);
  const Vec far = Vec::set(1.0f) - Vec::set(2.0f) / (exp(magnitude + magnitude) + Vec::set(1.0f));
  return select_less(magnitude, Vec::set(0.625f), near, with_sign(far, x));
}

// Normal distribution function, absolute error below 1e-7 and small in proportion on the left as well: with t = |x| / sqrt(2) it is
// 1/2 + 1/2 erf below t = 0.92, where erf = t P(t^2), and e^Q(t) / 2 or its complement above. P and Q were fitted by least squares on
// Chebyshev nodes; beyond t = 4 the smaller side is below 8e-9 and counts as 0.
inline Vec normal_cdf(Vec x) {
  const Vec signed_t = x * Vec::set(0.70710678118654752f), t = abs(signed_t), z = t * t, half = Vec::set(0.5f), one = Vec::set(1.0f);
  Vec p = Vec::set(8.40484936e-5f);
  p = fma(p, z, Vec::set(-8.1513403e-4f));
  p = fma(p, z, Vec::set(5.20183751e-3f));
  p = fma(p, z, Vec::set(-2.68597454e-2f));
  p = fma(p, z, Vec::set(1.12837024e-1f));
  p = fma(p, z, Vec::set(-3.76126349e-1f));
  p = fma(p, z, Vec::set(1.12837923f));
  const Vec clamped = min(Vec::set(4.0f), t);
  Vec q = Vec::set(-2.11626557e-5f);
  q = fma(q, clamped, Vec::set(4.35227092e-4f));
  q = fma(q, clamped, Vec::set(-4.17468091e-3f));
  q = fma(q, clamped, Vec::set(2.51287185e-2f));
  q = fma(q, clamped, Vec::set(-1.08294085e-1f));
  q = fma(q, clamped, Vec::set(-6.33334517e-1f));
  q = fma(q, clamped, Vec::set(-1.12952089f));
  q = fma(q, clamped, Vec::set(1.75885521e-4f));
  const Vec smaller = select_less(Vec::set(4.0f), t, Vec::zero(), exp_nonpositive(q) * half);
  const Vec far = select_less(x, Vec::zero(), smaller, one - smaller);
  return select_less(t, Vec::set(0.92f), fma(p * signed_t, half, half), far);
}

}  // namespace
}  // namespace octavo
