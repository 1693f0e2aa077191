#include "compress/self_samples.h"

#include "core/progress.h"
#include "core/rng.h"
#include "engine/generate.h"

namespace fidelio {
namespace {

constexpr int64_t kPrefix = 4;  // tokens of text a sample starts with

}  // namespace

std::vector<std::vector<int32_t>> sample_sequences(
    const std::function<std::unique_ptr<Runner>(const RunnerOptions&)>& make_runner, const RunnerOptions& serving,
    std::span<const std::vector<int32_t>> text, int64_t tokens, int64_t context, uint64_t seed, int64_t side_by_side) {
  check(!text.empty(), "samples of the model itself start with tokens of the calibration text: there is none");
  RunnerOptions options = serving;
  options.mode = Activations::a16;
  options.max_rows = std::max<int64_t>(4 * side_by_side, options.max_rows);
  options.cache_tokens = side_by_side * (context + kPageTokens);
  options.context = context;
  const std::unique_ptr<Runner> runner = make_runner(options);

  const int64_t count = (tokens + context - 1) / context;
  std::vector<GenerationRequest> requests(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    GenerationRequest& r = requests[static_cast<size_t>(i)];
    const std::vector<int32_t>& start = text[static_cast<size_t>(i * static_cast<int64_t>(text.size()) / count)];
    const int64_t length = std::min(context, tokens - i * context),
                  prefix = std::min({kPrefix, length - 1, static_cast<int64_t>(start.size())});
    check(prefix > 0, "--calibration-samples {}: the last sample would have {} tokens; give {} fewer", tokens, length,
          length);
    r.prompt.assign(start.begin(), start.begin() + prefix);
    r.max_tokens = length - prefix;
    r.sampling.temperature = 1;
    r.sampling.seed = Rng(seed, static_cast<uint64_t>(i)).next();
  }
  std::vector<std::vector<int32_t>> sequences;
  for (const GenerationRequest& r : requests) sequences.push_back(r.prompt);
  Progress progress("sampling", count);
  GenerationOptions how;
  how.max_sequences = side_by_side;
  how.on_finish = [&](int64_t, const Generation&) { progress.advance(1); };
  const std::vector<Generation> made = generate(*runner, std::move(requests), how);
  for (size_t i = 0; i < made.size(); ++i)
    sequences[i].insert(sequences[i].end(), made[i].ids.begin(), made[i].ids.end());
  return sequences;
}

}  // namespace fidelio
