// This file measures how many of a model's greedy answers a candidate gives word for word. One token that differs
// changes all that follow, so this share falls with the length of the answers, far below the share of tokens that
// agree.
//
//   source     prompt | t1 t2 t3 .. t200     answers greedily
//   candidate  prompt | t1 t2 t3 .. t200     says at every position which token it would choose there
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
  int64_t max_tokens = 200;  // the most tokens of an answer; a stop token ends it earlier
  std::vector<int32_t> stop_ids{};
};

struct WholeAnswers {
  int64_t max_tokens = 0, prompts = 0;
  int64_t same = 0;  // number of answers without a difference
  // The number of tokens of all answers, and of those that the candidate would have chosen after the source's own
  // tokens.
  int64_t tokens = 0, alike = 0;
  std::vector<int64_t> differs_at;  // for each answer the first token that differs, from 0; -1 if none does
  std::string sha256;               // hash of the prompts' tokens

  Estimate share() const;  // share of answers without a difference, with the exact binomial interval
};

// Answers the prompts with `source` and compares `candidate`. The two models must have the same vocabulary. Throws
// Error if there is no prompt, or if one is empty or fills the context.
WholeAnswers measure_answers(Runner& source, Runner& candidate, std::span<const std::vector<int32_t>> prompts,
                             const AnswerOptions& options, const ProgressCallback& progress = {});

// The JSON has the form {prompts, max_tokens, same, share: {value, ci95}, tokens, alike, differs_at, sha256}.
nlohmann::json to_json(const WholeAnswers& answers);
// Reads that form. Throws nlohmann::json::exception if a key is missing or has the wrong type.
WholeAnswers answers_from_json(const nlohmann::json& json);

}  // namespace fidelio
