#include "kernels.h"
// Vectors first.
#include "x86_avx2/vec.h"
#include "x86_avx2/dot.h"
#include "unit.h"

OCTAVO_KERNEL_SET(avx2_kernels, "avx2")
