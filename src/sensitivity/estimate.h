// This file turns measurements into a SensitivityTable (SLQ section 3.3, Algorithm 1, appendix A.2). The methods are:
//
//   none      nothing is measured: groups, formats and bytes, for a search that measures whole plans
//   single    one group at a time is switched to one candidate, with all others at the reference: one pass a group.
//             The costs of the other candidates follow from the error of their weights in the Hessian metric. In
//             these terms KL is linear while it is small (the linearity theorem behind `linear`, Malinovskii et al.
//             2025, with the one constant of a group measured by rounding instead of noise), and 1 - EAR grows with
//             its square root
//   every     the same in every candidate: groups x formats passes
//   linear    Gaussian (or uniform) noise of T levels is added to one group at a time. The slope through the origin of
//             KL against the relative noise power, alpha, is multiplied by each candidate's own relative error e:
//             groups x T passes. R^2 says whether it is a line
//   shapley   one binary game per candidate format: all groups start at the best format and are switched in random
//             order; a group's value is its mean marginal cost over permutations (Algorithm 1)
//   unified   one walk for all formats: a permutation of every (group, next level down) step; the costs of transitions
//             are summed from the best format downwards (appendix A.2)
//
// SLQ allocates by `shapley`. Here `single` is the default, because the games take 48 times the passes and their plans
// lose 3% more (docs/results/games.json).
//
// Permutations come in antithetic pairs (an order and its reverse), and standard errors are over pairs.
#pragma once
#include <functional>
#include <string>

#include "alloc/plan.h"
#include "sensitivity/players.h"

namespace fidelio {

// A Candidate is one format of one group.
struct Candidate {
  FormatSpec format;
  std::function<PackedLinear(LinearId)> packed;  // returns a linear of the group, made or read when it is asked for
  int64_t bytes = 0;
  double relative_error = 0;  // mean over the group's linears of ||W - Q||^2 / ||W||^2
  // The mean over the group's linears of tr((W - Q) H (W - Q)^T) / tr(W H W^T), which is the error of their outputs
  // on the calibration text. Where no Hessian was taken (embedding, head), the relative error stands for it.
  double output_error = 0;
};
struct CandidateGroup {
  LinearGroup group;
  int64_t parameters = 0;
  std::vector<Candidate> candidates;  // by ascending bytes
};

// Puts a candidate's weights in force for all linears of the group.
void assign(Game& game, const CandidateGroup& group, const Candidate& candidate);
// Does the same for the group's candidate in this format, if it has one.
void assign(Game& game, const CandidateGroup& group, const FormatSpec& format);

struct EstimateOptions {
  std::string method = "single";
  FormatSpec measured = {};  // for `single`: the candidate that every group is measured in
  int permutations = 8;      // for shapley and unified; an even number, since pairs are antithetic
  // Sampling of permutations stops when, for every format, sqrt(sum over groups of se^2) of the KL values is at most
  // this share of their sum. With 0 all permutations are used. The check begins with the third pair, because an error
  // estimated from two is worth little.
  double target_se = 0;
  int noise_levels = 4;  // for linear: the number of levels T
  bool uniform_noise = false;
  uint64_t seed = 0;
  double base_kl = 0, base_loss = 0;  // what the game measures with the reference's own weights; it belongs to no group
};

struct LinearFit {
  double alpha = 0, alpha_se = 0, r2 = 0;
};
struct Estimation {
  SensitivityTable table;
  std::vector<LinearFit> kl_fits, loss_fits;  // for linear only, one for each group
  int64_t passes = 0;
};

// `noisy(id, sigma, stream, uniform)` returns the packed weight with added noise of relative power sigma^2. It is
// used by `linear` only.
using NoisyWeight = std::function<PackedLinear(LinearId id, double sigma, uint64_t stream, bool uniform)>;
// This is called after every measurement of this rank, with the number done and this rank's share of all, which is an
// upper bound.
using EstimateProgress = std::function<void(int64_t done, int64_t total)>;

// Makes the table. The result has the same bytes for any number of ranks, because groups (single, every, linear) or
// walks (shapley, unified) are the jobs. Throws Error if the method is unknown or cannot be applied to these groups.
Estimation estimate(Players& players, const std::vector<CandidateGroup>& groups, const EstimateOptions& options,
                    const NoisyWeight& noisy, const EstimateProgress& progress);

// Returns c of 1 - EAR = c sqrt(KL) as a root-mean-square ratio over measurements of whole-model plans at a few
// widths.
double ear_constant(const std::vector<MeterResult>& plans);

}  // namespace fidelio
