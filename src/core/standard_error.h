// This file prints messages for the person who runs the program.
#pragma once
#include <string_view>

namespace fidelio {

// Prints to standard error. Text that cannot be written (the disk is full, or nobody reads) is lost without a further
// effect, since a message must not end the program.
void print_error(std::string_view text) noexcept;

}  // namespace fidelio
