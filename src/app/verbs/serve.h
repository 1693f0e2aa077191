// This file declares the verb `serve`.
#pragma once
#include <CLI/CLI.hpp>

namespace fidelio::app {

void add_serve(CLI::App& app);

}  // namespace fidelio::app
