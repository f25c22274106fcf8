"""Arithmetic whose bits depend on the values alone.

torch may change the result of ``sum``, ``exp`` or ``tanh`` with the number of rows, the place in a buffer or the number of threads. Elementwise
IEEE addition, subtraction, multiplication and division never do, so everything here is made of those, in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOG2_E = 1.4426950408889634
# ln 2 in two parts; the first has 32 significant bits, so n * _LN2_HIGH is exact for |n| < 2**21.
_LN2_HIGH = 0.6931471803691238
_LN2_LOW = 1.9082149292705877e-10
_ROUNDER = 1.5 * 2.0**52  # adding and subtracting it rounds to an integer; torch's round_ starts threads for small inputs
_EXP_LEAST, _EXP_MOST = -708.0, 709.0  # normal float64 results
# 1 / n! for n = 13 .. 0: on |r| <= ln 2 / 2 the error of this Taylor polynomial is below 5e-18.
_EXP_TERMS = (
    1.6059043836821613e-10, 2.08767569878681e-09, 2.505210838544172e-08, 2.755731922398589e-07, 2.7557319223985893e-06, 2.48015873015873e-05,
    1.984126984126984e-04, 1.388888888888889e-03, 8.333333333333333e-03, 4.1666666666666664e-02, 1.6666666666666666e-01, 0.5, 1.0, 1.0,
)
_ERF_CHUNK = 4096  # below torch's threshold for threads


def fold_sum(x: Tensor, dim: int) -> Tensor:
    """Sum over ``dim`` by adding halves; the order depends on the length of ``dim`` alone. Overwrites ``x``."""
    n = x.shape[dim]
    if n == 0:
        return torch.zeros(x.shape[:dim] + x.shape[dim:][1:], dtype=x.dtype)
    while n > 1:
        half = 1 << ((n - 1).bit_length() - 1)  # largest power of two below n
        x.narrow(dim, 0, n - half).add_(x.narrow(dim, half, n - half))
        n = half
    return x.select(dim, 0)


def exp(x: Tensor) -> Tensor:
    """e**x of float64, within 2 units in the last place; below -708 it is zero, above 709 it stays at e**709."""
    r = x.clamp(_EXP_LEAST, _EXP_MOST)
    n = (r * _LOG2_E).add_(_ROUNDER).sub_(_ROUNDER)
    r = (r - n * _LN2_HIGH) - n * _LN2_LOW
    y = torch.full_like(r, _EXP_TERMS[0])
    for term in _EXP_TERMS[1:]:
        y.mul_(r).add_(term)
    y.mul_(n.to(torch.int64).add_(1023).bitwise_left_shift_(52).view(torch.float64))
    return y.mul_(~(x < _EXP_LEAST))  # y is finite here; masked_fill_ would start threads for any size


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent of float64, absolute error below 1e-15."""
    return 1.0 - 2.0 / (exp(2.0 * x) + 1.0)


def erf(x: Tensor) -> Tensor:
    """Error function of a float64 matrix. Each piece of a row is computed alone in a buffer of its own, so its neighbours cannot matter."""
    out = torch.empty_like(x)
    for row, target in zip(x, out, strict=True):
        for at in range(0, row.shape[0], _ERF_CHUNK):
            target[at : at + _ERF_CHUNK] = torch.erf(row[at : at + _ERF_CHUNK].clone())
    return out
