// This file declares the verb `bench linear`.
#pragma once
#include <CLI/CLI.hpp>

namespace fidelio::app {

void add_bench_linear(CLI::App& bench);

}  // namespace fidelio::app
