// This file implements Atom (Zhao et al. 2024): activations have 4 bits, except that the few columns with most energy
// are kept in 8 bits, together with the weights that they meet.
//
//   columns of an input, ascending by energy, H_ii      [ all others, in groups of g | the g kept ]
//   what the weight holds, and the activations gathered [ int4 . . . . . . . . . .  | high | low ]
//
// A kept weight is s (16 a + b) with a and b from -8 to 7. It is stored as two groups of the same 4-bit codes, with
// the scales 16 s and s, over the same columns of activations taken twice. So kernels and files need no second width,
// and the forward pass has one operation more, which gathers columns (Backend::gather, ModelConfig::kept_columns).
// The integers reach from -136 to 119, and s is chosen so that a row's largest magnitude is 119.
//
// GPTQ rounds the other columns first. If the kept columns, still unrounded, make up for their error, the remaining
// loss has the Hessian S = H_oo - H_ok (H_kk + damping)^-1 H_ko. So the other columns are quantised against S by any
// quantiser of matrices. The kept columns then take W_k + (W_o - Q_o) H_ok (H_kk + damping)^-1 and are rounded to
// nearest.
#pragma once
#include <span>
#include <vector>

#include "arch/model_config.h"
#include "quant/hessian.h"
#include "quant/quantize.h"

namespace fidelio {

// Throws Error if a model's layers cannot have such weights in this format. The format must have 4 bits, be
// symmetric, and have FP16 scales and groups of 32, 64 or 128 columns. Every input must have a whole number of groups
// and at least two. The model must not be rotated.
void check_can_keep(const ModelConfig& config, const FormatSpec& spec);

// A KeptInput handles all linears that read one input.
class KeptInput {
 public:
  // Keeps `kept` columns, which is the size of a group. `damping` is a share of the mean diagonal.
  KeptInput(const Hessian& hessian, int64_t kept, double damping, ThreadPool& pool);

  // Returns, for every column of the stored weights, the column of the input: first all others, then the kept ones
  // twice.
  const std::vector<int32_t>& order() const { return order_; }
  const Hessian& others() const { return others_; }  // the Hessian S of the other columns
  // Returns the other columns of w (out, in), in their order.
  std::vector<float> others_of(std::span<const float> w, int64_t out) const;
  // Returns the weight of w (out, in) whose other columns are `others`, with the kept columns added.
  LinearWeight with_kept(const LinearWeight& others, std::span<const float> w) const;

 private:
  int64_t in_ = 0, kept_ = 0;
  std::vector<int32_t> order_;
  Hessian others_;
  std::vector<float> gain_;  // (in - kept, kept): the matrix H_ok (H_kk + damping)^-1
  ThreadPool& pool_;
};

// Returns such a weight as a dense one, over the input's own columns.
LinearWeight in_own_order(const LinearWeight& weight, std::span<const int32_t> order, int64_t kept);

}  // namespace fidelio
