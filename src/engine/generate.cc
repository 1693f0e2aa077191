#include "engine/generate.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"

namespace fidelio {

std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    default:
      return "context";
  }
}

struct GenerationPool::Sequence {
  int64_t number;
  GenerationRequest request;     // its prompt moved to
  std::vector<int32_t> history;  // prompt, then output
  int64_t output_begin;
  int64_t fed = 0;  // tokens of it in the cache
  Generation result;
  std::optional<StreamingDetokenizer> detokenizer;

  int64_t size() const { return static_cast<int64_t>(history.size()); }
  bool decodes() const { return size() - fed == 1; }
};

namespace {

// Adds the new piece of text and cuts the text before the first stop string in it, if there is one. A stop string may
// begin in the text already there, but not more than its own length before the piece.
bool append_until_stop(std::string& text, const std::string& piece, const std::vector<std::string>& stop_strings) {
  const size_t before = text.size();
  text += piece;
  size_t cut = std::string::npos;
  for (const std::string& stop : stop_strings)
    cut = std::min(cut, text.find(stop, before - std::min(before, stop.size() - 1)));
  if (cut == std::string::npos) return false;
  text.resize(cut);
  return true;
}

}  // namespace

GenerationPool::GenerationPool(const PoolLimits& limits, const Tokenizer* tokenizer, bool special_in_text)
    : limits_(limits), tokenizer_(tokenizer), special_in_text_(special_in_text), pages_(limits.cache_pages) {
  limits_.context = std::min(limits.context, limits.cache_pages * kPageTokens);
  const int64_t most = std::min(limits.max_rows, limits.max_logit_rows);
  limits_.max_sequences = limits.max_sequences == 0 ? most : std::min(limits.max_sequences, most);
}

GenerationPool::~GenerationPool() = default;

int64_t GenerationPool::add(GenerationRequest request) {
  const auto size = static_cast<int64_t>(request.prompt.size());
  check(size > 0, "a prompt is empty: there is nothing to continue");
  check(size < limits_.context,
        "the prompt has {} tokens, the context holds {} and one must be left for the answer: shorten the prompt", size,
        limits_.context);
  check(request.max_tokens >= 1, "max_tokens must be at least 1, not {}", request.max_tokens);
  for (int32_t id : request.prompt)
    check(id >= 0 && id < limits_.vocabulary, "the prompt holds token id {}, the vocabulary has {}", id,
          limits_.vocabulary);
  validate(request.sampling);
  for (const std::string& stop : request.stop_strings) check(!stop.empty(), "a stop string is empty");
  check(request.stop_strings.empty() || tokenizer_ != nullptr, "stop strings need a tokenizer to be found");

  auto s = std::make_unique<Sequence>();
  s->number = static_cast<int64_t>(results_.size());
  s->history = std::move(request.prompt);
  s->output_begin = size;
  s->request = std::move(request);
  if (tokenizer_ != nullptr) s->detokenizer.emplace(*tokenizer_, !special_in_text_);
  results_.emplace_back();
  waiting_.push_back(std::move(s));
  return static_cast<int64_t>(results_.size()) - 1;
}

