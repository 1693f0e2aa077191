// Fidelity: how close the next-token distribution q of a candidate is to that of a reference p, position by position.
//
//   KL   = sum_k p_k ln(p_k / q_k)            in nats
//   EAR  = sum_k min(p_k, q_k)                expected acceptance rate: the chance that a token sampled from q would be
//                                             accepted as one of p under the best coupling
// Both in three variants, never mixed (docs/design.md): over the full vocabulary; over the K most likely tokens of p,
// raw (probabilities as they are, so EAR(p, p) is the mass of those tokens and KL may be negative); over the same
// tokens with p and q each renormalised to 1 there (what SLQ calls EAR and KL).
//
// Laws (tests): EAR(p, p) = 1 exactly, full and renormalised; raw EAR(p, p) = top-K mass; KL >= 0; EAR is symmetric and
// >= 1 - sqrt(KL / 2) (Pinsker).
//
// Arithmetic: logits are FP32 (v). exp is evaluated in FP32 with a relative error below 2e-7 (tested), sums are kept in
// FP64 in 16 lanes of a fixed order, so results do not depend on the machine. KL is summed as p (e^t - 1 - t), t = ln(q
// / p), which is the same number (the added q - p sum to 0), has no negative term, and keeps its relative accuracy when
// q is nearly p: an error of the normaliser enters squared. A KL of 1e-9 is still a measurement.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace fidelio {

// ln sum exp of one row. Throws Error if the row is empty or a logit is not finite.
double log_sum_exp(std::span<const float> logits);

struct PositionFidelity {
  double kl = 0, ear = 0;          // full vocabulary
  double kl_raw = 0, ear_raw = 0;  // top-K raw
  double kl_renormalised = 0, ear_renormalised = 0;
  double top_k_mass = 0;                        // of p in its own top K
  double entropy = 0;                           // of p, nats
  double confidence = 0;                        // p(top_p)
  int32_t top_p = 0, top_q = 0;                 // most likely token; the lowest id of several
  double margin_p = 0;                          // p(top_p) - p(top_q): how much the reference minds the flip; 0 if none
  double margin_q = 0;                          // q(top_q) - q(top_p): how sure the candidate is of it
  double log_sum_exp_p = 0, log_sum_exp_q = 0;  // so that ln p(k) = logits[k] - log_sum_exp
  // These two are of the model as it is sampled (eval/studies/at_sampling.h); compare() leaves both at 0.
  double kl_sampled = 0, ear_sampled = 0;

  bool agree() const { return top_p == top_q; }
};

// Compares rows; keeps scratch between calls, so one object serves one thread.
class RowComparer {
 public:
  explicit RowComparer(int top_k = 10) : top_k_(top_k) {}
  // Throws Error if sizes differ, a row is empty, or a logit is not finite.
  PositionFidelity compare(std::span<const float> p_logits, std::span<const float> q_logits);
  // KL and EAR over the full vocabulary of the two rows compared last, at another temperature. Once after each compare().
  struct Distance {
    double kl, ear;
  };
  Distance at_temperature(double temperature);

 private:
  int top_k_;
  size_t vocabulary_ = 0;
  std::vector<float> shifted_p_, shifted_q_, exp_p_, exp_q_;
  std::vector<int32_t> top_;
};

// Decision flips by the reference's entropy (SLQ figure 2): bin i holds positions with kEntropyEdges[i] <= entropy
// (nats) < kEntropyEdges[i + 1], the last one everything above.
inline constexpr std::array<double, 7> kEntropyEdges = {0, 0.1, 0.5, 1, 2, 3, 4};
int entropy_bin(double entropy);

// Sums over the positions of one window (the unit of the bootstrap).
struct FidelitySums {
  int64_t positions = 0;
  double kl = 0, ear = 0, kl_raw = 0, ear_raw = 0, kl_renormalised = 0, ear_renormalised = 0;
  double top_k_mass = 0, entropy = 0, agreements = 0, disagreements = 0;
  double kl_sampled = 0, ear_sampled = 0;  // 0 where nobody asked
  double margin_p = 0, margin_q = 0;       // over disagreements
  std::array<double, kEntropyEdges.size()> bin_positions{}, bin_flips{};

  void add(const PositionFidelity& position);
};

}  // namespace fidelio
