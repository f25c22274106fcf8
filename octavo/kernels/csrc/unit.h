// Instantiates every operation for the vec.h and dot.h included before it. All of it has internal linkage: nothing compiled with one instruction
// set's flags may be picked by the linker for another.
#pragma once

#include "kernels.h"
#include "ops/math.h"

// These use math.h.
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/pack.h"
#include "ops/qmatmul.h"
#include "ops/qpack.h"
#include "ops/sample.h"

#define OCTAVO_KERNEL_SET(variable, name)                                                            \
  namespace octavo {                                                                                 \
  const KernelSet variable = {name, matmul, pack, gather, qmatmul, qpack, qgather, norm, rope, act, take, add, attention, \
                              sample};                                                                  \
  }
