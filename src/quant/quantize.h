// This file quantises one matrix to one LinearWeight. Nothing here knows a model; quant/quantize_model.h walks
// through a model and calls this.
//
// Any format and any shape will do, including incomplete last groups. `w` is FP32, row-major, (out, in). Results have
// the same bits for any number of threads.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>

#include "core/thread_pool.h"
#include "formats/linear_weight.h"
#include "quant/hessian.h"

namespace fidelio {

// SharedCodebooks holds the codebooks that all linears of a model share, by shared_name() of their format
// (vectors/shared_codebooks.h). A matrix that is quantised without the codebook of its format gets one of its own;
// such a weight cannot be part of a model.
using SharedCodebooks = std::map<std::string, OwnedTensor>;

// RtnOptions are the options of rounding to nearest. `importance` (in) weights the squared error by column in the
// range search, for example by diag(H). If it is empty, all columns count alike.
struct RtnOptions {
  bool range_search = true;  // if false, a group's range is its own minimum and maximum
  std::span<const float> importance;
  const SharedCodebooks* codebooks = nullptr;
};
// Rounds a matrix to nearest.
LinearWeight quantize_rtn(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                          const RtnOptions& options, ThreadPool& pool);

// VectorPaper holds options of vector codes as SCVQ makes them (vectors/vector_paper.cc), for comparison: which
// vectors get a correction of their own, whether k-means weights vectors by salience, and the alpha of equation 6.
struct VectorPaper {
  bool outliers = true, salient = true, residuals = true, weighted = true;
  float alpha = 0.25f;
};
// GptqOptions are the options of GPTQ (Frantar et al. 2023) with static groups, followed by coordinate descent
// (descent/descent.h).
struct GptqOptions {
  // The share of H's mean diagonal that is added to the diagonal. It grows tenfold where the Cholesky factorisation
  // fails, and the report says so.
  double damping = 0.01;
  bool act_order = true;  // takes columns by descending H_ii; the stored order does not change, and groups are static
  bool range_search = true;
  int descent_passes = 4;                          // passes of the descent; 0 is plain GPTQ
  bool descend_codes = true, refit_scales = true;  // what a pass changes
  // For integers that can be cut to their view_bits high bits (formats' high_planes), the descent minimises the loss
  // of the whole weight plus view_weight times the loss of those high bits alone. Other formats ignore these.
  int view_bits = 0;
  float view_weight = 0;
  // If `gradient` (out, in), the mean absolute gradient of every weight, is given, vector codes are made by the
  // paper's algorithm, without feedback and descent. Other formats ignore these.
  VectorPaper paper = {};
  std::span<const float> gradient = {};
  const SharedCodebooks* codebooks = nullptr;
  // The second moment (out, out) of the KL's gradient at the linear's outputs, with which the descent continues
  // (descent/curvature.h). If it is empty, all outputs count alike. It must be empty for vector codes and with a
  // view.
  std::span<const float> output_moment = {};
  // This is called with the work done on a matrix as rows are finished, in units of quantising_work(), for progress.
  // Any thread may call it.
  std::function<void(int64_t)> on_work = {};
};
// Returns about how many multiply-adds it takes to quantise so many rows of `in` columns to one format. Feedback and
// descent use the Hessian about eight times for each row.
constexpr int64_t quantising_work(int64_t rows, int64_t in) { return 8 * rows * in * in; }
inline constexpr int kCurvaturePasses = 3;
struct GptqReport {
  double energy = 0;         // tr(W H W^T): the loss of an all-zero weight
  double loss_gptq = 0;      // tr((W - Q) H (W - Q)^T) after the error feedback
  double loss = 0;           // the same after the descent
  double damping = 0;        // the damping used
  int64_t dead_columns = 0;  // columns that no calibration token used; they become zeros
  double seconds = 0;        // time without the factorisation
  double relative_loss() const { return energy > 0 ? loss / energy : 0; }
};
struct GptqResult {
  LinearWeight weight;
  GptqReport report;
};
// Quantises w (out, in) with GPTQ. `factor` must be factorize(hessian, options.damping, options.act_order, pool),
// which is made once for all linears of an input. The second function makes it itself.
GptqResult quantize_gptq(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                         const Hessian& hessian, const HessianFactor& factor, const GptqOptions& options,
                         ThreadPool& pool);
GptqResult quantize_gptq(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                         const Hessian& hessian, const GptqOptions& options, ThreadPool& pool);

// Returns tr((W - Q) H (W - Q)^T) of two matrices (out, in), in double. This loss judges all the choices above.
double proxy_loss(std::span<const float> w, std::span<const float> q, int64_t out, int64_t in, const Hessian& hessian);

}  // namespace fidelio
