// This file reads the integer codes of a linear as other programs pack them: w = scale (q - zero), with q of `bits`
// bits. Codes that one of our formats holds exactly become that format; the others are decoded to F32.
//
//   compressed-tensors   weight_packed i32 (out, words): a row's codes as one string of b-bit fields, least significant
//   (pack-quantized)     bit first; weight_zero_point the same down the columns, or i8; weight_scale (out, groups);
//                        weight_g_idx (in): the group of each column
//   (int-quantized)      weight i8 (out, in), weight_zero_point i8; weight_scale (out, groups), (out) or (1)
//   GPTQ                 qweight i32 (in b / 32, out): a column's codes as one string; qzeros i32 (groups, out b / 32)
//                        along the row, minus one unless checkpoint_format is gptq_v2 or gptq_p; scales (groups, out);
//                        g_idx (in). gptq_p: of 32 codes the low plane's words first, then the higher ones'
//   AWQ (gemm)           qweight i32 (in, out / 8): eight outputs a word in the order 0 2 4 6 1 3 5 7; qzeros the same
//                        (groups, out / 8); scales (groups, out)
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/linear_weight.h"
#include "io/tensor_files.h"

namespace fidelio::quantised {

class PackedLinear {
 public:
  virtual ~PackedLinear() = default;
  virtual void codes(int64_t row, std::span<uint8_t> q) const = 0;  // `q` has a place for each of the `in` columns.
  virtual float scale(int64_t row, int64_t group) const = 0;
  virtual int zero(int64_t row, int64_t group) const = 0;  // It is 0 to 2^bits, or below 0 in damaged files.

  int64_t group_of(int64_t column) const {
    return group_index.empty() ? column / group_size : group_index[static_cast<size_t>(column)];
  }

  int bits = 0;
  int64_t out = 0, in = 0, groups = 0;
  int64_t group_size = 0;            // It counts columns, where groups are runs of columns.
  std::vector<int32_t> group_index;  // It gives the group of each column, where they are not.
};

// These are some rows of a module's tensors ("model.layers.0.self_attn.qkv_proj" holds three linears); `out` is their
// number.
struct Place {
  std::string module;
  int64_t first_row = 0, module_rows = 0;
  int64_t out = 0, in = 0;
};

// `group_sizes` are those that the configuration names; a g_idx takes precedence.
std::unique_ptr<PackedLinear> open_compressed(const TensorFiles& files, const Place& place, std::span<const int> widths,
                                              std::span<const int> group_sizes);
std::unique_ptr<PackedLinear> open_gptq(const TensorFiles& files, const Place& place, std::span<const int> group_sizes,
                                        bool zeros_minus_one, bool planar);
std::unique_ptr<PackedLinear> open_awq(const TensorFiles& files, const Place& place, std::span<const int> group_sizes);

// Returns the numbers of a tensor of any floating-point type. Throws Error naming it where one is not finite.
std::vector<float> finite_numbers(const TensorFiles& files, const std::string& name);

// Returns the integer format that holds every value exactly, or F32 with the reason in `why`.
FormatSpec format_of(const PackedLinear& packed, std::string* why);
LinearWeight read(const PackedLinear& packed, const FormatSpec& format);

}  // namespace fidelio::quantised
