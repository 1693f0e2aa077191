// This file tells in which order a GGUF file keeps the rows and columns of a model's matrices, for reading and writing.
// Three things move rows:
//
//   pairs         "llama" and its kin rotate columns (2i, 2i + 1) of a head together, so rows of q and k alternate
//   value heads   qwen35 and qwen35moe keep value head i of key head g as head i Hk + g, not g r + i (r = Hv / Hk), in
//                 everything that has one row, column or number for a value head
//   key heads     qwen3next keeps the rows of b and a in one matrix, which alternate by key head
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "arch/model_weights.h"

namespace fidelio::gguf {

// An Order gives, for each row (or column) of ours, its place in the file. An empty one keeps all of them in place.
using Order = std::vector<int64_t>;

// `architecture` is general.architecture.
Order row_order(const ModelConfig& config, LinearId id, std::string_view architecture);
Order column_order(const ModelConfig& config, LinearId id, std::string_view architecture);
// Returns the order of a delta net's numbers, or of the rows of its convolution.
Order delta_order(const ModelConfig& config, DeltaTensor which, std::string_view architecture);
// Returns, for each place in the file, the row of ours that stands there.
Order inverse(const Order& order);
// Returns true if columns that are moved stay together in blocks of 32, as codes do.
bool moves_blocks(const Order& columns);

// Returns true if the file keeps the matrices of b and a of a delta net as one, which has the name of b's.
bool gates_are_fused(std::string_view architecture);
// Returns true if the file keeps 1 + w of a norm whose weight is stored as w elsewhere (Blocks::norm_plus_one).
inline bool has_one_added(const ModelConfig& config, Norm norm) {
  return config.blocks.norm_plus_one && norm != Norm::delta;
}

}  // namespace fidelio::gguf
