// Generation: a pool of sequences over one ragged batch, refilled as they end.
//
//   waiting ──admit──▶ running: prompt in chunks ─▶ one row a step ──stop | length | context──▶ done
//
// A step takes one row of every sequence that decodes, then fills the batch with prompts. A sequence is admitted when
// the cache has pages for all it may ever need, so a running one is never put back. What a request yields does not
// depend on the others nor on when it was admitted: rows are invariant, and the sampler's randomness is a function of
// (seed, position).
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "runtime/page_table.h"
#include "runtime/runner.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio {

struct GenerationRequest {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 256;
  std::vector<int32_t> stop_ids{};
  std::vector<std::string> stop_strings{};  // need GenerationOptions::tokenizer
  SamplingOptions sampling{};
  bool logprobs = false;
};

// stop: a stop id or stop string; length: max_tokens reached; context: prompt and output fill the context.
enum class FinishReason : uint8_t { stop, length, context };
std::string_view name_of(FinishReason reason);

struct Generation {
  std::vector<int32_t> ids;     // a stop id that ended it is the last one
  std::vector<float> logprobs;  // of ids, if asked for: natural log, of the model's own distribution (before penalties
                                // and temperature)
  std::string text;             // decoded, up to a stop id or stop string; empty without a tokenizer
  FinishReason finish_reason = FinishReason::stop;
};

struct PoolLimits {
  int64_t max_rows = 0, max_logit_rows = 0, cache_pages = 0;
  int64_t context = 0;  // the model's
  int64_t vocabulary = 0;
  int64_t max_sequences = 0;  // running at once; 0 = as many as rows and cache allow
};

// The pool without the model: plan() says what to compute, rules() how to choose a token from each of its logit rows,
// accept() takes the tokens. Pure but for its own state.
class GenerationPool {
 public:
  explicit GenerationPool(const PoolLimits& limits, const Tokenizer* tokenizer = nullptr, bool special_in_text = false);
  ~GenerationPool();

  // Queues a request and returns its number, from 0. Throws Error if its prompt is empty, does not leave room for one
  // token in the context (naming both numbers), or holds an id outside the vocabulary; or if an option is impossible.
  int64_t add(GenerationRequest request);

  // The next batch; false when every request is done. At most max_logit_rows logit rows.
  bool plan(Batch& batch);
  // Of that batch's logit rows, in their order; valid until accept().
  std::span<const ChoiceRule> rules();
  // What was chosen by them; calls `on_token` for each token. Returns the requests that ended. Throws Error where a row
  // has no best token.
  using TokenCallback = std::function<void(int64_t request, int32_t id)>;
  std::vector<int64_t> accept(std::span<const Choice> choices, const TokenCallback& on_token = {});

  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t size() const { return static_cast<int64_t>(results_.size()); }
  std::vector<Generation>& results() { return results_; }  // by request number; empty until the request has ended

 private:
  struct Sequence;
  void admit();
  bool finish_if_done(Sequence& s, int32_t id);

  PoolLimits limits_;
  const Tokenizer* tokenizer_;
  bool special_in_text_;
  PageTable pages_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::vector<Sequence*> wanting_;  // in the order of the batch's logit rows
  std::vector<ChoiceRule> rules_;
  std::vector<std::vector<LogitChange>> changes_;  // that rules_ refer to
  std::vector<Generation> results_;
};

struct GenerationOptions {
  Activations mode = Activations::a16;
  int64_t max_sequences = 0;             // running at once; 0 = as many as rows and cache allow
  const Tokenizer* tokenizer = nullptr;  // fills Generation::text, finds stop strings
  bool special_in_text = false;          // special tokens are part of the text: <think> is one in many models
  GenerationPool::TokenCallback on_token{};
  std::function<void(int64_t request, const Generation& generation)> on_finish{};  // in the order requests end
};

std::vector<Generation> generate(Runner& runner, std::vector<GenerationRequest> requests,
                                 const GenerationOptions& options = {});

}  // namespace fidelio
