#include "io/rows/unstacked.h"

#include <fmt/format.h>

#include "io/model_source.h"

namespace fidelio {

FusedName unstacked_name(const TensorFiles& files, LinearId id, FusedName stacked, int experts) {
  if (id.expert < 0 || stacked.weight.empty() || files.contains(stored_name(files, stacked.weight))) return stacked;
  const size_t end = stacked.weight.rfind("_proj");
  if (end == std::string::npos) return stacked;
  const bool bias = stacked.weight.ends_with("_bias");
  const std::string own =
      fmt::format("{}_projs.{}.{}", stacked.weight.substr(0, end), id.expert, bias ? "bias" : "weight");
  if (!files.contains(stored_name(files, own))) return stacked;
  const int64_t rows = stacked.rows / experts;  // of the expert's own tensor, which is not by columns
  RowRun run = stacked.runs.front();
  run.first_row %= rows;
  return {own, {run}, rows};
}

}  // namespace fidelio
