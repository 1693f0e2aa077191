// This file gives the Jinja interpreter Python's operations on text, over UTF-8: code points, white space, case, repr.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fidelio::jinja {

class Meter;

// A byte that is not part of well-formed UTF-8 decodes to kRawByte + byte and encodes back to itself.
inline constexpr char32_t kRawByte = 0x200000;

std::u32string decode(std::string_view utf8);
void append(std::string& out, char32_t code_point);
std::string encode(std::u32string_view code_points);
size_t length(std::string_view utf8);  // It counts code points.

bool is_space(char32_t c);  // This is Python's str.isspace.
// Returns the byte offset one past the code point that starts at `begin`.
size_t next_code_point(std::string_view utf8, size_t begin);

// These are Python's str.strip family. A null set of characters means white space.
std::string_view strip(std::string_view s, const std::string* characters, bool left, bool right);
std::string upper(std::string_view s);
std::string lower(std::string_view s);
std::string capitalize(std::string_view s);
std::string title(std::string_view s);  // This is Python's str.title: a word starts after anything that has no case.
// This is the Jinja filter: a word starts after white space or one of -({[<.
std::string title_filter(std::string_view s);
bool is_upper(std::string_view s);
bool is_lower(std::string_view s);

// Return where `what` begins in `s`, or npos: the first place at or after `from`, or the last of all. They take time
// linear in both texts.
size_t find_text(std::string_view s, std::string_view what, size_t from);
size_t find_last_text(std::string_view s, std::string_view what);

// These charge the meter for each part before they make it.
std::vector<std::string> split(std::string_view s, const std::string* separator, int64_t max_splits, Meter& meter);
std::vector<std::string> rsplit(std::string_view s, const std::string* separator, int64_t max_splits, Meter& meter);
std::vector<std::string> split_lines(std::string_view s, bool keep_ends, Meter& meter);
std::string replace(std::string_view s, std::string_view from, std::string_view to, int64_t count, Meter& meter);

std::string repr(std::string_view s);  // This is Python's repr of a str.
std::string repr(double x);  // This is Python's repr of a float, the shortest text that reads back as the same value.
std::string json_quote(std::string_view s, bool ascii_only);

}  // namespace fidelio::jinja
