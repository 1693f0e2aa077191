// This file tells what this program is and how it was called, for --version, reports and pages.
#pragma once
#include <string>

namespace fidelio::app {

std::string version_text();  // It looks like "fidelio 0.1.0, commit 57b83dd, cpu avx2, without CUDA".

void remember_command(int argc, char** argv);
std::string command_text();  // This is the command as it was typed, without the folders of paths.
std::string made_by();       // This is version, date and command, which end every page.

}  // namespace fidelio::app
