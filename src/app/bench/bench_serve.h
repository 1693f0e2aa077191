// This file declares the verb `bench serve`.
#pragma once
#include <CLI/CLI.hpp>

namespace fidelio::app {

void add_bench_serve(CLI::App& bench);

}  // namespace fidelio::app
