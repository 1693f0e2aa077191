// Fidelity as served: a candidate against a reference over the same text, both run side by side, window by window, in
// the very kernels that serve. The reference computes with FP32 activations by default, the candidate in its serving
// mode.
//
// Positions measured are those whose next token the perplexity scores, so every figure of a report is about the same
// set.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "eval/fidelity/fidelity.h"
#include "eval/fidelity/logit_pass.h"
#include "eval/fidelity/perplexity.h"

namespace fidelio {

struct CompareOptions {
  WindowOptions windows{};
  Activations reference_mode = Activations::f32;
  Reading candidate_mode = Activations::a16;
  int top_k = 10;
  BootstrapOptions bootstrap{};
};

// What one window adds to every mean; the unit of the bootstrap.
struct WindowFidelity {
  FidelitySums sums;
  double nll_reference = 0, nll_candidate = 0;
  int32_t text = 0;
};

struct FidelityReport {
  CompareOptions options;
  std::vector<std::string> text_names, text_sha256;
  std::vector<WindowFidelity> windows;

  // Mean over positions of one of FidelitySums' sums, bootstrapped by window.
  Estimate mean_of(double FidelitySums::*sum) const;
  // Mean over disagreeing positions (margin_p, margin_q). Value NaN if there are none.
  Estimate mean_over_disagreements(double FidelitySums::*sum) const;
  Estimate flips(size_t entropy_bin) const;  // share of that bin's positions whose most likely token differs

  int64_t positions() const;
  Estimate kl() const { return mean_of(&FidelitySums::kl); }
  Estimate ear() const { return mean_of(&FidelitySums::ear); }
  Estimate perplexity() const;  // the candidate's
  Estimate reference_perplexity() const;
  Estimate perplexity_ratio() const;  // reference / candidate, as in SLQ's tables: 1 = nothing lost; paired by window
  double ear_constant() const;        // c of 1 - EAR = c sqrt(KL) (of the text, hardly of the width)

  // The windows of one text alone, e.g. for a report by text.
  FidelityReport of_text(int32_t text) const;
};

// `kept`: of the reference, between comparisons of several candidates with it over the same texts.
// Of each sequence its sums; the options' windows do not matter here.
std::vector<WindowFidelity> compare_sequences(Runner& reference, Runner& candidate,
                                              std::span<const ScoredSequence> sequences, const CompareOptions& options,
                                              ThreadPool& pool, const ProgressCallback& progress = {},
                                              KeptStreams* kept = nullptr);
FidelityReport compare_models(Runner& reference, Runner& candidate, std::span<const EvalText> texts,
                              const CompareOptions& options, ThreadPool& pool, const ProgressCallback& progress = {},
                              KeptStreams* kept = nullptr);

// {kl, ear, kl_topk_raw, ear_topk_raw, kl_topk_renormalised, ear_topk_renormalised, topk_mass, top1, margin,
// margin_candidate,
//  entropy, perplexity, reference_perplexity, perplexity_ratio} each {value, ci95}; ear_constant, tokens,
//  flips_by_entropy,
// settings, texts (with kl and ear of each if there are several), windows (per-window sums, enough to recompute
// everything).
nlohmann::json to_json(const FidelityReport& report);
nlohmann::json flips_json(const FidelityReport& report);  // [{entropy_from, positions, flips}], by kEntropyEdges

}  // namespace fidelio
