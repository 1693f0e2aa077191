#include "engine/engine.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "core/error.h"
#include "core/rng.h"
#include "engine/drafts/rejection.h"
#include "engine/limits.h"

namespace fidelio {

std::string_view name_of(FinishReason reason) {
  constexpr std::array<std::string_view, 4> kNames = {"stop", "length", "context", "cancelled"};
  return kNames.at(static_cast<size_t>(reason));
}

namespace {

// Returns the state after token `id`. After a stop id it is kForbidden, because nothing may follow.
Constraint::State next_state(const Sequence& s, Constraint::State state, int32_t id) {
  if (state < 0) return state;
  const auto& stops = s.request.stop_ids;
  if (std::find(stops.begin(), stops.end(), id) != stops.end()) return Constraint::kForbidden;
  return s.request.constraint->next(state, id);
}

}  // namespace

// An Output is a sequence that decodes in this step. Its drafts stand at the end of the sequence's history while the
// step is under way.
struct Engine::Output {
  Sequence* sequence;
  int64_t room = 0;  // the number of drafts that it may have
  Controller::Source source = Controller::Source::draft;
  std::vector<double> sureness{}, reached{};    // one for each draft
  std::vector<TokenDistribution> drawn_from{};  // the distribution each draft was drawn from, for rejection
  std::vector<int32_t> places{};                // where the drafts' tokens will be found, if they are not known yet
  std::vector<Constraint::State> states{};      // the constraint's state after each draft
  int64_t drafts() const { return static_cast<int64_t>(sureness.size()); }
  bool sampled() const { return sequence->request.sampling.temperature > 0; }
  Constraint::State state() const { return states.empty() ? sequence->state : states.back(); }
  // Appends a draft. Returns false, without appending it, if the constraint forbids it.
  bool append(int32_t id, double sure, double rate) {
    const Constraint::State next = next_state(*sequence, state(), id);
    if (next == Constraint::kForbidden) return false;
    states.push_back(next);
    reached.push_back((reached.empty() ? 1 : reached.back()) * rate);
    sureness.push_back(sure);
    sequence->history.push_back(id);
    return true;
  }
  void keep(int64_t count) {
    sequence->history.resize(sequence->history.size() - static_cast<size_t>(drafts() - count));
    const auto left = static_cast<size_t>(count);
    sureness.resize(left), reached.resize(left), states.resize(left);
  }
};

namespace {

// Drafts and their verification use other random numbers than the tokens themselves.
constexpr uint64_t kDraftStream = 0x6472616674, kJudgeStream = 0x6a75646765;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double share_of(const Runner& runner, const EngineOptions& o) {
  const SpeculationOptions& s = o.speculation;
  if (s.draft == nullptr) return 1;
  return static_cast<double>(s.draft->bytes_read(s.reading)) /
         static_cast<double>(std::max<int64_t>(1, runner.bytes_read(o.reading)));
}

}  // namespace

Engine::Engine(Runner& runner, EngineOptions options)
    : runner_(runner),
      options_(std::move(options)),
      context_(std::min<int64_t>(runner.config().max_positions, runner.cache_pages() * kPageTokens)),
      vocabulary_(runner.config().v),
      max_outputs_(most_outputs(runner)),
      scheduler_(limits_of(runner, options_)),
      controller_(options_.speculation, share_of(runner, options_)) {
  const SpeculationOptions& s = options_.speculation;
  check(s.most >= 1 && s.most <= 64, "{} drafted tokens a cycle: expected 1 to 64", s.most);
  if (s.draft == nullptr) return;
  check(s.draft->config().v == vocabulary_, "the draft has {} tokens, the model {}", s.draft->config().v, vocabulary_);
  check(s.draft == &runner || s.draft->shares_cache_with(runner),
        "the draft has a cache of its own; it must write into the model's");
  const Reading whole(s.reading.activations, 0, s.reading.short_head);
  check(s.reading.high_bits == 0 || s.draft->bytes_read(s.reading) < s.draft->bytes_read(whole),
        "no weight of the draft can be read as {} high bits: its codes are not integers, or cannot be cut",
        s.reading.high_bits);
}

Engine::~Engine() = default;

int64_t Engine::add(GenerationRequest request, RequestEvents events) {
  const auto size = static_cast<int64_t>(request.prompt.size());
  check(size > 0, "a prompt is empty: there is nothing to continue");
  check(size < context_,
        "the prompt has {} tokens, the context holds {} and one must be left for the answer: shorten the prompt", size,
        context_);
  check(request.max_tokens >= (request.prompt_logprobs ? 0 : 1), "max_tokens must be at least 1, not {}",
        request.max_tokens);
  check(request.alternatives >= 0 && request.alternatives <= vocabulary_,
        "{} alternatives are asked for, the vocabulary has {} tokens", request.alternatives, vocabulary_);
  for (int32_t id : request.prompt)
    check(id >= 0 && id < vocabulary_, "the prompt holds token id {}, the vocabulary has {}", id, vocabulary_);
  validate(request.sampling);
  const int64_t number = next_number_;
  auto s = std::make_unique<Sequence>(number, std::move(request), std::move(events), vocabulary_, options_.tokenizer,
                                      options_.special_in_text);
  ++next_number_;
  scheduler_.add(s.get());
  sequences_.emplace(number, std::move(s));
  return number;
}

bool Engine::cancel(int64_t request) {
  const auto found = sequences_.find(request);
  if (found == sequences_.end() || found->second->over) return false;
  finish(*found->second, FinishReason::cancelled);
  return true;
}

EngineCounters Engine::counters() const {
  EngineCounters c = counters_;
  c.preemptions = scheduler_.preemptions();
  c.reused_tokens = scheduler_.reused_tokens();
  return c;
}

bool Engine::step() {
  for (const Sequence* s : std::exchange(ended_, {})) lookups_.erase(s->number), sequences_.erase(s->number);
  if (scheduler_.idle()) return false;
  collect_outputs();
  draft();
  verify();
  return true;
}

void Engine::collect_outputs() {
  outputs_.clear();
  for (Sequence* s : scheduler_.decoding()) outputs_.push_back({s});
}

// --- The next functions make drafts. Drafts never take a row from a sequence that decodes, nor a page from one that
// has it. The last token of an output is never fed. ---
void Engine::draft() {
  const SpeculationOptions& o = options_.speculation;
  controller_.begin_cycle(static_cast<int64_t>(outputs_.size()), scheduler_.running());
  enqueued_ = 0;
  if ((o.draft == nullptr && !o.lookup) || outputs_.empty()) return;
  // Every running sequence may need a row of logits; the rest is divided among the drafts of the outputs.
  const int64_t each = (max_outputs_ - scheduler_.running()) / static_cast<int64_t>(outputs_.size());
  for (Output& output : outputs_) {
    Sequence& s = *output.sequence;
    const int64_t left =
        std::min(s.request.max_tokens - static_cast<int64_t>(s.result.ids.size()), context_ - s.size());
    output.room = std::min({o.most, each, left - 1});
    output.room = output.room > 0 ? scheduler_.room_for(s, output.room + 1) - 1 : 0;
    if (o.lookup && output.room > 0 && !controller_.holds_back()) look_up(output);
  }
  if (o.draft != nullptr && drafts_blindly()) {
    enqueue_drafts();
  } else if (o.draft != nullptr) {
    while (draft_step()) {
    }
  }
  keep_what_pays();
}

// Keeps the drafts of each sequence that pay, and of those as many of the likeliest as pay together. (With rejection
// sampling, what is verified must not depend on what was drawn.) A sequence's drafts become less likely one by one,
// so its first ones are kept.
void Engine::keep_what_pays() {
  likeliest_.clear();
  for (size_t i = 0; i < outputs_.size(); ++i) {
    outputs_[i].keep(controller_.worth_verifying(outputs_[i].reached));
    for (double p : outputs_[i].reached) likeliest_.push_back({p, i});
  }
  std::stable_sort(likeliest_.begin(), likeliest_.end(), [](auto a, auto b) { return a.first > b.first; });
  reached_.clear();
  for (const auto& [p, i] : likeliest_) reached_.push_back(p);
  const auto all = static_cast<int64_t>(reached_.size());
  const int64_t kept = rejects() ? all : controller_.worth_together(reached_);
  for (int64_t dropped = all - 1; dropped >= kept; --dropped) {
    Output& output = outputs_[likeliest_[static_cast<size_t>(dropped)].second];
    output.keep(output.drafts() - 1);
  }
  for (Output& output : outputs_) {
    (output.source == Controller::Source::lookup ? counters_.looked_up : counters_.drafted) += output.drafts();
    output.sequence->result.drafted += output.drafts();
  }
}

void Engine::look_up(Output& output) {
  int64_t matched = 0;
  const auto found = lookups_[output.sequence->number].propose(output.sequence->history, output.room, matched);
  if (found.empty()) return;
  const std::vector<int32_t> ids(found.begin(), found.end());  // a copy, because the history that they lie in grows
  // .5 for 3 matching tokens, .95 for 32; acceptance is learnt by this number.
  const double sure = 1 - 1.5 / static_cast<double>(matched);
  const double rate = controller_.rate(Controller::Source::lookup, output.sampled(), sure);
  output.source = Controller::Source::lookup;
  for (int32_t id : ids)
    if (!output.append(id, sure, rate)) break;
  if (controller_.prefers_lookup(output.reached)) return;
  output.keep(0);
  output.source = Controller::Source::draft;
}

// Makes one more draft for every sequence for which it pays. The newest token of each is fed, whether it was drafted
// or not.
bool Engine::draft_step() {
  drafting_.clear();
  bool any = false;
  for (const Output& output : outputs_) {
    const bool drafts = output.source == Controller::Source::draft && output.drafts() < output.room;
    drafting_.push_back({output.reached.empty() ? 1 : output.reached.back(), output.sampled(), drafts});
    any = any || drafts;
  }
  if (!any || !controller_.continues(drafting_)) return false;
  batch_.clear();
  sampler_.clear();
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (!drafting_[i].drafts) {
      // This output takes no part in later draft steps of this cycle either.
      outputs_[i].room = std::min(outputs_[i].room, outputs_[i].drafts());
      continue;
    }
    Sequence& s = *outputs_[i].sequence;
    scheduler_.append_draft(batch_, s, outputs_[i].drafts());
    const uint64_t random = Rng(s.request.sampling.seed ^ kDraftStream, static_cast<uint64_t>(s.size())).next();
    sampler_.want(s, {.sureness = options_.speculation.adapt,
                      .state = outputs_[i].state(),
                      .random = rejects() ? &random : nullptr});
  }
  const auto start = std::chrono::steady_clock::now();
  const SpeculationOptions& how = options_.speculation;
  const auto chosen = rejects() ? sampler_.run(*how.draft, batch_, how.reading, drafted_)
                                : sampler_.run(*how.draft, batch_, how.reading);
  const double seconds = seconds_since(start);
  controller_.drafted(batch_.rows(), seconds);
  counters_.draft_seconds += seconds;
  ++counters_.draft_steps;
  counters_.draft_rows += batch_.rows();
  size_t row = 0;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (!drafting_[i].drafts) continue;
    if (rejects()) outputs_[i].drawn_from.push_back(std::move(drafted_[row]));
    const Chosen& c = chosen[row++];
    // If the draft cannot choose a token here, the verifier will.
    const double rate = controller_.rate(Controller::Source::draft, drafting_[i].sampled, c.sureness);
    if (c.id < 0 || !outputs_[i].append(c.id, c.sureness, rate)) outputs_[i].room = outputs_[i].drafts();
  }
  return true;
}

