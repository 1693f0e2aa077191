// The names of what a checkpoint's folder holds.
#pragma once
#include <string>
#include <vector>

#include "core/foreign/text_files.h"

namespace fidelio {

// Returns true if write_checkpoint() writes a file of this name into its folder. Such files, and nothing else, are to
// be removed from such a folder.
bool is_checkpoint_file(const std::string& name);

// Returns the names of the files that stand beside config.json and the weights, where they are there: the tokenizer's,
// chat templates, generation defaults.
std::vector<std::string> companion_names(const TextFiles& files);

}  // namespace fidelio
