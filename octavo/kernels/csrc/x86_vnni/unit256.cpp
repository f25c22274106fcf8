#include "kernels.h"
// Vectors first.
#include "x86_avx2/vec.h"
#include "x86_vnni/dot256.h"
#include "ops/qmatmul.h"

namespace octavo {
void qmatmul_avxvnni(const QMatmulArgs& args) { qmatmul(args); }
}  // namespace octavo