// Returns true if neither the number of drafts nor their rules depend on what the drafts are. Then they can be made
// and verified without waiting for them. Rows with constraints, alternatives and scored prompts are read on the host,
// which must wait.
bool Engine::drafts_blindly() const {
  if (options_.speculation.adapt || rejects()) return false;
  const bool on_host = std::any_of(sequences_.begin(), sequences_.end(), [](const auto& entry) {
    const GenerationRequest& r = entry.second->request;
    return r.constraint != nullptr || r.alternatives > 0 || r.prompt_logprobs;
  });
  if (on_host) return false;
  return std::none_of(outputs_.begin(), outputs_.end(), [](const Output& output) {
    const SamplingOptions& s = output.sequence->request.sampling;
    return s.repetition_penalty != 1 || s.presence_penalty != 0 || s.frequency_penalty != 0;
  });
}

// Makes the drafts of all steps as draft_step() does, without waiting. The history holds 0 where a draft will stand.
void Engine::enqueue_drafts() {
  const SpeculationOptions& how = options_.speculation;
  const auto start = std::chrono::steady_clock::now();
  std::vector<Output*> drafting;
  for (Output& output : outputs_)
    if (output.source == Controller::Source::draft && output.room > 0) drafting.push_back(&output);
  while (!drafting.empty()) {
    batch_.clear(), sampler_.clear(), from_.clear();
    for (const Output* output : drafting) {
      Sequence& s = *output->sequence;
      scheduler_.append_draft(batch_, s, output->drafts());
      from_.push_back(output->places.empty() ? -1 : output->places.back());
      sampler_.want(s, {});
    }
    int32_t place = sampler_.enqueue(*how.draft, batch_, how.reading, from_, enqueued_ == 0);
    for (Output* output : drafting) output->places.push_back(place++), output->append(0, 1, 1);
    enqueued_ = place;
    ++counters_.draft_steps;
    counters_.draft_rows += batch_.rows();
    std::erase_if(drafting, [](const Output* output) { return output->drafts() == output->room; });
  }
  counters_.draft_seconds += seconds_since(start);
}

