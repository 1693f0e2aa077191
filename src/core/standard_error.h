// Messages for whoever runs the program.
#pragma once
#include <string_view>

namespace fidelio {

// Prints to standard error. What cannot be written there (a full disk, nobody who reads) is lost, and nothing else: a
// message must not be what ends a program.
void print_error(std::string_view text) noexcept;

}  // namespace fidelio
