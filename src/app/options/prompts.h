// This file reads prompts for a model from a file.
#pragma once
#include "app/options/common.h"
#include "engine/sampler.h"
#include "engine/sequence.h"

namespace fidelio::app {

// Returns a prompt for each line, or for a .jsonl file the "prompt" or "question" of each line. Empty lines are
// ignored. Throws Error where the file holds none, or a line something else.
std::vector<std::string> read_prompt_lines(const std::string& path);

struct PromptOptions {
  std::string file;          // It is for read_prompt_lines().
  int64_t limit = 16;        // It bounds the number of prompts.
  int64_t max_tokens = 128;  // It bounds the tokens of an answer.
  bool plain = false;        // If true, prompts are bare, without the chat template.
};
// Returns the prompts in the model's chat template, where it has one. Seeds count up from the sampling's own. Throws
// Error where a prompt fills the model's context.
std::vector<GenerationRequest> read_prompts(const PromptOptions& options, const SamplingOptions& sampling,
                                            const TextModel& model);

}  // namespace fidelio::app
