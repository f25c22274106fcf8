// Instantiates every operation for the vec.h included before it. All of it has internal linkage: nothing compiled with one instruction set's
// flags may be picked by the linker for another.
#pragma once

#include "kernels.h"
#include "ops/math.h"
// The order matters: math.h serves the others.
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/pack.h"
#include "ops/sample.h"

#define OCTAVO_KERNEL_SET(variable, name) \
  namespace octavo {                      \
  const KernelSet variable = {name, matmul, pack, gather, norm, rope, act_mul, attention, sample}; \
  }
