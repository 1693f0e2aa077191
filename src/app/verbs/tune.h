// This file declares the verb `tune`.
#pragma once
#include <CLI/CLI.hpp>

namespace fidelio::app {

void add_tune(CLI::App& app);

}  // namespace fidelio::app
