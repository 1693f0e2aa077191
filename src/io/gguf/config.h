// What a GGUF file's keys say about the model, as the config.json that Hugging Face's model of it would have. Keys that
// would change what is computed and are not understood are refused by name.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "io/gguf/file.h"

namespace fidelio::gguf {

nlohmann::json config_of(const File& file);
// An FP32 number as its shortest decimal, which is what the model's authors wrote.
nlohmann::json written(double value);

// llama.cpp's "llama" (and what it derives from that) rotates dimensions (2i, 2i+1) of a head together, Hugging Face's
// models (i, i + e/2): rows of q and k are stored in another order. True where that is so of a general.architecture.
bool rows_are_paired(std::string_view architecture);
// Where row `row` of q or k, in Hugging Face's order, stands in the file; `e` rows a head.
inline int64_t paired_row(int64_t row, int64_t e) {
  const int64_t head = row / e, j = row % e;
  return head * e + 2 * (j % (e / 2)) + j / (e / 2);
}

}  // namespace fidelio::gguf
