#include "engine/generate.h"

#include <algorithm>

#include "core/error.h"

namespace fidelio {

std::vector<Generation> generate(Runner& runner, std::vector<GenerationRequest> requests,
                                 const GenerationOptions& options) {
  EngineOptions how;
  how.reading = options.reading;
  how.max_sequences = std::max<int64_t>(1, std::ssize(requests));
  if (options.max_sequences > 0) how.max_sequences = std::min(how.max_sequences, options.max_sequences);
  how.tokenizer = options.tokenizer;
  how.special_in_text = options.special_in_text;
  how.state_slots = options.state_slots;
  how.speculation = options.speculation;
  Engine engine(runner, std::move(how));
  std::vector<Generation> results(requests.size());
  for (GenerationRequest& request : requests) {
    RequestEvents events;
    if (options.on_token) events.on_token = [&](const NewToken& token) { options.on_token(token.request, token.id); };
    events.on_finish = [&](int64_t number, Generation&& generation) {
      check(generation.error.empty(), "{}", generation.error);
      Generation& result = results[static_cast<size_t>(number)] = std::move(generation);
      if (options.on_finish) options.on_finish(number, result);
    };
    engine.add(std::move(request), std::move(events));
  }
  while (engine.step()) {
  }
  if (options.counters != nullptr) *options.counters = engine.counters();
  return results;
}

}  // namespace fidelio
