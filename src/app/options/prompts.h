// Prompts that a model is asked, from a file.
#pragma once
#include "app/options/common.h"
#include "engine/sampler.h"
#include "engine/sequence.h"

namespace fidelio::app {

struct PromptOptions {
  std::string file;          // a prompt a line: text, or JSON with "prompt" or "question"
  int64_t limit = 16;        // prompts taken
  int64_t max_tokens = 128;  // of an answer
  bool plain = false;        // the bare prompts, without the chat template
};
// In the model's chat template where it has one; seeds count up from the sampling's own. Throws Error where the file
// holds none.
std::vector<GenerationRequest> read_prompts(const PromptOptions& options, const SamplingOptions& sampling,
                                            const TextModel& model);

}  // namespace fidelio::app
