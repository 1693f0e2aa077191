// This file lets a linear correct the error that quantised layers before it have made.
//
// In a model that is quantised layer by layer, a linear sees inputs y where the source's linear would see x. GPTQ
// asks its codes to reproduce W y, but the source goes on with W x. The weight that comes nearest to W x from y, in
// least squares over the calibration text, is W C (H + damping)^-1 with C = sum x y^T and H = sum y y^T. That weight
// is quantised instead (asymmetric calibration, GPTAQ: Li et al. 2025, which solves the same problem column by
// column). The damping is GPTQ's and pulls towards W, not towards zero: W + s W (C - H) (H + damping)^-1.
//
// C - H is an estimate from a limited number of tokens, and its noise is fitted too. The factor s = tokens / (tokens
// + 32 in) keeps the part that can be trusted. The 32 is measured: quill-1m at 4 bits has a KL of .0933 .0815 .0808
// .0891 with s = 0, .4, .7, 1 on 8,192 tokens, and .0900 .0736 .0766 .0744 on 32,768.
#pragma once
#include "quant/hessian.h"

namespace fidelio {

class Feedback {
 public:
  explicit Feedback(int64_t in);
  // Adds rows (tokens, in) of the source's inputs, and of the inputs that the quantised layers before produce.
  void add(std::span<const float> source, std::span<const float> quantised, ThreadPool& pool);
  // Returns the weight (out, in) to quantise in place of w. `hessian` is that of the quantised inputs, and `factor`
  // its factor.
  std::vector<float> target(std::span<const float> w, int64_t out, const Hessian& hessian, const HessianFactor& factor,
                            ThreadPool& pool) const;

  // Returns the factor s above.
  static float trust(int64_t tokens, int64_t in);

 private:
  int64_t in_ = 0, tokens_ = 0;
  Buffer sums_;  // the matrix C, (in, in)
};

}  // namespace fidelio
