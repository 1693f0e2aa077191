// This file declares the verb `bench tune`, which times a step of tuning a layer with random weights.
#pragma once
#include "app/options/common.h"

namespace fidelio::app {

void add_bench_tune(CLI::App& bench);

}  // namespace fidelio::app
