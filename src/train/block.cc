#include "train/block.h"

namespace fidelio::train {

void check_known(const ModelConfig& c) {
  switch (c.architecture) {
    case Architecture::llama:
    case Architecture::mistral:
    case Architecture::qwen2:
    case Architecture::qwen3:
      return;
    default:
      throw Error("tuning knows the layers of Llama, Mistral, Qwen2 and Qwen3, not of {}", name_of(c.architecture));
  }
}

AttentionSizes attention_sizes(const ModelConfig& c) {
  return {c.h, c.hk, c.e, c.sliding_window, rope_inverse_frequencies(c), rope_attention_factor(c)};
}

}  // namespace fidelio::train