// --- The next functions verify drafts. ---
void Engine::append_output_rows() {
  batch_.clear();
  sampler_.clear();
  from_.clear();
  for (Output& output : outputs_) {
    Sequence& s = *output.sequence;
    const int64_t rows = output.drafts() + 1;
    scheduler_.append_output(batch_, s, rows);
    const std::vector<int32_t> drafts(s.history.end() - output.drafts(), s.history.end());
    s.history.resize(static_cast<size_t>(s.fed + 1));
    sampler_.want(s, wish_of(s, s.state));
    for (size_t i = 0; i < drafts.size(); ++i) {
      s.history.push_back(drafts[i]);
      sampler_.want(s, wish_of(s, output.states[i]));
    }
    from_.push_back(-1);
    for (int64_t i = 0; i < output.drafts(); ++i)
      from_.push_back(output.places.empty() ? -1 : output.places[static_cast<size_t>(i)]);
  }
}

// Verifies drafts that are not known yet, and then writes them into the histories.
std::span<const Chosen> Engine::follow_drafts() {
  from_.resize(static_cast<size_t>(batch_.rows()), -1);
  const auto first = static_cast<size_t>(sampler_.enqueue(runner_, batch_, options_.reading, from_, false));
  const auto all = sampler_.collect(runner_);
  for (Output& output : outputs_)
    for (size_t i = 0; i < output.places.size(); ++i)
      *(output.sequence->history.end() - output.drafts() + static_cast<int64_t>(i)) =
          all[static_cast<size_t>(output.places[i])].id;
  return all.subspan(first);
}

