// Texts that come with fidelio, for calibration, certificates and drafts. They are part of the program (compressed), so that it
// needs no files beside it, and are named fidelio:/NAME wherever the path of a text may stand.
#pragma once
#include <string>
#include <string_view>

namespace fidelio {

// "docs-heldout.txt" -> "fidelio:/docs-heldout.txt". Throws Error, naming those there are, for a name that none of them has.
std::string bundled_text(std::string_view name);

// The text behind a path: of a bundled text, else of the file. Throws Error where there is none.
std::string read_text(const std::string& path);

// Returns true if there is a bundled text, a file or a folder of that name.
bool text_exists(const std::string& path);

}  // namespace fidelio
