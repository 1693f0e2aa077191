// Fidelity as served: a candidate against a reference over the same text, both run side by side, window by window, in
// the very kernels that serve. The reference computes with FP32 activations by default, the candidate in its serving
// mode.
//
// Positions measured are those whose next token the perplexity scores, so every figure of a report is about the same
// set.
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
  std::optional<SamplingOptions> sampling{};  // measured as sampled so, too (at_sampling.h); none: not
  BootstrapOptions bootstrap{};
};

// What one window adds to every mean; the unit of the bootstrap.
struct WindowFidelity {
  FidelitySums sums;
  FidelitySums apart{};  // the text wants these positions apart (EvalText::apart); `sums` has them as well
  double nll_reference = 0, nll_candidate = 0;
  int32_t text = 0;
};

struct FidelityReport {
  CompareOptions options;
  std::vector<std::string> text_names, text_sha256;
  std::vector<WindowFidelity> windows;
  Tails tails{};  // of all texts together; of_text has none

  // Mean over positions of one of FidelitySums' sums, bootstrapped by window.
  Estimate mean_of(double FidelitySums::*sum) const;
  // Mean over disagreeing positions (margin_p, margin_q). Value NaN if there are none.
  Estimate mean_over_disagreements(double FidelitySums::*sum) const;
  // Shares of positions, of all and of one bin of entropies: the most likely token is the same, or differs. Where none
  // or all of them are counted there is no spread to make an interval of; it ends at the share that as many positions
  // miss with a chance of 2.5%.
  Estimate top1() const;
  Estimate flips(size_t entropy_bin) const;

  int64_t positions() const;
  Estimate kl() const { return mean_of(&FidelitySums::kl); }
  Estimate ear() const { return mean_of(&FidelitySums::ear); }
  // These are of the models as options.sampling samples them; without it they mean nothing.
  Estimate kl_sampled() const { return mean_of(&FidelitySums::kl_sampled); }
  Estimate ear_sampled() const { return mean_of(&FidelitySums::ear_sampled); }
  Estimate perplexity() const;  // the candidate's
  Estimate reference_perplexity() const;
  Estimate perplexity_ratio() const;  // reference / candidate, as in SLQ's tables: 1 = nothing lost; paired by window
  Estimate perplexity_ratio_by_text() const;  // the same, and its interval by text: by document in a certificate
  double ear_constant() const;                // c of 1 - EAR = c sqrt(KL) (of the text, hardly of the width)

  // The windows of one text alone, e.g. for a report by text.
  FidelityReport of_text(int32_t text) const;
};

// Hears of every position that was compared, in the order of the sequences and of their tokens.
using PositionVisitor = std::function<void(const ScoredRow& row, const PositionFidelity& position)>;
// `kept`: of the reference, between comparisons of several candidates with it over the same texts.
// Of each sequence its sums; the options' windows do not matter here.
std::vector<WindowFidelity> compare_sequences(Runner& reference, Runner& candidate,
                                              std::span<const ScoredSequence> sequences, const CompareOptions& options,
                                              ThreadPool& pool, const ProgressCallback& progress = {},
                                              KeptStreams* kept = nullptr, const PositionVisitor& visit = {});
FidelityReport compare_models(Runner& reference, Runner& candidate, std::span<const EvalText> texts,
                              const CompareOptions& options, ThreadPool& pool, const ProgressCallback& progress = {},
                              KeptStreams* kept = nullptr);

// {kl, ear, kl_topk_raw, ear_topk_raw, kl_topk_renormalised, ear_topk_renormalised, topk_mass, top1, margin,
// margin_candidate,
//  entropy, perplexity, reference_perplexity, perplexity_ratio} each {value, ci95}; ear_constant, tokens,
//  flips_by_entropy, tails, sampled (null, or {temperature, top_k, top_p, min_p, kl, ear}),
// settings, texts (with kl and ear of each if there are several), windows (per-window sums, enough to recompute
// everything).
nlohmann::json to_json(const FidelityReport& report);
nlohmann::json sampled_json(const FidelityReport& report);
nlohmann::json flips_json(const FidelityReport& report);  // [{entropy_from, positions, flips}], by kEntropyEdges

}  // namespace fidelio
