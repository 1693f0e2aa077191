// This file lists the names of the files in a checkpoint's folder.
#pragma once
#include <string>
#include <vector>

#include "core/foreign/text_files.h"

namespace fidelio {

// Returns true if write_checkpoint() writes a file of this name into its folder. When such a folder is removed, only
// such files are.
bool is_checkpoint_file(const std::string& name);

// Returns the names of the existing files beside config.json and the weights: the tokenizer's, chat templates,
// generation defaults.
std::vector<std::string> companion_names(const TextFiles& files);

}  // namespace fidelio