void Engine::verify() {
  append_output_rows();
  const int64_t output_rows = batch_.rows();
  const auto chunks = scheduler_.append_chunks(batch_);
  for (const Scheduler::Chunk& chunk : chunks) want(chunk);
  const auto start = std::chrono::steady_clock::now();
  const auto chosen = enqueued_ > 0 ? follow_drafts()
                      : rejects()   ? sampler_.run(runner_, batch_, options_.reading, verified_)
                                    : sampler_.run(runner_, batch_, options_.reading);
  const double seconds = seconds_since(start);
  controller_.verified(batch_.rows(), seconds, batch_.rows() == output_rows && enqueued_ == 0);
  enqueued_ = 0;
  ++counters_.steps;
  counters_.rows += batch_.rows();
  counters_.prompt_rows += batch_.rows() - output_rows;
  counters_.step_seconds += seconds;

  const int64_t before = counters_.tokens;
  size_t row = 0;
  for (Output& output : outputs_) {
    const auto rows = static_cast<size_t>(output.drafts()) + 1;
    judge(output, chosen.subspan(row, rows), row);
    row += rows;
  }
  controller_.end_cycle(counters_.tokens - before);
  for (const Scheduler::Chunk& chunk : chunks) {
    const auto rows = static_cast<size_t>(chunk.rows);
    take(chunk, chosen.subspan(row, rows));
    row += rows;
  }
}

