// generate() returns all the answers to a list of requests, using an Engine that is made for them.
#pragma once
#include <functional>
#include <vector>

#include "engine/engine.h"

namespace fidelio {

struct GenerationOptions {
  Reading reading{};
  int64_t max_sequences = 0;             // sequences running at once; 0 means as many as a batch holds
  const Tokenizer* tokenizer = nullptr;  // fills Generation::text and finds stop strings
  bool special_in_text = false;          // whether special tokens are part of the text
  int64_t state_slots = 0;               // as EngineOptions has them
  SpeculationOptions speculation{};
  std::function<void(int64_t request, int32_t id)> on_token{};
  // Called in the order in which requests end.
  std::function<void(int64_t request, const Generation& generation)> on_finish{};
  EngineCounters* counters = nullptr;  // filled at the end
};

// Returns the answers in the order of the requests. Throws Error if one of them could not continue.
std::vector<Generation> generate(Runner& runner, std::vector<GenerationRequest> requests,
                                 const GenerationOptions& options = {});

}  // namespace fidelio
