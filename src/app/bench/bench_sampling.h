// This file declares the verb `bench sampling`.
#pragma once
#include <CLI/CLI.hpp>

namespace fidelio::app {

void add_bench_sampling(CLI::App& bench);

}  // namespace fidelio::app
