// This file declares the verb `bench speculate`.
#pragma once
#include <CLI/CLI.hpp>

namespace fidelio::app {

void add_bench_speculate(CLI::App& bench);

}  // namespace fidelio::app
