// Which kernel set this processor and its operating system can run.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace octavo {

// Names of the sets that can run here, best last; "generic" always can.
std::vector<std::string> available_isas();
// The set in use. The first call chooses: the best available, or the one that the environment variable OCTAVO_ISA names.
const KernelSet& kernels();
// Throws std::invalid_argument, listing what is available, for a set that cannot run here.
void select_isa(const std::string& name);

}  // namespace octavo
