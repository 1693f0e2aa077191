#include "compress/certificate/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "eval/statistics/clusters.h"

namespace fidelio {
namespace {

Measurement measurement_of(const DomainFidelity& d, Promise promise) {
  if (promise == Promise::document) return {d.document_ear, d.document_kl};  // no such end is known of greedy agreement
  return {d.ear, d.kl, 0, d.top1};
}

// Takes every end from the domain where it is worst: EAR and KL may have different ones, and both must do. The name is
// EAR's.
std::pair<std::string, Measurement> worst_of(const std::vector<DomainFidelity>& domains, Promise promise) {
  std::string worst;
  Measurement measured;
  for (const DomainFidelity& d : domains) {
    const Measurement m = measurement_of(d, promise);
    if (worst.empty() || !(m.kl.ci95.high <= measured.kl.ci95.high)) measured.kl = m.kl;
    if (worst.empty() || !(m.top1.ci95.low >= measured.top1.ci95.low)) measured.top1 = m.top1;
    if (worst.empty() || !(m.ear.ci95.low >= measured.ear.ci95.low)) measured.ear = m.ear, worst = d.domain;
  }
  return {worst, measured};
}

}  // namespace

Judged judge(std::span<const DocumentFidelity> documents, Promise promise, double confidence) {
  Judged judged{by_domain(documents), as_one(documents), "all", {}};
  if (promise == Promise::all)
    judged.measured = measurement_of(as_one(documents, confidence), promise);
  else
    std::tie(judged.worst, judged.measured) = worst_of(by_domain(documents, confidence), promise);
  return judged;
}

Measurement foreseen(std::span<const DocumentFidelity> documents, Promise promise, double confidence,
                     const DocumentCounts& certificate) {
  if (promise == Promise::all) return measurement_of(as_one(documents, confidence, certificate), promise);
  return worst_of(by_domain(documents, confidence, certificate), promise).second;
}

double confidence_of_test(int test) { return 1 - 0.05 * std::pow(0.5, test - 1); }

double certainty_after(int tests) {
  double missed = 0;
  for (int test = 1; test <= tests; ++test) missed += (1 - confidence_of_test(test)) / 2;
  return 1 - missed;
}

double widening(const TextSet& set) {
  const DocumentCounts documents = set.counts();
  int64_t fewest = 0;
  for (const auto& [domain, count] : documents) fewest = fewest == 0 ? count : std::min(fewest, count);
  if (fewest < 2) return std::numeric_limits<double>::infinity();
  const auto domains = static_cast<double>(documents.size());
  const auto reach = [](double n) { return student_quantile(0.975, n - 1) / std::sqrt(n); };
  return std::max(1.0, reach(static_cast<double>(fewest)) / reach(std::max(2.0, kEnoughDocuments / domains)));
}

std::string few_documents_text(const TextSet& set) {
  const auto documents = static_cast<int64_t>(set.documents.size());
  if (documents >= kEnoughDocuments && set.windows >= kEnoughWindows && !set.passages()) return "";
  const std::string other = "may not hold for other documents";
  if (documents >= kEnoughDocuments && set.windows >= kEnoughWindows)
    return "these are passages of few documents: intervals " + other;
  return fmt::format(
      "only {} {} with {} windows of text ({} and {} or more are recommended): intervals are about {:.1f} times "
      "wider{}",
      documents, set.passages() ? "passages" : "documents", set.windows, kEnoughDocuments, kEnoughWindows,
      widening(set), set.passages() ? ", and " + other : "");
}

}  // namespace fidelio
