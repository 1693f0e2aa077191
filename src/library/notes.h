// This file collects what the program would log, so that a caller may ask for it. A library prints nothing.
#pragma once
#include <string>

namespace fidelio::library {

void collect_notes();      // Log messages of all rooms are kept from now on; more than one call does nothing.
std::string take_notes();  // It returns the lines that came since the last call, each with its newline.

}  // namespace fidelio::library
