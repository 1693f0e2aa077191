// The names of what a checkpoint's folder holds.
#pragma once
#include <string>

namespace fidelio {

// Returns true if write_checkpoint() writes a file of this name into its folder. Such files, and nothing else, are to
// be removed from such a folder.
bool is_checkpoint_file(const std::string& name);

}  // namespace fidelio
