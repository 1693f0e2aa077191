// This file defines a request for generation, its result, and its state in between.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/constraint.h"
#include "engine/sampler.h"
#include "engine/text_stream.h"

namespace fidelio {

struct GenerationRequest {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 256;
  std::vector<int32_t> stop_ids{};
  std::vector<std::string> stop_strings{};  // these need EngineOptions::tokenizer
  SamplingOptions sampling{};
  bool special_in_text = false;      // in addition to EngineOptions::special_in_text
  std::vector<int32_t> shown_ids{};  // special tokens that are text in any case: marks of thinking and of calls
  Thinking thinking{};               // how the answer may begin; stop strings count only in what follows a thought
  bool logprobs = false;
  int64_t alternatives = 0;  // with logprobs, this many best tokens of each row too
  // This also returns the log-probabilities of the prompt's tokens, from the second on. Their rows are then output
  // rows.
  bool prompt_logprobs = false;
  std::shared_ptr<Constraint> constraint{};  // several requests may share one
};

// A TokenScore holds the natural logarithm of a probability in the model's own distribution, before penalties,
// temperature and constraint.
struct TokenScore {
  int32_t id;
  float logprob;
};
struct ScoredToken {
  TokenScore token;
  std::vector<TokenScore> best{};  // the best tokens of the row, best first, as many as asked for
};

// Generation ends with `stop` at a stop id or stop string, with `length` when max_tokens is reached, with `context`
// when prompt and output fill the context, and with `cancelled` by Engine::cancel.
enum class FinishReason : uint8_t { stop, length, context, cancelled };
std::string_view name_of(FinishReason reason);

struct Generation {
  std::vector<int32_t> ids;  // if a stop id ended it, that is the last one
  // For each id, if asked for: the natural logarithm of its probability in the model's own distribution, before
  // penalties and temperature.
  std::vector<float> logprobs;
  std::string text;  // decoded up to a stop id or stop string; empty without a tokenizer
  FinishReason finish_reason = FinishReason::stop;
  int64_t stop_string = -1;  // index of the stop string that ended it
  std::string error;         // why it could not continue (a logit was not finite), or empty

  int64_t reused = 0;  // tokens of the prompt whose rows were in the cache
  // The number of tokens drafted for it, of those whose predecessors were all accepted, and of accepted ones.
  int64_t drafted = 0, judged = 0, accepted = 0;
};

// These events reach a request's owner during Engine::step or cancel. The `text` of a token is the part of the text
// that became settled by it.
struct NewToken {
  int64_t request;
  int32_t id;
  float logprob;  // if asked for
  std::string_view text;
  std::span<const TokenScore> best{};  // alternatives, best first, if asked for
  bool drafted = false;                // whether it was guessed before the model said it
};
struct RequestEvents {
  std::function<void(int64_t request, std::vector<ScoredToken>&& prompt)> on_prompt{};  // called before the first token
  std::function<void(const NewToken&)> on_token{};
  std::function<void(int64_t request, Generation&& generation)> on_finish{};
};

// A Sequence is a request under way. Its members belong to the Engine and the Scheduler.
//
//   history   prompt ........ | output ...........
//   cache     [0, fed): rows computed; the newest token has none yet
//
// A sequence decodes when only its newest token, which is part of its output, is not in the cache. After preemption
// `fed` is 0 and everything is fed again: the prompt as prompt rows and its own tokens as output rows, so that the
// cache holds the same bits as before.
struct Sequence {
  Sequence(int64_t n, GenerationRequest&& r, RequestEvents&& e, int64_t tokens, const Tokenizer* tokenizer,
           bool special_in_text)
      : number(n),
        vocabulary(tokens),
        request(std::move(r)),
        events(std::move(e)),
        history(std::move(request.prompt)),
        output_begin(static_cast<int64_t>(history.size())),
        stream(tokenizer,
               {special_in_text || request.special_in_text, request.shown_ids, request.stop_strings, request.thinking},
               history) {
    if (request.constraint) state = request.constraint->start();
  }

  // KeptStates is what a sequence holds in a model that keeps states (step/state.h).
  struct KeptStates {
    int32_t slot = -1;                 // the state after the rows [0, fed); -1 at the beginning
    std::vector<int32_t> spare;        // slots for the states after the rows of the coming step
    std::vector<int32_t> after;        // in a step that is under way, the slots of its output rows, in their order
    int64_t begin = 0;                 // the position of the first of these rows
    int32_t page = -1, snapshot = -1;  // the page that holds the newest snapshot of its output, and that slot
  };

  int64_t number, vocabulary;
  GenerationRequest request;  // its prompt has moved to `history`
  RequestEvents events;
  std::vector<int32_t> history;
  int64_t output_begin;
  int64_t fed = 0;
  KeptStates kept{};
  bool decoding = false;  // decodes in this step: drafts may stand behind its newest token
  TextStream stream;
  size_t reported = 0;  // bytes of text that the owner has received
  Constraint::State state = Constraint::kFree;
  std::vector<ScoredToken> prompt_scores{};
  bool prompt_told = false;
  Generation result;
  bool over = false;  // its owner has been told that it ended

  int64_t size() const { return static_cast<int64_t>(history.size()); }
  bool scores_prompt() const { return request.prompt_logprobs && !prompt_told; }
  bool decodes() const { return fed >= output_begin && size() - fed == 1; }
};

}  // namespace fidelio
