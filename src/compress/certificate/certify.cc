#include "compress/certificate/certify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "compress/certificate/beyond.h"
#include "compress/job.h"
#include "core/foreign/foreign_text.h"

namespace fidelio {
namespace {

std::vector<std::string> kernels_of(const Runner& served, Activations activations) {
  std::set<std::string> kernels;
  for (LinearId id : linears_of(served.config())) kernels.insert(served.kernel_of(id, activations));
  return {kernels.begin(), kernels.end()};
}

}  // namespace

Certificate make_certificate(const Target& target, const CertifiedMeasurement& m, const Runner& served,
                             const std::string& reference_sha256, const std::vector<std::string>& texts) {
  const double confidence = confidence_at(certified_level(m.ladder));
  const Judged judged = judge(documents_of(m.report, m.set), m.promise, confidence);
  const Activations activations = m.report.options.candidate_mode.activations;
  Certificate c;
  c.target = target;
  c.promise = m.promise;
  c.promised = {judged.worst, confidence, judged.measured.ear, judged.measured.kl, judged.measured.top1};
  c.met = meets(judged.measured, target);
  c.all = judged.all;
  c.all.windows = static_cast<int64_t>(m.report.windows.size());
  c.all.tokens = m.report.positions();
  c.domains = judged.domains;
  c.perplexity_ratio = m.report.perplexity_ratio_by_text();
  c.passages = m.set.passages();
  c.wider = widening(m.set);
  c.context = m.report.options.windows.context;
  c.texts = texts;
  c.places = place_names(m.set);
  c.places_sha256 = m.set.sha256;
  c.activations = name_of(activations);
  c.kv = name_of(served.options().kv);
  c.kernels = kernels_of(served, activations);
  c.floor = m.floor;
  c.ladder = m.ladder;
  c.tails = m.report.tails;
  c.sampling = m.report.options.sampling;
  c.reference_sha256 = reference_sha256;
  return c;
}

DocumentsUsed documents_used(const TextSet& set) {
  return {static_cast<int64_t>(set.documents.size()), set.windows, set.tokens, set.sha256, set.counts()};
}

namespace {

// The figures that a certificate states of some text; a perplexity ratio is stated of all text alone.
struct StatedFigures {
  std::string of;  // "all text", "docs", "a new document of docs"
  Estimate ear, kl;
  std::optional<Estimate> top1, perplexity_ratio, ear_sampled{};
};

std::vector<StatedFigures> stated_figures(const Certificate& c) {
  std::vector<StatedFigures> figures;
  const auto add = [&](const std::string& of, const DomainFidelity& d) {
    figures.push_back({of, d.ear, d.kl, d.top1, std::nullopt, d.ear_sampled});
    figures.push_back({"a new document of " + of, d.document_ear, d.document_kl, std::nullopt, std::nullopt});
  };
  add("all text", c.all);
  figures.front().perplexity_ratio = c.perplexity_ratio;
  for (const DomainFidelity& d : c.domains) add(d.domain, d);
  figures.push_back({"the text promised of", c.promised.ear, c.promised.kl, std::nullopt, std::nullopt});
  return figures;
}

// Says whether a claimed loss (KL, 1 - EAR ..) or an end of its interval lies below the measured one by more than
// kernels of another processor explain. These move a loss far less than half the interval of its documents; but that
// is narrow where documents are much alike, and zero where they lose nothing. An end that is not claimed although the
// documents give one is understated. `least` is the difference that is always allowed.
bool understated(const Estimate& claimed, const Estimate& measured, double least = 1e-6) {
  const double half = (measured.ci95.high - measured.ci95.low) / 2;
  const double allowed = std::max(std::isfinite(half) ? half : 0, 0.02 * measured.value) + least;
  const auto within = [&](double claim, double found) {
    return std::isnan(found) || (!std::isnan(claim) && found - claim <= allowed);
  };
  return !(within(claimed.value, measured.value) && within(claimed.ci95.low, measured.ci95.low) &&
           within(claimed.ci95.high, measured.ci95.high));
}

std::string said(const char* figure, const std::string& of, const Estimate& claimed, const Estimate& measured) {
  return fmt::format("it claims {} {:.6f} [{:.6f}, {:.6f}] of {}, measured is {:.6f} [{:.6f}, {:.6f}]", figure,
                     claimed.value, claimed.ci95.low, claimed.ci95.high, of, measured.value, measured.ci95.low,
                     measured.ci95.high);
}

}  // namespace

std::string not_borne_out(const Certificate& claimed, const Certificate& measured) {
  for (const auto& [name, claim, found] : {std::tuple{"documents", claimed.all.documents, measured.all.documents},
                                           std::tuple{"windows", claimed.all.windows, measured.all.windows},
                                           std::tuple{"tokens", claimed.all.tokens, measured.all.tokens}})
    if (claim != found) return fmt::format("it counts {} {}, of those that it names there are {}", claim, name, found);
  if (claimed.passages != measured.passages)
    return fmt::format("it says that the documents are {}passages of fewer", claimed.passages ? "" : "no ");
  if (claimed.wider < measured.wider - 1e-9)
    return fmt::format(
        "it says that its intervals are {:.2f} times as wide as with enough documents, they are {:.2f} times",
        claimed.wider, measured.wider);
  const std::vector<StatedFigures> figures = stated_figures(measured);
  for (const StatedFigures& c : stated_figures(claimed)) {
    if (std::none_of(figures.begin(), figures.end(), [&](const StatedFigures& m) { return m.of == c.of; }))
      return fmt::format("it claims EAR {:.6f} of {}, of which nothing was measured", c.ear.value, foreign(c.of));
    for (const StatedFigures& m : figures) {
      if (m.of != c.of) continue;
      if (understated(complement(c.ear), complement(m.ear))) return said("EAR", c.of, c.ear, m.ear);
      if (understated(c.kl, m.kl)) return said("KL", c.of, c.kl, m.kl);
      if (c.ear_sampled && m.ear_sampled && understated(complement(*c.ear_sampled), complement(*m.ear_sampled)))
        return said("EAR as sampled", c.of, *c.ear_sampled, *m.ear_sampled);
      // Tokens that are as good as equal change places: a few, whatever the interval is.
      if (c.top1 && m.top1 &&
          understated(complement(*c.top1), complement(*m.top1), 3.0 / static_cast<double>(claimed.all.tokens)))
        return said("top1", c.of, *c.top1, *m.top1);
      if (c.perplexity_ratio && m.perplexity_ratio &&
          understated(complement(*c.perplexity_ratio), complement(*m.perplexity_ratio)))
        return said("a perplexity ratio", c.of, *c.perplexity_ratio, *m.perplexity_ratio);
    }
  }
  return beyond_not_borne_out(claimed, measured);
}

bool meets_again(const Certificate& measured) {
  constexpr double kEar = 0.002, kKl = 0.006, kLeast = 1e-6;
  const PromisedFigures& p = measured.promised;
  const Target& t = measured.target;
  const double flips = 3.0 / static_cast<double>(std::max<int64_t>(1, measured.all.tokens));
  const auto within = [](double found, double allowed, double kernels, double least) {
    return found <= allowed * (1 + kernels) + least;
  };
  return (!t.ear || within(1 - p.ear.ci95.low, 1 - *t.ear, kEar, kLeast)) &&
         (!t.kl || within(p.kl.ci95.high, *t.kl, kKl, kLeast)) &&
         (!t.top1 || within(1 - p.top1.ci95.low, 1 - *t.top1, kEar, flips));
}

}  // namespace fidelio
