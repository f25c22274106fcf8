#include "kernels.h"
// Vectors first.
#include "x86_avx512/vec.h"
#include "x86_avx512/dot.h"
#include "unit.h"

OCTAVO_KERNEL_SET(avx512_kernels, "avx512")
