// quant: one matrix in, one LinearWeight out. Nothing here knows a model; quant/calibrate walks one and calls this.
//
// Any format, any shape (ragged last groups included), w in FP32 row-major (out, in). Results are the same bits for any
// number of threads.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>

#include "core/thread_pool.h"
#include "formats/linear_weight.h"
#include "quant/hessian.h"

namespace fidelio {

// Codebooks that all linears of a model share, by shared_name() of their format (vectors/shared_codebooks.h). A matrix
// that is quantised without the one of its format gets one of its own, and is no part of a model then.
using SharedCodebooks = std::map<std::string, OwnedTensor>;

// Round to nearest. `importance` (in) weights the squared error by column in the range search, e.g. diag(H); empty:
// plain.
struct RtnOptions {
  bool range_search = true;  // false: every group's own minimum and maximum (what the laws about ranges speak of)
  std::span<const float> importance;
  const SharedCodebooks* codebooks = nullptr;
};
LinearWeight quantize_rtn(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                          const RtnOptions& options, ThreadPool& pool);

// GPTQ (Frantar et al. 2023) with static groups, then coordinate descent (descent/descent.h).
// Vector codes as SCVQ has them (vectors/vector_paper.cc), for comparison: which vectors get a correction of their own,
// whether k-means weights vectors by salience, and equation 6's alpha.
struct VectorPaper {
  bool outliers = true, salient = true, residuals = true, weighted = true;
  float alpha = 0.25f;
};
struct GptqOptions {
  double damping = 0.01;  // of the mean diagonal of H; grows tenfold where the Cholesky fails, and the report says so
  bool act_order = true;  // columns by descending H_ii; storage order is unchanged, groups are static
  bool range_search = true;
  int descent_passes = 4;                          // 0: plain GPTQ
  bool descend_codes = true, refit_scales = true;  // what a pass changes
  // Integers that can be cut to view_bits high bits (formats' high_planes): the descent minimises the loss of the whole
  // weight plus view_weight times that of the view. Other formats ignore it.
  int view_bits = 0;
  float view_weight = 0;
  // Vector codes alone: as in the paper, and not by feedback and descent, where `gradient` (out, in) has the mean
  // absolute gradient of every weight.
  VectorPaper paper = {};
  std::span<const float> gradient = {};
  const SharedCodebooks* codebooks = nullptr;
  // (out, out), the second moment of the KL's gradient by the linear's outputs: descent goes on with it (descent/curvature.h).
  // Empty: outputs count alike. Not for vector codes, nor with a view.
  std::span<const float> output_moment = {};
  // Told of the work done on a matrix as its rows are finished, in quantising_work(): by any thread, for progress.
  std::function<void(int64_t)> on_work = {};
};
// About the multiply-adds of quantising so many rows of `in` columns to one format: feedback and descent meet a row's
// Hessian some eight times.
constexpr int64_t quantising_work(int64_t rows, int64_t in) { return 8 * rows * in * in; }
inline constexpr int kCurvaturePasses = 3;
struct GptqReport {
  double energy = 0;         // tr(W H W^T): the loss of an all-zero weight
  double loss_gptq = 0;      // tr((W - Q) H (W - Q)^T) after the error feedback
  double loss = 0;           // and after the descent
  double damping = 0;        // as used
  int64_t dead_columns = 0;  // quantised as zero: no calibration token used them
  double seconds = 0;        // without the factorisation
  double relative_loss() const { return energy > 0 ? loss / energy : 0; }
};
struct GptqResult {
  LinearWeight weight;
  GptqReport report;
};
// `factor` = factorize(hessian, options.damping, options.act_order, pool): made once for all linears of the same input.
GptqResult quantize_gptq(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                         const Hessian& hessian, const HessianFactor& factor, const GptqOptions& options,
                         ThreadPool& pool);
GptqResult quantize_gptq(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                         const Hessian& hessian, const GptqOptions& options, ThreadPool& pool);

// tr((W - Q) H (W - Q)^T) of any two matrices (out, in), in double: what every choice above is judged by.
double proxy_loss(std::span<const float> w, std::span<const float> q, int64_t out, int64_t in, const Hessian& hessian);

}  // namespace fidelio
