// What `tune` reads: text, and text that the source writes itself.
#pragma once
#include <string>
#include <vector>

#include "app/options/common.h"
#include "train/tune/tuner.h"

namespace fidelio::app {

struct TuneText {
  std::vector<std::string> files;
  int64_t tokens = 524288, samples = 131072, held = 8192;
  std::string samples_file;  // "": they are not kept
};

// Windows to tune on, and those held out to stop by: every k-th of text and samples alike.
train::TuneData read_tune_data(const TuneText& text, const RunOptions& run, const Checkpoint& source, int64_t context,
                               uint64_t seed);

// --products; nothing given: TF32 on a GPU. Throws Error for anything but FP32 on a CPU.
train::Products parse_products(const std::string& name, bool gpu);

}  // namespace fidelio::app
