// Text that a stranger wrote (a file's names and values, a model's answer) on its way to a terminal or a log. Printed
// as it is, it could move the cursor, rename the window, hide or reorder what stands beside it, or fill the screen.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace fidelio {

enum class Lines { escaped, kept };  // what becomes of newlines and tabs

// `text` with everything that a terminal would obey instead of showing spelt out: control characters (C0, DEL, C1) and
// bytes that are not UTF-8 as \x1b, characters that change the direction or the place of others (U+061C, U+200E,
// U+200F, U+2028 to U+202E, U+2066 to U+2069, U+FEFF, the tags U+E0000 to U+E007F) as \u202e. Text without any of these
// comes back as it is, so that escaping twice is escaping once.
std::string visible(std::string_view text, Lines lines = Lines::escaped);

// visible(), and of more than `most` bytes only the beginning and the end, with how many there were. Every message of an
// exception is printed through this (app/main.cc); a value that may be long is put into a message through it.
inline constexpr size_t kForeignBytes = 400;
std::string foreign(std::string_view text, Lines lines = Lines::escaped, size_t most = kForeignBytes);

// A to Z as a to z; other bytes as they are, whatever the locale.
std::string lower_case(std::string_view text);

// %2F as /, and so on, as in paths and fragments of URLs; a % before anything else than two digits stays.
std::string percent_decoded(std::string_view text);

}  // namespace fidelio
