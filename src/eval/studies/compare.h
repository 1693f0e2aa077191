// This file measures fidelity as served: it runs a candidate and a reference side by side over the same text, window
// by window, through the serving kernels. The reference computes with FP32 activations by default, the candidate in
// its serving mode.
//
// Only positions whose next token the perplexity scores are measured, so that every figure of a report is about the
// same set.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "eval/fidelity/fidelity.h"
#include "eval/fidelity/logit_pass.h"
#include "eval/fidelity/perplexity.h"
#include "eval/fidelity/tails.h"
#include "eval/studies/at_sampling.h"

namespace fidelio {

struct CompareOptions {
  WindowOptions windows{};
  Activations reference_mode = Activations::f32;
  Reading candidate_mode = Activations::a16;
  int top_k = 10;
  std::optional<SamplingOptions> sampling{};  // measures the model as sampled, too (at_sampling.h); empty: does not
  BootstrapOptions bootstrap{};
};

// A WindowFidelity is what one window adds to every mean. The window is the unit of the bootstrap.
struct WindowFidelity {
  FidelitySums sums;
  // The sums over the positions that the text wants to see by themselves (EvalText::apart). `sums` includes them too.
  FidelitySums apart{};
  double nll_reference = 0, nll_candidate = 0;
  int32_t text = 0;
};

struct FidelityReport {
  CompareOptions options;
  std::vector<std::string> text_names, text_sha256;
  std::vector<WindowFidelity> windows;
  Tails tails{};  // of all texts together; a report made by of_text() has none

  // Returns the mean over positions of one of the sums of FidelitySums, bootstrapped by window.
  Estimate mean_of(double FidelitySums::*sum) const;
  // Returns the mean over the positions that disagree (for margin_p and margin_q). The value is NaN if there are
  // none.
  Estimate mean_over_disagreements(double FidelitySums::*sum) const;
  // These return the share of all positions at which the most likely token is the same, and the share of the
  // positions of one entropy bin at which it differs. If none or all of the positions are counted, there is no spread
  // to make an interval of. It then ends at the share that so many positions miss with a chance of 2.5%.
  Estimate top1() const;
  Estimate flips(size_t entropy_bin) const;

  int64_t positions() const;
  Estimate kl() const { return mean_of(&FidelitySums::kl); }
  Estimate ear() const { return mean_of(&FidelitySums::ear); }
  // These two describe the models as options.sampling samples them. Without it they mean nothing.
  Estimate kl_sampled() const { return mean_of(&FidelitySums::kl_sampled); }
  Estimate ear_sampled() const { return mean_of(&FidelitySums::ear_sampled); }
  Estimate perplexity() const;  // perplexity of the candidate
  Estimate reference_perplexity() const;
  // Returns reference / candidate, as in SLQ's tables; 1 means that nothing was lost. The interval is paired by
  // window.
  Estimate perplexity_ratio() const;
  // This is the same, with the interval by text, which is by document in a certificate.
  Estimate perplexity_ratio_by_text() const;
  double ear_constant() const;  // the constant c of 1 - EAR = c sqrt(KL); it depends on the text, hardly on the width

  // Returns a report on the windows of one text alone.
  FidelityReport of_text(int32_t text) const;
};

// A PositionVisitor is called for every position that was compared, in the order of the sequences and of their
// tokens.
using PositionVisitor = std::function<void(const ScoredRow& row, const PositionFidelity& position)>;
// Compares sequences and returns the sums of each. The windows of the options do not matter here. `kept` holds the
// reference's streams between comparisons of several candidates with it over the same texts.
std::vector<WindowFidelity> compare_sequences(Runner& reference, Runner& candidate,
                                              std::span<const ScoredSequence> sequences, const CompareOptions& options,
                                              ThreadPool& pool, const ProgressCallback& progress = {},
                                              KeptStreams* kept = nullptr, const PositionVisitor& visit = {});
// Compares two models over the windows of the texts.
FidelityReport compare_models(Runner& reference, Runner& candidate, std::span<const EvalText> texts,
                              const CompareOptions& options, ThreadPool& pool, const ProgressCallback& progress = {},
                              KeptStreams* kept = nullptr);

// The JSON has {kl, ear, kl_topk_raw, ear_topk_raw, kl_topk_renormalised, ear_topk_renormalised, topk_mass, top1,
// margin, margin_candidate, entropy, perplexity, reference_perplexity, perplexity_ratio}, each with {value, ci95}. It
// also has ear_constant, tokens, flips_by_entropy, tails, sampled (null, or {temperature, top_k, top_p, min_p, kl,
// ear}), settings, texts (with kl and ear of each if there are several), and windows (sums per window, which are
// enough to recompute everything).
nlohmann::json to_json(const FidelityReport& report);
nlohmann::json sampled_json(const FidelityReport& report);
// [{entropy_from, positions, flips}] for each of kEntropyEdges.
nlohmann::json flips_json(const FidelityReport& report);

}  // namespace fidelio
