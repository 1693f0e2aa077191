// Atom (Zhao et al. 2024): activations of 4 bits whose few columns of most energy are kept in 8, together with the
// weights that they meet.
//
//   columns of an input, ascending by energy, H_ii      [ all others, in groups of g | the g kept ]
//   what the weight holds, and the activations gathered [ int4 . . . . . . . . . .  | high | low ]
//
// A kept weight is s (16 a + b), a and b from -8 to 7: two groups of the same 4-bit codes with the scales 16 s and s, over
// the same columns of activations twice. So kernels and files know no second width, and the model's forward has one more
// operation: it gathers columns (Backend::gather, ModelConfig::kept_columns). The integers reach from -136 to 119; s is such
// that a row's largest magnitude is 119.
//
// GPTQ rounds the others first. What they lose when the kept columns, still unrounded, make up for it has the Hessian
// S = H_oo - H_ok (H_kk + damping)^-1 H_ko, so that the others are quantised against S by whatever quantises matrices, and
// the kept columns then take W_k + (W_o - Q_o) H_ok (H_kk + damping)^-1 and are rounded to nearest.
#pragma once
#include <span>
#include <vector>

#include "arch/model_config.h"
#include "quant/hessian.h"
#include "quant/quantize.h"

namespace fidelio {

// Throws Error where a model's layers cannot have such weights of this format: 4 bits, symmetric, FP16 scales, groups of
// 32, 64 or 128 columns of which every input has a whole number and two at least; a rotated model.
void check_can_keep(const ModelConfig& config, const FormatSpec& spec);

// One input of linears.
class KeptInput {
 public:
  // As many columns are kept as a group has. `damping`: of the mean diagonal.
  KeptInput(const Hessian& hessian, int64_t kept, double damping, ThreadPool& pool);

  // The input's column of every column that the weights have: of all others, then of those that are kept, twice.
  const std::vector<int32_t>& order() const { return order_; }
  const Hessian& others() const { return others_; }  // S
  // The other columns of w (out, in) in their order.
  std::vector<float> others_of(std::span<const float> w, int64_t out) const;
  // The weight of w (out, in) whose other columns are `others`.
  LinearWeight with_kept(const LinearWeight& others, std::span<const float> w) const;

 private:
  int64_t in_ = 0, kept_ = 0;
  std::vector<int32_t> order_;
  Hessian others_;
  std::vector<float> gain_;  // (in - kept, kept): H_ok (H_kk + damping)^-1
  ThreadPool& pool_;
};

// Such a weight as a dense one over the input's own columns.
LinearWeight in_own_order(const LinearWeight& weight, std::span<const int32_t> order, int64_t kept);

}  // namespace fidelio
