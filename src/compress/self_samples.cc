#include "compress/self_samples.h"

#include "core/progress.h"
#include "core/rng.h"
#include "engine/generate.h"

namespace fidelio {
namespace {

constexpr int64_t kPrefix = 4;  // A sample starts with so many tokens of the text.

// Gives every rank all sequences. Rank r wrote the sequences r, r + size and so on.
void share_out(const Ranks& ranks, std::vector<std::vector<int32_t>>& sequences) {
  const auto size = static_cast<size_t>(ranks.size());
  std::vector<double> mine;
  for (auto i = static_cast<size_t>(ranks.rank()); i < sequences.size(); i += size) {
    mine.push_back(static_cast<double>(sequences[i].size()));
    mine.insert(mine.end(), sequences[i].begin(), sequences[i].end());
  }
  const std::vector<std::vector<double>> all = ranks.gather(mine);
  std::vector<size_t> at(size);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto begin = all[i % size].begin() + static_cast<int64_t>(at[i % size]) + 1;
    const auto length = static_cast<int64_t>(*(begin - 1));
    sequences[i].assign(begin, begin + length);
    at[i % size] += static_cast<size_t>(length) + 1;
  }
}

}  // namespace

std::vector<std::vector<int32_t>> sample_sequences(
    const std::function<std::unique_ptr<Runner>(const RunnerOptions&)>& make_runner, const RunnerOptions& serving,
    std::span<const std::vector<int32_t>> text, int64_t tokens, int64_t context, uint64_t seed, int64_t side_by_side,
    const Ranks& ranks) {
  check(!text.empty(), "samples of the model itself start with tokens of the calibration text: there is none");
  RunnerOptions options = serving;
  options.mode = Activations::a16;
  options.max_rows = std::max<int64_t>(4 * side_by_side, options.max_rows);
  options.cache_tokens = side_by_side * (context + kPageTokens);
  options.context = context;
  const std::unique_ptr<Runner> runner = make_runner(options);

  const int64_t count = (tokens + context - 1) / context;
  std::vector<GenerationRequest> requests;
  std::vector<std::vector<int32_t>> sequences(static_cast<size_t>(count));
  for (int64_t i = ranks.rank(); i < count; i += ranks.size()) {
    GenerationRequest& r = requests.emplace_back();
    const std::vector<int32_t>& start = text[static_cast<size_t>(i * static_cast<int64_t>(text.size()) / count)];
    const int64_t length = std::min(context, tokens - i * context),
                  prefix = std::min({kPrefix, length - 1, static_cast<int64_t>(start.size())});
    check(prefix > 0, "--calibration-samples {}: the last sample would have {} tokens; give {} fewer", tokens, length,
          length);
    r.prompt.assign(start.begin(), start.begin() + prefix);
    r.max_tokens = length - prefix;
    r.sampling.temperature = 1;
    r.sampling.seed = Rng(seed, static_cast<uint64_t>(i)).next();
    sequences[static_cast<size_t>(i)] = r.prompt;
  }
  Progress progress("sampling", static_cast<int64_t>(requests.size()));
  GenerationOptions how;
  how.max_sequences = side_by_side;
  how.on_finish = [&](int64_t, const Generation&) { progress.advance(1); };
  const std::vector<Generation> made = generate(*runner, std::move(requests), how);
  auto next = static_cast<size_t>(ranks.rank());
  for (const Generation& one : made) {
    sequences[next].insert(sequences[next].end(), one.ids.begin(), one.ids.end());
    next += static_cast<size_t>(ranks.size());
  }
  if (ranks.size() > 1) share_out(ranks, sequences);
  return sequences;
}

std::vector<OwnAnswer> own_answers(const std::function<std::unique_ptr<Runner>(const RunnerOptions&)>& make_runner,
                                   const RunnerOptions& serving, std::span<const std::vector<int32_t>> prompts,
                                   const OwnAnswerOptions& how) {
  RunnerOptions options = serving;
  options.mode = Activations::a16;
  options.max_rows = std::max<int64_t>(4 * how.side_by_side, options.max_rows);
  options.cache_tokens = how.side_by_side * (how.context + kPageTokens);
  options.context = how.context;
  const std::unique_ptr<Runner> runner = make_runner(options);
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const int64_t room = how.context - std::ssize(prompts[i]);
    check(room > 0, "a prompt of {} tokens leaves no room for an answer in a context of {}", prompts[i].size(),
          how.context);
    GenerationRequest& r = requests.emplace_back();
    r.prompt = prompts[i];
    r.max_tokens = std::min(how.longest, room);
    r.stop_ids = how.stop_ids;
    r.sampling = how.sampling;
    r.sampling.seed = Rng(how.sampling.seed, i).next();
  }
  Progress progress("the model's own answers", std::ssize(requests));
  const std::vector<Generation> made = generate(
      *runner, std::move(requests),
      {.max_sequences = how.side_by_side, .on_finish = [&](int64_t, const Generation&) { progress.advance(1); }});
  std::vector<OwnAnswer> answers;
  for (size_t i = 0; i < made.size(); ++i) {
    answers.push_back({prompts[i], std::ssize(prompts[i])});
    answers.back().ids.insert(answers.back().ids.end(), made[i].ids.begin(), made[i].ids.end());
  }
  return answers;
}

}  // namespace fidelio
