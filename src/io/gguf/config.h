// This file converts the keys of a GGUF file about the model into the config.json that Hugging Face's version of the
// model would have. Keys that change the computation and are not understood are refused by name.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "io/gguf/file.h"

namespace fidelio::gguf {

nlohmann::json config_of(const File& file);
// Returns the number of layers behind the model's own that predict further tokens (nextn_predict_layers).
int64_t further_layers(const File& file);
// Returns an FP32 number as its shortest decimal, which is what the authors of the model wrote.
nlohmann::json written(double value);

// llama.cpp's "llama" (and architectures derived from it) rotates dimensions (2i, 2i+1) of a head together, Hugging
// Face's models (i, i + e/2), so the rows of q and k are stored in another order. Returns true for a
// general.architecture where that is so.
bool rows_are_paired(std::string_view architecture);
// Returns where row `row` of q or k, in Hugging Face's order, stands in the file. A head has `e` rows.
inline int64_t paired_row(int64_t row, int64_t e) {
  const int64_t head = row / e, j = row % e;
  return head * e + 2 * (j % (e / 2)) + j / (e / 2);
}

}  // namespace fidelio::gguf
