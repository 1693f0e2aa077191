// generate: all the answers to a list of requests, by an Engine that is made for them.
#pragma once
#include <functional>
#include <vector>

#include "engine/engine.h"

namespace fidelio {

struct GenerationOptions {
  Reading reading{};
  int64_t max_sequences = 0;             // running at once; 0 = as many as a batch holds
  const Tokenizer* tokenizer = nullptr;  // fills Generation::text, finds stop strings
  bool special_in_text = false;          // special tokens are part of the text
  SpeculationOptions speculation{};
  std::function<void(int64_t request, int32_t id)> on_token{};
  std::function<void(int64_t request, const Generation& generation)> on_finish{};  // in the order requests end
  EngineCounters* counters = nullptr;                                              // filled at the end
};

// Throws Error where one of them could not go on.
std::vector<Generation> generate(Runner& runner, std::vector<GenerationRequest> requests,
                                 const GenerationOptions& options = {});

}  // namespace fidelio
