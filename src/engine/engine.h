// The Engine answers many requests with one model, each as if it were alone.
//
//   add ──▶ Scheduler ──▶ drafts (Controller) ──▶ one batch: output rows, then chunks of prompts ──▶ Runner
//            ▲                                                                                        │
//            └────────── tokens accepted, text, stops, owners told ◀──────── StepSampler ◀────────────┘
//
// The answer to a request depends on nothing but the request. It does not depend on the requests beside it, on when
// it was admitted, preempted or drafted for, nor on how its prompt was cut. A row's bits are those of the row alone,
// and the sampler's randomness is a function of (seed, position). One thread drives an engine: add, cancel and step
// must not be called at the same time.
#pragma once
#include <map>
#include <memory>

#include "engine/drafts/controller.h"
#include "engine/drafts/lookup.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/speculation.h"
#include "engine/step_sampler.h"

namespace fidelio {

struct EngineOptions {
  Reading reading{};                     // the precision of the model's steps
  int64_t max_sequences = 0;             // sequences running at once; 0 means as many as a batch holds
  const Tokenizer* tokenizer = nullptr;  // fills Generation::text and finds stop strings
  bool special_in_text = false;          // whether special tokens are part of the text (<think> is one in many models)
  bool reuse_prefixes = true;
  // In a model that keeps a state for each sequence (step/state.h), these are the slots for states, at least one for
  // each running sequence. 0 means one more for a snapshot of each sequence's prefix and one for each draft, within 2
  // GiB.
  int64_t state_slots = 0;
  SpeculationOptions speculation{};
};

// EngineCounters count since the engine was made. The seconds are spent in the runner and choosing tokens.
struct EngineCounters {
  int64_t steps = 0, rows = 0, prompt_rows = 0, tokens = 0;
  // `judged` counts drafts whose predecessors were all accepted, so that accepted / judged is the acceptance of one
  // token.
  int64_t drafted = 0, judged = 0, accepted = 0, looked_up = 0, lookup_accepted = 0, draft_steps = 0, draft_rows = 0;
  // Under rejection sampling this is the sum over the judged drafts of sum_k min(p_k, q_k). Divided by `judged` it is
  // an EAR.
  double overlap = 0;
  int64_t preemptions = 0, reused_tokens = 0;
  double step_seconds = 0, draft_seconds = 0;
};

class Engine {
 public:
  // Throws Error if the options ask for what the runner lacks: a draft over another cache, high bits that none of its
  // weights can be cut to, or more drafts than a batch has rows.
  Engine(Runner& runner, EngineOptions options);
  ~Engine();

  // Queues a request and returns its number, counted from 0. Throws Error if its prompt is empty, leaves no room for
  // one token in the context (naming both numbers), or holds an id outside the vocabulary; or if an option is
  // impossible.
  int64_t add(GenerationRequest request, RequestEvents events = {});
  // Ends a request now; its owner receives what it has so far. Returns false if it has ended already or never
  // existed.
  bool cancel(int64_t request);
  // Computes one step and tells the owners about its results. Returns false when nothing is left to do.
  bool step();

  int64_t running() const { return scheduler_.running(); }
  int64_t waiting() const { return scheduler_.waiting(); }
  // Free pages of the cache, including those kept for reuse.
  int64_t free_pages() const { return scheduler_.free_pages(); }
  // Slots for states: all, those that no sequence holds, and snapshots of prefixes.
  int64_t state_slots() const { return scheduler_.state_slots(); }
  int64_t free_states() const { return scheduler_.free_states(); }
  int64_t snapshots() const { return scheduler_.snapshots(); }
  EngineCounters counters() const;

 private:
  struct Output;  // a sequence that decodes in this step, with its drafts
  void collect_outputs();
  void draft();
  bool draft_step();
  bool drafts_blindly() const;
  void enqueue_drafts();
  void keep_what_pays();
  void look_up(Output& output);
  void append_output_rows();
  void verify();
  std::span<const Chosen> follow_drafts();
  void judge(Output& output, std::span<const Chosen> chosen, size_t first_row);
  bool stands(Output& output, size_t draft, int32_t drafted, size_t row, Chosen& chosen);
  bool rejects() const { return options_.speculation.acceptance == Acceptance::rejection; }
  void want(const Scheduler::Chunk& chunk);
  void take(const Scheduler::Chunk& chunk, std::span<const Chosen> chosen);
  void accept(Sequence& s, const Chosen& chosen, bool drafted = false);
  void finish(Sequence& s, FinishReason reason);
  bool ends_at(Sequence& s, int32_t id);

  Runner& runner_;
  EngineOptions options_;
  int64_t context_ = 0, vocabulary_ = 0, max_outputs_ = 0;
  Scheduler scheduler_;
  Controller controller_;
  StepSampler sampler_;
  std::map<int64_t, std::unique_ptr<Sequence>> sequences_;
  std::map<int64_t, Lookup> lookups_;
  std::vector<Output> outputs_;
  std::vector<Controller::Output> drafting_;
  std::vector<std::pair<double, size_t>> likeliest_;   // the probability of each draft, and the index of its output
  std::vector<double> reached_;                        // the same probabilities, sorted
  std::vector<TokenDistribution> verified_, drafted_;  // distributions for the rows of a step, for rejection
  std::vector<Sequence*> ended_;
  std::vector<int32_t> from_;  // for the rows of a step that follows from others, the places of their tokens
  int32_t enqueued_ = 0;       // tokens chosen in this cycle that were not waited for
  Batch batch_;
  EngineCounters counters_;
  int64_t next_number_ = 0;
};

}  // namespace fidelio
