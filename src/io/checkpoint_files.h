// The names of what a checkpoint's folder holds.
#pragma once
#include <string>

namespace fidelio {

// Whether write_checkpoint() writes a file of this name into its folder: what to remove of such a folder, and nothing else.
bool is_checkpoint_file(const std::string& name);

}  // namespace fidelio