// --- The next functions read prompts. A row of a scored prompt scores the token after it. The newest token's row
// chooses the next token. ---
void Engine::want(const Scheduler::Chunk& chunk) {
  const Sequence& s = *chunk.sequence;
  for (int64_t i = chunk.first; i < chunk.first + chunk.rows - chunk.last; ++i)
    sampler_.want_score(s.history[static_cast<size_t>(i) + 1], s.request.alternatives);
  if (chunk.last) sampler_.want(s, wish_of(s, s.state));
}

void Engine::take(const Scheduler::Chunk& chunk, std::span<const Chosen> chosen) {
  Sequence& s = *chunk.sequence;
  if (s.over) return;  // the owner of another request has cancelled it
  if (s.scores_prompt()) {
    s.prompt_scores.resize(static_cast<size_t>(chunk.first));
    for (size_t i = 0; i + (chunk.last ? 1 : 0) < chosen.size(); ++i) {
      const Chosen& c = chosen[i];
      if (c.id < 0) return accept(s, c);
      s.prompt_scores.push_back({{c.id, c.logprob}, {c.best.begin(), c.best.end()}});
    }
    if (chunk.last) {
      s.prompt_told = true;
      if (s.events.on_prompt) s.events.on_prompt(s.number, std::move(s.prompt_scores));
    }
  }
  if (!chunk.last || s.over) return;
  if (s.request.max_tokens == 0) return finish(s, FinishReason::length);
  accept(s, chosen.back());
  if (!s.over) scheduler_.settle(s);
}

// Judges the drafts of an output. Row i was computed after i drafts, so its token is valid if all of those are right.
// The sequence may end on the way.
void Engine::judge(Output& output, std::span<const Chosen> chosen, size_t first_row) {
  Sequence& s = *output.sequence;
  const std::vector<int32_t> drafts(s.history.end() - output.drafts(), s.history.end());
  s.history.resize(s.history.size() - drafts.size());
  for (size_t i = 0; !s.over && i < chosen.size(); ++i) {
    Chosen c = chosen[i];
    const bool right = i < drafts.size() && stands(output, i, drafts[i], first_row + i, c);
    if (i < drafts.size()) {
      controller_.judged(output.source, output.sampled(), output.sureness[i], right);
      const bool drafted = output.source == Controller::Source::draft;
      (drafted ? counters_.accepted : counters_.lookup_accepted) += right;
      counters_.judged += drafted;
      ++s.result.judged, s.result.accepted += right;
    }
    s.fed = s.size();
    accept(s, c, right);
    if (!right) break;
  }
  if (!s.over) scheduler_.settle(s);
}