// First come, first served: a request that does not fit yet is not overtaken. The last token of an output is never fed.
void GenerationPool::admit() {
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < limits_.max_sequences) {
    const Sequence& s = *waiting_.front();
    const int64_t most =
        std::min(limits_.context, s.output_begin + std::min(s.request.max_tokens, limits_.context) - 1);
    if (!pages_.grow(s.number, most)) return;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

bool GenerationPool::plan(Batch& batch) {
  batch.clear();
  wanting_.clear();
  admit();
  const auto feed = [&](Sequence& s, int64_t count) {
    const bool wants = s.fed + count == s.size();
    batch.append(std::span(s.history).subspan(static_cast<size_t>(s.fed), static_cast<size_t>(count)), s.fed,
                 pages_.pages(s.number), wants, s.fed < s.output_begin ? RowKind::prompt : RowKind::output);
    s.fed += count;
    if (wants) wanting_.push_back(&s);
  };
  std::vector<Sequence*> prompts;
  for (const auto& s : running_) {
    if (s->decodes())
      feed(*s, 1);
    else
      prompts.push_back(s.get());
  }
  for (Sequence* s : prompts) {
    const int64_t count = std::min(s->size() - s->fed, limits_.max_rows - batch.rows());
    if (count > 0) feed(*s, count);
  }
  return batch.rows() > 0;
}

std::span<const ChoiceRule> GenerationPool::rules() {
  rules_.resize(wanting_.size());
  if (changes_.size() < wanting_.size()) changes_.resize(wanting_.size());
  for (size_t i = 0; i < wanting_.size(); ++i) {
    const Sequence& s = *wanting_[i];
    rules_[i] = choice_rule(s.request.sampling, s.history, s.output_begin, s.size(), limits_.vocabulary, changes_[i]);
    rules_[i].wants_probability = s.request.logprobs;
  }
  return rules_;
}

std::vector<int64_t> GenerationPool::accept(std::span<const Choice> choices, const TokenCallback& on_token) {
  check(choices.size() == wanting_.size(), "{} tokens were chosen for {} rows", choices.size(), wanting_.size());
  for (const Choice& choice : choices) check_chosen(choice);
  std::vector<int64_t> ended;
  for (size_t i = 0; i < wanting_.size(); ++i) {
    Sequence& s = *wanting_[i];
    const int32_t id = choices[i].id;
    s.history.push_back(id);
    s.result.ids.push_back(id);
    if (s.request.logprobs) s.result.logprobs.push_back(log_probability(choices[i]));
    if (on_token) on_token(s.number, id);
    if (!finish_if_done(s, id)) continue;
    pages_.release(s.number);
    results_[static_cast<size_t>(s.number)] = std::move(s.result);
    ended.push_back(std::exchange(s.number, -1));
  }
  wanting_.clear();
  std::erase_if(running_, [](const auto& s) { return s->number < 0; });
  return ended;
}

bool GenerationPool::finish_if_done(Sequence& s, int32_t id) {
  const auto& stops = s.request.stop_ids;
  const bool stopped = std::find(stops.begin(), stops.end(), id) != stops.end();
  const bool length = static_cast<int64_t>(s.result.ids.size()) >= s.request.max_tokens,
             context = s.size() >= limits_.context;
  const bool ends = stopped || length || context;
  bool cut = false;
  if (s.detokenizer) {
    if (!stopped) cut = append_until_stop(s.result.text, s.detokenizer->push(id), s.request.stop_strings);
    if (ends && !cut) cut = append_until_stop(s.result.text, s.detokenizer->finish(), s.request.stop_strings);
  }
  s.result.finish_reason = stopped || cut ? FinishReason::stop : length ? FinishReason::length : FinishReason::context;
  return ends || cut;
}

std::vector<Generation> generate(Runner& runner, std::vector<GenerationRequest> requests,
                                 const GenerationOptions& options) {
  const RunnerOptions& r = runner.options();
  GenerationPool pool({r.max_rows, r.max_logit_rows, runner.cache_pages(), runner.config().max_positions,
                       runner.config().v, options.max_sequences},
                      options.tokenizer, options.special_in_text);
  for (GenerationRequest& request : requests) pool.add(std::move(request));
  Batch batch;
  std::vector<Choice> choices;
  while (pool.plan(batch)) {
    choices.resize(batch.logit_rows.size());
    runner.step_and_choose(batch, options.mode, pool.rules(), choices);
    for (int64_t request : pool.accept(choices, options.on_token))
      if (options.on_finish) options.on_finish(request, pool.results()[static_cast<size_t>(request)]);
  }
  return std::move(pool.results());
}

}  // namespace fidelio
