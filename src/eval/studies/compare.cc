#include "eval/studies/compare.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "eval/fidelity/row_distances.h"
#include "eval/statistics/clusters.h"

namespace fidelio {
namespace {

// Returns the ratio of the sums of two numbers that are taken from every window.
template <typename Numerator, typename Denominator>
Estimate window_ratio(const FidelityReport& report, Numerator numerator, Denominator denominator) {
  std::vector<double> n, d;
  for (const WindowFidelity& w : report.windows) {
    n.push_back(numerator(w));
    d.push_back(denominator(w));
  }
  return ratio(n, d, report.options.bootstrap);
}

bool is_apart(const EvalText& text, int64_t place) {
  return std::any_of(text.apart.begin(), text.apart.end(),
                     [&](const TokenSpan& s) { return place >= s.begin && place < s.end; });
}

// Returns the same for a share of positions. The number of positions is the sum of the denominators.
template <typename Numerator, typename Denominator>
Estimate share_of_positions(const FidelityReport& report, Numerator numerator, Denominator denominator) {
  Estimate e = window_ratio(report, numerator, denominator);
  double positions = 0;
  for (const WindowFidelity& w : report.windows) positions += denominator(w);
  const double unseen = largest_unseen_share(static_cast<int64_t>(positions));
  if (e.value == 0) e.ci95 = {0, unseen};
  if (e.value == 1) e.ci95 = {1 - unseen, 1};
  return e;
}

double positions_of(const WindowFidelity& w) { return static_cast<double>(w.sums.positions); }

}  // namespace

Estimate FidelityReport::mean_of(double FidelitySums::*sum) const {
  return window_ratio(
      *this, [=](const WindowFidelity& w) { return w.sums.*sum; }, positions_of);
}

Estimate FidelityReport::mean_over_disagreements(double FidelitySums::*sum) const {
  return window_ratio(
      *this, [=](const WindowFidelity& w) { return w.sums.*sum; },
      [](const WindowFidelity& w) { return w.sums.disagreements; });
}

Estimate FidelityReport::top1() const {
  return share_of_positions(
      *this, [](const WindowFidelity& w) { return w.sums.agreements; }, positions_of);
}

Estimate FidelityReport::flips(size_t bin) const {
  return share_of_positions(
      *this, [=](const WindowFidelity& w) { return w.sums.bin_flips[bin]; },
      [=](const WindowFidelity& w) { return w.sums.bin_positions[bin]; });
}

int64_t FidelityReport::positions() const {
  int64_t sum = 0;
  for (const WindowFidelity& w : windows) sum += w.sums.positions;
  return sum;
}

Estimate FidelityReport::perplexity() const {
  return perplexity_of(window_ratio(
      *this, [](const WindowFidelity& w) { return w.nll_candidate; }, positions_of));
}

Estimate FidelityReport::reference_perplexity() const {
  return perplexity_of(window_ratio(
      *this, [](const WindowFidelity& w) { return w.nll_reference; }, positions_of));
}

Estimate FidelityReport::perplexity_ratio() const {
  return perplexity_of(window_ratio(
      *this, [](const WindowFidelity& w) { return w.nll_reference - w.nll_candidate; }, positions_of));
}

Estimate FidelityReport::perplexity_ratio_by_text() const {
  std::map<int32_t, std::pair<double, double>> of;  // for each text, the sums of a difference and of positions
  for (const WindowFidelity& w : windows) {
    of[w.text].first += w.nll_reference - w.nll_candidate;
    of[w.text].second += positions_of(w);
  }
  std::vector<double> differences, positions;
  for (const auto& [text, sums] : of) {
    differences.push_back(sums.first);
    positions.push_back(sums.second);
  }
  return perplexity_of(ratio(differences, positions, options.bootstrap));
}

double FidelityReport::ear_constant() const { return (1 - ear().value) / std::sqrt(kl().value); }

FidelityReport FidelityReport::of_text(int32_t text) const {
  const auto i = static_cast<size_t>(text);
  check(text >= 0 && i < text_names.size(), "a report over {} texts has no text {}", text_names.size(), text);
  FidelityReport part{options, {text_names[i]}, {text_sha256[i]}, {}};
  for (WindowFidelity w : windows) {
    if (w.text != text) continue;
    w.text = 0;
    part.windows.push_back(w);
  }
  return part;
}

namespace {

// A CompareRows compares the rows of a batch: it fills `found`, and `logits` with those of each row's own token.
using TokenLogits = CudaComparer::TokenLogits;
using CompareRows = std::function<void(std::span<const ScoredRow> rows, std::span<const std::span<const float>> logits,
                                       std::span<PositionFidelity> found, std::span<TokenLogits> own)>;

CompareRows compare_on_host(const CompareOptions& options, size_t v, ThreadPool& pool) {
  std::vector<RowComparer> comparers(static_cast<size_t>(pool.threads()), RowComparer(options.top_k));
  const auto sampled = std::make_shared<std::vector<SampledRows>>();
  for (int i = 0; options.sampling && i < pool.threads(); ++i) sampled->emplace_back(*options.sampling);
  return [v, &options, &pool, comparers = std::move(comparers), sampled](
             std::span<const ScoredRow> rows, std::span<const std::span<const float>> logits,
             std::span<PositionFidelity> found, std::span<TokenLogits> token_logits) mutable {
    pool.run(static_cast<int64_t>(rows.size()), [&](int64_t job, int thread) {
      const auto i = static_cast<size_t>(job), own = static_cast<size_t>(thread);
      const auto p = logits[0].subspan(i * v, v), q = logits[1].subspan(i * v, v);
      const auto token = static_cast<size_t>(rows[i].token);
      found[i] = comparers[own].compare(p, q);
      token_logits[i] = {p[token], q[token]};
      if (!options.sampling) return;
      const RowComparer::Distance d = comparers[own].at_temperature(options.sampling->temperature);
      found[i].kl_sampled = d.kl;
      found[i].ear_sampled = (*sampled)[own].filters() ? (*sampled)[own].ear(p, q) : d.ear;
    });
  };
}

CompareRows compare_on_gpu(int gpu, const CompareOptions& options, size_t v) {
  return
      [v, comparer = std::shared_ptr<CudaComparer>(make_cuda_comparer(gpu, options.top_k)),
       tokens = std::vector<int32_t>()](std::span<const ScoredRow> rows, std::span<const std::span<const float>> logits,
                                        std::span<PositionFidelity> found, std::span<TokenLogits> own) mutable {
        tokens.clear();
        for (const ScoredRow& row : rows) tokens.push_back(row.token);
        comparer->compare(logits[0].data(), logits[1].data(), static_cast<int64_t>(v), tokens, found, own);
      };
}

// Returns the GPU on which rows are compared, if both models are on one. The filters of sampling are the host's own.
std::optional<int> comparing_gpu(const Runner& reference, const Runner& candidate, const CompareOptions& options) {
  return options.sampling || reference.gpu() != candidate.gpu() ? std::nullopt : reference.gpu();
}

}  // namespace

std::vector<WindowFidelity> compare_sequences(Runner& reference, Runner& candidate,
                                              std::span<const ScoredSequence> sequences, const CompareOptions& options,
                                              ThreadPool& pool, const ProgressCallback& progress, KeptStreams* kept,
                                              const PositionVisitor& visit) {
  check(options.top_k >= 1, "top-K needs K >= 1, not {}", options.top_k);
  std::vector<WindowFidelity> windows(sequences.size());
  const auto v = static_cast<size_t>(reference.config().v);
  const std::optional<int> gpu = comparing_gpu(reference, candidate, options);
  const CompareRows compare_rows = gpu ? compare_on_gpu(*gpu, options, v) : compare_on_host(options, v, pool);
  std::shared_ptr<float[]> places[2];
  for (size_t i = 0; gpu && i < 2; ++i)
    places[i] = (i == 0 ? reference : candidate).allocate(reference.options().max_logit_rows * reference.config().v);
  std::vector<PositionFidelity> positions;
  std::vector<TokenLogits> own;
  const PassModel models[] = {{&reference, options.reference_mode, kept, places[0].get()},
                              {&candidate, options.candidate_mode, nullptr, places[1].get()}};
  run_pass(
      models, sequences,
      [&](std::span<const ScoredRow> rows, std::span<const std::span<const float>> logits) {
        positions.resize(rows.size());
        own.resize(rows.size());
        compare_rows(rows, logits, positions, own);
        for (size_t i = 0; i < rows.size(); ++i) {  // adding in order makes the sums independent of the threads
          WindowFidelity& w = windows[static_cast<size_t>(rows[i].sequence)];
          w.sums.add(positions[i]);
          w.nll_reference += positions[i].log_sum_exp_p - static_cast<double>(own[i].p);
          w.nll_candidate += positions[i].log_sum_exp_q - static_cast<double>(own[i].q);
          if (visit) visit(rows[i], positions[i]);
        }
      },
      progress);
  return windows;
}

FidelityReport compare_models(Runner& reference, Runner& candidate, std::span<const EvalText> texts,
                              const CompareOptions& options, ThreadPool& pool, const ProgressCallback& progress,
                              KeptStreams* kept) {
  FidelityReport report;
  report.options = options;
  for (const EvalText& t : texts) {
    report.text_names.push_back(t.name);
    report.text_sha256.push_back(t.sha256);
  }
  const WindowSet set = windows_of(texts, options.windows);
  TailCounter tails;
  std::vector<FidelitySums> apart(set.sequences.size());
  report.windows = compare_sequences(reference, candidate, set.sequences, options, pool, progress, kept,
                                     [&](const ScoredRow& row, const PositionFidelity& f) {
                                       tails.add(f.kl, f.ear, f.confidence, row.position);
                                       const auto i = static_cast<size_t>(row.sequence);
                                       const EvalText& text = texts[static_cast<size_t>(set.text[i])];
                                       const int64_t place =
                                           set.sequences[i].ids.data() - text.ids.data() + row.position;
                                       if (is_apart(text, place)) apart[i].add(f);
                                     });
  report.tails = tails.finish();
  for (size_t i = 0; i < set.text.size(); ++i) {
    report.windows[i].text = set.text[i];
    report.windows[i].apart = apart[i];
  }
  return report;
}

namespace {

nlohmann::json settings_json(const CompareOptions& o) {
  nlohmann::json settings = to_json(o.windows);
  settings["reference_activations"] = name_of(o.reference_mode);
  settings["activations"] = name_of(o.candidate_mode.activations);
  if (o.candidate_mode.high_bits > 0) settings["high_bits"] = o.candidate_mode.high_bits;
  settings["top_k"] = o.top_k;
  settings["bootstrap"] = {{"resamples", o.bootstrap.resamples}, {"seed", o.bootstrap.seed}, {"unit", "window"}};
  return settings;
}

nlohmann::json texts_json(const FidelityReport& report) {
  nlohmann::json texts = nlohmann::json::array();
  for (size_t i = 0; i < report.text_names.size(); ++i) {
    texts.push_back({{"name", report.text_names[i]}, {"sha256", report.text_sha256[i]}});
    if (report.text_names.size() == 1) continue;
    const FidelityReport part = report.of_text(static_cast<int32_t>(i));
    texts.back()["kl"] = to_json(part.kl());
    texts.back()["ear"] = to_json(part.ear());
    texts.back()["perplexity"] = to_json(part.perplexity());
    texts.back()["tokens"] = part.positions();
  }
  return texts;
}

nlohmann::json windows_json(const FidelityReport& report) {
  nlohmann::json windows = nlohmann::json::array();
  for (const WindowFidelity& w : report.windows)
    windows.push_back({{"text", w.text},
                       {"tokens", w.sums.positions},
                       {"kl", w.sums.kl},
                       {"ear", w.sums.ear},
                       {"kl_topk_raw", w.sums.kl_raw},
                       {"ear_topk_raw", w.sums.ear_raw},
                       {"kl_topk_renormalised", w.sums.kl_renormalised},
                       {"ear_topk_renormalised", w.sums.ear_renormalised},
                       {"top1", w.sums.agreements},
                       {"nll_reference", w.nll_reference},
                       {"nll", w.nll_candidate}});
  return windows;
}

}  // namespace

nlohmann::json sampled_json(const FidelityReport& report) {
  if (!report.options.sampling) return nullptr;
  nlohmann::json sampled = sampling_json(*report.options.sampling);
  sampled["kl"] = to_json(report.kl_sampled());
  sampled["ear"] = to_json(report.ear_sampled());
  return sampled;
}

nlohmann::json flips_json(const FidelityReport& report) {
  nlohmann::json bins = nlohmann::json::array();
  for (size_t i = 0; i < kEntropyEdges.size(); ++i) {
    double positions = 0;
    for (const WindowFidelity& w : report.windows) positions += w.sums.bin_positions[i];
    bins.push_back({{"entropy_from", kEntropyEdges[i]}, {"positions", positions}, {"flips", to_json(report.flips(i))}});
  }
  return bins;
}

nlohmann::json to_json(const FidelityReport& report) {
  using S = FidelitySums;
  nlohmann::json j;
  const std::pair<const char*, double S::*> means[] = {{"kl", &S::kl},
                                                       {"ear", &S::ear},
                                                       {"kl_topk_raw", &S::kl_raw},
                                                       {"ear_topk_raw", &S::ear_raw},
                                                       {"kl_topk_renormalised", &S::kl_renormalised},
                                                       {"ear_topk_renormalised", &S::ear_renormalised},
                                                       {"topk_mass", &S::top_k_mass},
                                                       {"entropy", &S::entropy}};
  for (const auto& [name, sum] : means) j[name] = to_json(report.mean_of(sum));
  j["top1"] = to_json(report.top1());
  j["margin"] = to_json(report.mean_over_disagreements(&S::margin_p));
  j["margin_candidate"] = to_json(report.mean_over_disagreements(&S::margin_q));
  j["perplexity"] = to_json(report.perplexity());
  j["reference_perplexity"] = to_json(report.reference_perplexity());
  j["perplexity_ratio"] = to_json(report.perplexity_ratio());
  const double constant = report.ear_constant();
  j["ear_constant"] = std::isfinite(constant) ? nlohmann::json(constant) : nlohmann::json(nullptr);
  j["tokens"] = report.positions();
  j["flips_by_entropy"] = flips_json(report);
  j["tails"] = to_json(report.tails);
  j["sampled"] = sampled_json(report);
  j["settings"] = settings_json(report.options);
  j["texts"] = texts_json(report);
  j["windows"] = windows_json(report);
  return j;
}

}  // namespace fidelio
