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

}  // namespace fidelio::app
