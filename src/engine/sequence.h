// engine: generation. What is asked for, what comes back, and a request's life in between.
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
  std::vector<std::string> stop_strings{};  // need EngineOptions::tokenizer
  SamplingOptions sampling{};
  bool special_in_text = false;      // besides EngineOptions
  std::vector<int32_t> shown_ids{};  // special tokens that are text in any case: marks of thinking and of calls
  Thinking thinking{};               // how the answer may begin: stop strings are those of what follows
  bool logprobs = false;
  int64_t alternatives = 0;      // with logprobs: the best tokens of each row too, so many
  bool prompt_logprobs = false;  // those of the prompt's tokens from the second on; its rows are output rows then
  std::shared_ptr<Constraint> constraint{};  // several requests may share one
};

// Natural logs of probabilities in the model's own distribution, before penalties, temperature and constraint.
struct TokenScore {
  int32_t id;
  float logprob;
};
struct ScoredToken {
  TokenScore token;
  std::vector<TokenScore> best{};  // the row's, best first, as many as asked for
};

// stop: a stop id or stop string; length: max_tokens reached; context: prompt and output fill the context; cancelled:
// by Engine::cancel.
enum class FinishReason : uint8_t { stop, length, context, cancelled };
std::string_view name_of(FinishReason reason);

struct Generation {
  std::vector<int32_t> ids;     // a stop id that ended it is the last one
  std::vector<float> logprobs;  // of ids, if asked for: natural log, of the model's own distribution (before penalties
                                // and temperature)
  std::string text;             // decoded, up to a stop id or stop string; empty without a tokenizer
  FinishReason finish_reason = FinishReason::stop;
  int64_t stop_string = -1;  // which one ended it
  std::string error;         // why it could not go on: a logit was not finite. Empty otherwise

  int64_t reused = 0;  // tokens of the prompt whose rows were in the cache
  // Tokens drafted for it; of those, whose predecessors were all accepted; accepted.
  int64_t drafted = 0, judged = 0, accepted = 0;
};

// What a request's owner hears, during Engine::step or cancel. `text` of a token is what became settled by it.
struct NewToken {
  int64_t request;
  int32_t id;
  float logprob;  // if asked for
  std::string_view text;
  std::span<const TokenScore> best{};  // alternatives, best first, if asked for
  bool drafted = false;                // it was guessed before the model said it
};
struct RequestEvents {
  std::function<void(int64_t request, std::vector<ScoredToken>&& prompt)> on_prompt{};  // before the first token
  std::function<void(const NewToken&)> on_token{};
  std::function<void(int64_t request, Generation&& generation)> on_finish{};
};

// A request under way: the owner's half (Engine) and the scheduler's.
//
//   history   prompt ........ | output ...........
//   cache     [0, fed): rows computed; the newest token has none yet
//
// A sequence decodes when its newest token, one of its own, alone is not in the cache. After preemption `fed` is 0 and everything is fed
// again: the prompt as prompt rows, its own tokens as output rows, so that the cache holds the same bits as before.
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

  int64_t number, vocabulary;
  GenerationRequest request;  // its prompt moved to
  RequestEvents events;
  std::vector<int32_t> history;
  int64_t output_begin;
  int64_t fed = 0;
  bool decoding = false;  // in this step: drafts may stand behind its newest token
  TextStream stream;
  size_t reported = 0;  // bytes of text the owner has heard of
  Constraint::State state = Constraint::kFree;
  std::vector<ScoredToken> prompt_scores{};
  bool prompt_told = false;
  Generation result;
  bool over = false;  // its owner has heard the end

  int64_t size() const { return static_cast<int64_t>(history.size()); }
  bool scores_prompt() const { return request.prompt_logprobs && !prompt_told; }
  bool decodes() const { return fed >= output_begin && size() - fed == 1; }
};

}  // namespace fidelio
