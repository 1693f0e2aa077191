// From measurements to a SensitivityTable (SLQ section 3.3, Algorithm 1, appendix A.2).
//
//   none      nothing is measured: groups, formats and bytes, for a search that measures whole plans
//   single    one group at a time switched to one candidate, all others at the reference: a pass a group. The
//             other candidates follow by the error of their weights in the Hessian metric, in whose terms KL is linear while it is small
//             (the linearity theorem behind `linear`, Malinovskii et al. 2025, with the one constant of a group
//             measured by rounding instead of noise); 1 - EAR goes by its square root
//   every     the same in every candidate: groups x formats passes
//   linear    Gaussian (or uniform) noise of T levels into one group at a time; the slope through the origin of KL
//             against the relative noise power, alpha, times each candidate's own relative error e: groups x T passes.
//             R^2 says if it is a line
//   shapley   one binary game per candidate format: all groups start at the best format, are switched in random order,
//             and a group's value is its mean marginal cost over permutations (Algorithm 1)
//   unified   one walk for all formats: a permutation of every (group, next level down) step; the costs of
//             transitions are summed from the best format downwards (appendix A.2)
// Permutations come in antithetic pairs (an order and its reverse); standard errors are over pairs.
#pragma once
#include <functional>
#include <string>

#include "alloc/plan.h"
#include "sensitivity/players.h"

namespace fidelio {

// One format of one group.
struct Candidate {
  FormatSpec format;
  std::function<PackedLinear(LinearId)> packed;  // of the group's linears, made or read when it is asked for
  int64_t bytes = 0;
  double relative_error = 0;  // mean over the group's linears of ||W - Q||^2 / ||W||^2
  // Mean over the group's linears of tr((W - Q) H (W - Q)^T) / tr(W H W^T): the error of their outputs on the
  // calibration text. Where no Hessian was taken (embedding, head) the relative error stands for it.
  double output_error = 0;
};
struct CandidateGroup {
  LinearGroup group;
  int64_t parameters = 0;
  std::vector<Candidate> candidates;  // by ascending bytes
};

void assign(Game& game, const CandidateGroup& group, const Candidate& candidate);
// The group's candidate of this format, if it has one.
void assign(Game& game, const CandidateGroup& group, const FormatSpec& format);

struct EstimateOptions {
  std::string method = "single";
  FormatSpec measured = {};  // single: the candidate that every group is measured in
  int permutations = 8;      // shapley, unified: pairs are antithetic, so an even number
  // Stop sampling permutations when sqrt(sum over groups of se^2) of the KL values of every format is at most this
  // share of their sum; 0 = use them all. Looked at from the third pair on: an error estimated from two is worth
  // little.
  double target_se = 0;
  int noise_levels = 4;  // linear: T
  bool uniform_noise = false;
  uint64_t seed = 0;
  double base_kl = 0, base_loss = 0;  // what the game measures of the reference's own weights: no group's fault
};

struct LinearFit {
  double alpha = 0, alpha_se = 0, r2 = 0;
};
struct Estimation {
  SensitivityTable table;
  std::vector<LinearFit> kl_fits, loss_fits;  // linear only, per group
  int64_t passes = 0;
};

// `noisy(id, sigma, stream)`: the packed weight plus noise of relative power sigma^2 (linear only).
using NoisyWeight = std::function<PackedLinear(LinearId id, double sigma, uint64_t stream, bool uniform)>;
// Called after every measurement of this rank with (done, this rank's share of all, at most).
using EstimateProgress = std::function<void(int64_t done, int64_t total)>;

// The same bytes for any number of ranks: groups (single, every, linear) or walks (shapley, unified) are the jobs.
Estimation estimate(Players& players, const std::vector<CandidateGroup>& groups, const EstimateOptions& options,
                    const NoisyWeight& noisy, const EstimateProgress& progress);

// c of 1 - EAR = c sqrt(KL), from whole-model plans at a few widths: the root-mean-square ratio.
double ear_constant(const std::vector<MeterResult>& plans);

}  // namespace fidelio
