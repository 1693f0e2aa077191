// Prompts that a model is asked, from a file.
#pragma once
#include "app/options/common.h"
#include "engine/sampler.h"
#include "engine/sequence.h"

namespace fidelio::app {

// A prompt a line; of a .jsonl file the "prompt" or "question" of each line. Empty lines are none. Throws Error where the
// file holds none, or a line something else.
std::vector<std::string> read_prompt_lines(const std::string& path);

struct PromptOptions {
  std::string file;          // for read_prompt_lines()
  int64_t limit = 16;        // prompts taken
  int64_t max_tokens = 128;  // of an answer
  bool plain = false;        // the bare prompts, without the chat template
};
// In the model's chat template where it has one; seeds count up from the sampling's own. Throws Error where a prompt
// fills the model's context.
std::vector<GenerationRequest> read_prompts(const PromptOptions& options, const SamplingOptions& sampling,
                                            const TextModel& model);

}  // namespace fidelio::app
