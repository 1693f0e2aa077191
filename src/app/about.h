// app: what this program is and how it was called, for --version, reports and pages.
#pragma once
#include <string>

namespace fidelio::app {

std::string version_text();  // "fidelio 0.1.0, commit 57b83dd, cpu avx2, without CUDA"

void remember_command(int argc, char** argv);
std::string command_text();  // as it was typed, but for the folders of paths
std::string made_by();       // version, date and command: the foot of every page

}  // namespace fidelio::app
