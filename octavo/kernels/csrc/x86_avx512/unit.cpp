#include "kernels.h"
// Vectors first.
#include "x86_avx512/vec.h"
#include "unit.h"

OCTAVO_KERNEL_SET(avx512_kernels, "avx512")
