// A model as a server holds it.
#pragma once
#include <string>

#include "app/options/common.h"
#include "app/options/draft.h"
#include "serve/engine_thread.h"

namespace fidelio::app {

struct ServedOptions {
  RunOptions run;
  DraftOptions draft;
  std::string name;  // "": the folder's
  bool sanitize_control_tokens = false;
  int64_t max_sequences = 64;
  int64_t cache_tokens = 0;  // 0: 16384 on a CPU, 2048 a sequence on a GPU that has room
};

serve::Loaded load_served(const ServedOptions& options);

// How a model is run: what decides which of its certificate's figures hold.
struct RunAs {
  std::string activations, kv;
  int64_t context = 0;  // of the longest text
  bool other_kernels_than(const RunAs& other) const { return activations != other.activations || kv != other.kv; }
};
// "certified for a16, f16 and 512 tokens; this is a8, i8"; of a longer text alone "..; this is up to 2048 tokens", and ""
// where the run is as certified.
std::string otherwise_than_certified(const RunAs& certified, const RunAs& run);
// Says that in one line on standard error: a warning where other kernels run, a note where only texts are longer. Nothing
// for a model without a certificate. `context`: of the longest text of this run.
void say_if_not_as_certified(const Checkpoint& checkpoint, const RunnerOptions& options, int64_t context);

}  // namespace fidelio::app