// Returns true if a draft is accepted. `chosen` is what the model says at its place, and is changed to the token to
// be said.
bool Engine::stands(Output& output, size_t draft, int32_t drafted, size_t row, Chosen& chosen) {
  const Sequence& s = *output.sequence;
  if (chosen.id < 0 || drafted < 0) return false;
  if (options_.speculation.replayed_acceptance >= 0) {
    chosen.id = drafted;
    return Rng(1, static_cast<uint64_t>(counters_.tokens)).uniform() < options_.speculation.replayed_acceptance;
  }
  if (!rejects() || !output.sampled()) return chosen.id == drafted;
  const TokenDistribution* q = output.source == Controller::Source::draft ? &output.drawn_from[draft] : nullptr;
  if (q != nullptr) counters_.overlap += overlap(verified_[row], q, drafted);
  Rng random(s.request.sampling.seed ^ kJudgeStream, static_cast<uint64_t>(s.size()));
  const Judgement judgement = fidelio::judge(verified_[row], q, drafted, random);
  if (judgement.id != chosen.id && s.request.logprobs) chosen.logprob = sampler_.logprob_of(row, judgement.id);
  chosen.id = judgement.id;
  return judgement.accepted;
}

void Engine::accept(Sequence& s, const Chosen& chosen, bool drafted) {
  if (s.over) return;  // an owner who was told of another token has cancelled it
  if (chosen.id < 0) {
    // The rest of the answer is empty.
    if (s.state >= 0 && s.request.constraint->must_end(s.state)) return finish(s, FinishReason::stop);
    s.result.error =
        s.state >= 0
            ? "no token of the vocabulary can go on with an answer of the form that was asked for"
            : "a logit is not finite: the model computes NaN or infinity; its weights are damaged, a format's scale "
              "overflowed, or a penalty or bias is beyond reason";
    return finish(s, FinishReason::stop);
  }
  ++counters_.tokens;
  s.state = next_state(s, s.state, chosen.id);
  s.history.push_back(chosen.id);
  s.result.ids.push_back(chosen.id);
  if (s.request.logprobs) s.result.logprobs.push_back(chosen.logprob);
  const bool ends = ends_at(s, chosen.id);
  if (s.events.on_token) {
    const size_t settled = ends ? s.stream.text().size() : s.stream.settled(), from = std::min(s.reported, settled);
    s.reported = settled;
    const std::string_view text(s.stream.text());
    s.events.on_token({s.number, chosen.id, chosen.logprob, text.substr(from, settled - from), chosen.best, drafted});
  }
  if (s.over) return;  // its owner has cancelled it
  if (ends) finish(s, s.result.finish_reason);
}

bool Engine::ends_at(Sequence& s, int32_t id) {
  const auto& stops = s.request.stop_ids;
  const bool stopped = std::find(stops.begin(), stops.end(), id) != stops.end();
  const bool length = static_cast<int64_t>(s.result.ids.size()) >= s.request.max_tokens, full = s.size() >= context_;
  const bool whole = s.state >= 0 && s.request.constraint->must_end(s.state);
  const bool ends = stopped || length || full || whole;
  bool cut = !stopped && s.stream.push(id);
  if (ends && !cut) cut = s.stream.finish();
  s.result.finish_reason = stopped || cut || whole ? FinishReason::stop
                           : length                ? FinishReason::length
                                                   : FinishReason::context;
  return ends || cut;
}

// Ends a sequence. The object remains until the next step, because the caller may still use it.
void Engine::finish(Sequence& s, FinishReason reason) {
  s.over = true;
  s.stream.finish();
  s.result.finish_reason = reason;
  s.result.stop_string = s.stream.stop_string();
  s.result.text = s.stream.take_text();
  scheduler_.remove(&s);
  ended_.push_back(&s);
  if (s.events.on_finish) s.events.on_finish(s.number, std::move(s.result));
}

}  // namespace fidelio
