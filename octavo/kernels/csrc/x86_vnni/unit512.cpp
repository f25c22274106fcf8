#include "kernels.h"
// Vectors first.
#include "x86_avx512/vec.h"
#include "x86_vnni/dot512.h"
#include "ops/qmatmul.h"

namespace octavo {
void qmatmul_avx512vnni(const QMatmulArgs& args) { qmatmul(args); }
}  // namespace octavo
