// This file loads a model for serving.
#pragma once
#include <string>

#include "app/options/common.h"
#include "app/options/draft.h"
#include "serve/engine_thread.h"

namespace fidelio::app {

struct ServedOptions {
  RunOptions run;
  DraftOptions draft;
  std::string name;  // "" means the name of the folder.
  bool sanitize_control_tokens = false;
  int64_t max_sequences = 64;
  int64_t cache_tokens = 0;  // 0 means 16384 on a CPU, and 2048 a sequence on a GPU that has room.
  int64_t state_slots = 0;   // 0 means as EngineOptions says, on a GPU within half of the memory that is left.
};

// Adds the options about how a served model is run, which are those of every verb that runs one, of drafts, and of
// answers side by side. MODEL and --name are not among them.
void add_served(CLI::App& verb, ServedOptions& options);

serve::Loaded load_served(const ServedOptions& options);

// This describes how a model is run, which decides whether the figures of its certificate apply.
struct RunAs {
  std::string activations, kv;
  int64_t context = 0;  // It is the context of the longest text.
  bool other_kernels_than(const RunAs& other) const { return activations != other.activations || kv != other.kv; }
};
// Returns "certified for a16, f16 and 512 tokens; this is a8, i8", or "..; this is up to 2048 tokens" if only the text
// is longer, or "" where the run is as certified.
std::string otherwise_than_certified(const RunAs& certified, const RunAs& run);
// Prints this in one line on standard error: a warning where other kernels run, a note where only texts are longer.
// Prints nothing for a model without a certificate. `context` is that of the longest text of this run.
void say_if_not_as_certified(const Checkpoint& checkpoint, const RunnerOptions& options, int64_t context);

}  // namespace fidelio::app
