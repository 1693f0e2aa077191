// This file measures token divergence (SLQ C.5). Model A answers prompts greedily. The same tokens are then forced
// through B, and through A again for its probabilities, and at every position the report says whether B would have
// chosen the same token. B is always conditioned on A's tokens. Therefore the measurement tells how often B would
// begin to differ, and not what follows from a first difference.
#pragma once
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "eval/fidelity/fidelity.h"
#include "eval/statistics/statistics.h"
#include "eval/tasks/tasks.h"

namespace fidelio {

struct TokenDivergence {
  int32_t id = 0;                      // A's token
  int32_t other = 0;                   // B's most likely token
  float p_token = 0, q_token = 0;      // probability of A's token under A and under B
  float q_other = 0;                   // probability of B's most likely token under B
  float kl = 0, ear = 0, entropy = 0;  // these are at this position; `entropy` is of A

  bool agree() const { return id == other; }
};

struct PromptDivergence {
  std::string prompt;
  std::vector<TokenDivergence> tokens;  // the tokens of the answer, including its stop token
  // The answer's text cut by token; joined, the pieces are the whole text. A character that is split over several
  // tokens stands with the last of them.
  std::vector<std::string> texts;
  FinishReason finish_reason = FinishReason::stop;

  int64_t divergent() const;
};

struct DivergenceReport {
  std::string name_a, name_b;
  std::vector<PromptDivergence> prompts;
  BootstrapOptions bootstrap{};

  int64_t tokens() const;
  int64_t divergent() const;
  Estimate agreement() const;  // share of tokens that agree, with an interval bootstrapped by prompt
};

struct DivergenceOptions {
  Activations mode_a = Activations::a16, mode_b = Activations::a16;
  int64_t max_tokens = 512;
  std::vector<int32_t> stop_ids{};
  std::string name_a = "A", name_b = "B";
};

// Compares two models that have the same tokenizer. `prompt` builds the token ids of each prompt, for example
// chat_prompt().
DivergenceReport measure_divergence(Runner& a, Runner& b, const Tokenizer& tokenizer, const PromptBuilder& prompt,
                                    std::span<const std::string> prompts, const DivergenceOptions& options,
                                    const ProgressCallback& progress = {});

// A Substitution is a token of A with the tokens that B would put in its place.
struct Substitution {
  int32_t id;
  int64_t count;
  std::vector<std::pair<int32_t, int64_t>> others;  // B's tokens, each with its count
};
// Returns the tokens of A that B most often replaces, most frequent first, with at most `limit` entries (SLQ table
// 6).
std::vector<Substitution> substitutions(const DivergenceReport& report, size_t limit = 10);

nlohmann::json to_json(const DivergenceReport& report, const Tokenizer& tokenizer);
// Returns an HTML page with a summary, the agreement by prompt, by position and by entropy, the frequent
// substitutions, and each text with its annotations.
std::string to_html(const DivergenceReport& report, const Tokenizer& tokenizer, std::string_view made_by = {});

}  // namespace fidelio
