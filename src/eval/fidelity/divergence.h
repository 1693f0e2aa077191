// Token divergence (SLQ C.5): model A answers prompts greedily; the same tokens are then forced through B, and through
// A for its probabilities, and every position says whether B would have said the same. B is always conditioned on A's
// tokens, so what is measured is how often it would begin to differ, not what a first difference leads to.
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
  float q_other = 0;                   // of B's choice under B
  float kl = 0, ear = 0, entropy = 0;  // at this position; entropy of A

  bool agree() const { return id == other; }
};

struct PromptDivergence {
  std::string prompt;
  std::vector<TokenDivergence> tokens;  // the answer, its stop token included
  std::vector<std::string>
      texts;  // the answer cut by token, joining to the whole; a character split over tokens stands with the last
  FinishReason finish_reason = FinishReason::stop;

  int64_t divergent() const;
};

struct DivergenceReport {
  std::string name_a, name_b;
  std::vector<PromptDivergence> prompts;
  BootstrapOptions bootstrap{};

  int64_t tokens() const;
  int64_t divergent() const;
  Estimate agreement() const;  // share of tokens, bootstrapped by prompt
};

struct DivergenceOptions {
  Activations mode_a = Activations::a16, mode_b = Activations::a16;
  int64_t max_tokens = 512;
  std::vector<int32_t> stop_ids{};
  std::string name_a = "A", name_b = "B";
};

// Both runners must be of one tokenizer. `prompt` builds the ids, e.g. chat_prompt.
DivergenceReport measure_divergence(Runner& a, Runner& b, const Tokenizer& tokenizer, const PromptBuilder& prompt,
                                    std::span<const std::string> prompts, const DivergenceOptions& options,
                                    const ProgressCallback& progress = {});

// A's tokens that B most often replaces, with B's choices, most frequent first (SLQ table 6).
struct Substitution {
  int32_t id;
  int64_t count;
  std::vector<std::pair<int32_t, int64_t>> others;  // B's token, times
};
std::vector<Substitution> substitutions(const DivergenceReport& report, size_t limit = 10);

nlohmann::json to_json(const DivergenceReport& report, const Tokenizer& tokenizer);
// A page: summary, agreement by prompt, by position and by entropy, frequent substitutions, each text annotated.
std::string to_html(const DivergenceReport& report, const Tokenizer& tokenizer, std::string_view made_by = {});

}  // namespace fidelio
