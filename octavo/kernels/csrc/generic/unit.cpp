#include "kernels.h"
// Vectors first.
#include "generic/vec.h"
#include "generic/dot.h"
#include "unit.h"

OCTAVO_KERNEL_SET(generic_kernels, "generic")
