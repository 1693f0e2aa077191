// Whole answers: how many of a model's greedy answers a candidate gives word for word. A single token that differs changes
// all that follows, so this share falls with the answers' length, far below the share of tokens that agree.
//
//   source     prompt | t1 t2 t3 .. t200     answers greedily
//   candidate  prompt | t1 t2 t3 .. t200     is asked at every place which token it would choose there
//
// The candidate's own answer is the same if and only if it would have chosen every one of these tokens.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "eval/fidelity/logit_pass.h"
#include "eval/statistics/statistics.h"

namespace fidelio {

struct AnswerOptions {
  Activations reference_mode = Activations::f32;
  Reading candidate_mode = Activations::a16;
  int64_t max_tokens = 200;  // of an answer; one that its stop token ends is shorter
  std::vector<int32_t> stop_ids{};
};

struct WholeAnswers {
  int64_t max_tokens = 0, prompts = 0;
  int64_t same = 0;                 // answers without a difference
  int64_t tokens = 0, alike = 0;    // of all answers, each judged after the source's own tokens
  std::vector<int64_t> differs_at;  // of each answer the first token that differs, from 0; -1: none does
  std::string sha256;               // of the prompts' tokens

  Estimate share() const;  // of answers without a difference, with the exact binomial interval
};

// Throws Error where there is no prompt, one is empty, or one fills the context. The two must be of one vocabulary.
WholeAnswers measure_answers(Runner& source, Runner& candidate, std::span<const std::vector<int32_t>> prompts,
                             const AnswerOptions& options, const ProgressCallback& progress = {});

// {prompts, max_tokens, same, share: {value, ci95}, tokens, alike, differs_at, sha256}.
nlohmann::json to_json(const WholeAnswers& answers);
// Throws nlohmann::json::exception where a key is missing or of another kind.
WholeAnswers answers_from_json(const nlohmann::json& json);

}  // namespace fidelio
