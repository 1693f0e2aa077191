// Fidelity is how close the next-token distribution q of a candidate is to that of a reference p. This file measures
// it at one position.
//
//   KL   = sum_k p_k ln(p_k / q_k)            in nats
//   EAR  = sum_k min(p_k, q_k)                expected acceptance rate: the chance that a token sampled from q would be
//                                             accepted as one of p under the best coupling
// Both come in three variants, which are never mixed: over the full vocabulary; over the K most likely tokens of p,
// raw (with the probabilities as they are, so that EAR(p, p) is the mass of those tokens and KL may be negative); and
// over the same tokens with p and q each renormalised to 1 there (which is what SLQ calls EAR and KL).
//
// Tests hold these laws: EAR(p, p) = 1 exactly, full and renormalised; raw EAR(p, p) is the top-K mass; KL >= 0; EAR
// is symmetric and >= 1 - sqrt(KL / 2) (Pinsker).
//
// The logits are FP32, (v). The exp is evaluated in FP32 with a relative error below 2e-7 (tested). Sums are kept in
// FP64 in 16 lanes of a fixed order, so that results do not depend on the machine. KL is summed as p (e^t - 1 - t)
// with t = ln(q / p). That is the same number, because the added q - p sum to 0. It has no negative term, and it
// keeps its relative accuracy when q is nearly p, because an error of the normaliser enters squared. So a KL of 1e-9
// is still a measurement.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace fidelio {

// Returns ln sum exp of one row. Throws Error if the row is empty or a logit is not finite.
double log_sum_exp(std::span<const float> logits);

struct PositionFidelity {
  double kl = 0, ear = 0;          // over the full vocabulary
  double kl_raw = 0, ear_raw = 0;  // over the top K, raw
  double kl_renormalised = 0, ear_renormalised = 0;
  double top_k_mass = 0;         // mass of p in its own top K
  double entropy = 0;            // entropy of p in nats
  double confidence = 0;         // the largest probability, p(top_p)
  int32_t top_p = 0, top_q = 0;  // the most likely token of each; the lowest id among equals
  double margin_p = 0;           // p(top_p) - p(top_q), which is how much a flip costs the reference; 0 without a flip
  double margin_q = 0;           // q(top_q) - q(top_p), which is how sure the candidate is of the flip
  double log_sum_exp_p = 0, log_sum_exp_q = 0;  // these give ln p(k) = logits[k] - log_sum_exp
  // These two describe the model as it is sampled (eval/studies/at_sampling.h). compare() leaves both at 0.
  double kl_sampled = 0, ear_sampled = 0;

  bool agree() const { return top_p == top_q; }
};

// Computes both top-K variants and the mass of the top K, from the logits of p's most likely tokens in p and in q and
// from log_sum_exp_p and log_sum_exp_q, which `f` must hold.
void compare_top(std::span<const float> p_top, std::span<const float> q_top, PositionFidelity& f);

// A RowComparer compares rows of logits. It keeps scratch memory between calls, so one object serves one thread.
class RowComparer {
 public:
  explicit RowComparer(int top_k = 10) : top_k_(top_k) {}
  // Compares two rows of the same size. Throws Error if the sizes differ, a row is empty, or a logit is not finite.
  PositionFidelity compare(std::span<const float> p_logits, std::span<const float> q_logits);
  // Returns KL and EAR over the full vocabulary of the two rows compared last, at another temperature. It may be
  // called once after each compare().
  struct Distance {
    double kl, ear;
  };
  Distance at_temperature(double temperature);

 private:
  int top_k_;
  size_t vocabulary_ = 0;
  std::vector<float> shifted_p_, shifted_q_, exp_p_, exp_q_, top_p_, top_q_;
  std::vector<int32_t> top_;
};

// Decision flips are counted by the reference's entropy in nats (SLQ figure 2). Bin i holds the positions with
// kEntropyEdges[i] <= entropy < kEntropyEdges[i + 1], and the last bin everything above.
inline constexpr std::array<double, 7> kEntropyEdges = {0, 0.1, 0.5, 1, 2, 3, 4};
int entropy_bin(double entropy);

// FidelitySums holds sums over the positions of one window, which is the unit that the bootstrap resamples.
struct FidelitySums {
  int64_t positions = 0;
  double kl = 0, ear = 0, kl_raw = 0, ear_raw = 0, kl_renormalised = 0, ear_renormalised = 0;
  double top_k_mass = 0, entropy = 0, agreements = 0, disagreements = 0;
  double kl_sampled = 0, ear_sampled = 0;  // 0 if nobody asked for them
  double margin_p = 0, margin_q = 0;       // sums over the positions that disagree
  std::array<double, kEntropyEdges.size()> bin_positions{}, bin_flips{};

  void add(const PositionFidelity& position);
};

}  // namespace fidelio
