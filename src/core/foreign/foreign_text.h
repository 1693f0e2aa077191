// This file makes a stranger's text (names and values of a file, the answer of a model) safe to print on a terminal or
// in a log. Printed as it is, such text could move the cursor, rename the window, hide or reorder what stands beside
// it, or fill the screen.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace fidelio {

enum class Lines { escaped, kept };  // This says whether newlines and tabs are escaped or kept.

// Returns `text` with everything spelt out that a terminal would obey instead of showing. Control characters (C0, DEL,
// C1) and bytes that are not UTF-8 become \x1b and the like. Characters that change the direction or the place of
// others (U+061C, U+200E, U+200F, U+2028 to U+202E, U+2066 to U+2069, U+FEFF, the tags U+E0000 to U+E007F) become
// \u202e and the like. Text without any of these is returned as it is, so escaping twice is the same as escaping once.
std::string visible(std::string_view text, Lines lines = Lines::escaped);

// Returns visible(text), shortened if it has more than `most` bytes to its beginning and its end with the number of
// bytes between them. Every message of an exception is printed through this function (app/main.cc), and a value that
// may be long is put into a message through it.
inline constexpr size_t kForeignBytes = 400;
std::string foreign(std::string_view text, Lines lines = Lines::escaped, size_t most = kForeignBytes);

// Returns the text with A to Z as a to z. Other bytes are returned as they are, whatever the locale.
std::string lower_case(std::string_view text);

// Decodes %2F to / and so on, as in paths and fragments of URLs. A % that is not followed by two hex digits stays.
std::string percent_decoded(std::string_view text);

}  // namespace fidelio
