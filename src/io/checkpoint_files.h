// This file lists the names of the files in a checkpoint's folder.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/foreign/text_files.h"

namespace fidelio {

// Returns true if write_checkpoint() writes a file of this name into its folder. When such a folder is removed, only
// such files are.
bool is_checkpoint_file(const std::string& name);

// Returns the names of the existing files beside config.json and the weights: the tokenizer's, chat templates,
// generation defaults.
std::vector<std::string> companion_names(const TextFiles& files);

// Copies such a file, if it is there, as copy_companions() copies all of them.
void copy_companion(const TextFiles& from, const std::string& name, const std::string& to_folder);

// A checkpoint that was certified on its own answers has them beside its weights, so that they are there to be measured
// again (docs/formats.md). Exports in folders have them, too.
inline constexpr std::string_view kOwnTextFile = "own-text.jsonl";

}  // namespace fidelio
