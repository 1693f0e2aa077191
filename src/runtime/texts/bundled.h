// This file gives access to the texts that come with fidelio for calibration, certificates and drafts. They are part
// of the program, compressed, so it needs no files beside it. Their paths are fidelio:/NAME, wherever the path of a
// text may stand.
#pragma once
#include <string>
#include <string_view>

namespace fidelio {

// Returns the path of a bundled text: "fidelio:/docs-heldout.txt" for "docs-heldout.txt". Throws Error that lists the
// texts there are if none has this name.
std::string bundled_text(std::string_view name);

// Returns the text of a bundled text or of a file. Throws Error if there is none.
std::string read_text(const std::string& path);

// Returns true if there is a bundled text, a file or a folder of that name.
bool text_exists(const std::string& path);

}  // namespace fidelio
