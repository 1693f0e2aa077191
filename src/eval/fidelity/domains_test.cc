#include "eval/fidelity/domains.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/rng.h"

namespace fidelio {
namespace {

std::vector<DocumentFidelity> documents(const std::string& domain, int number, double loss, uint64_t seed) {
  Rng rng(seed);
  std::vector<DocumentFidelity> all;
  for (int i = 0; i < number; ++i) {
    const double lost = 1000 * loss * std::exp(0.1 * rng.normal());
    all.push_back({domain, fmt::format("{} {}", domain, i), 2, 1000, lost / 4, 1000 - lost, 1000});
  }
  return all;
}

double width(const Estimate& e) { return e.ci95.high - e.ci95.low; }

TEST(Domains, TheWorstDocumentIsNamed) {
  std::vector<DocumentFidelity> all = documents("docs", 20, 0.02, 1);
  all[7].ear = 900;
  const DomainFidelity d = by_domain(all)[0];
  EXPECT_EQ(d.worst_document, "docs 7");
  EXPECT_DOUBLE_EQ(d.worst_ear, 0.9);
  EXPECT_EQ(to_json(d)["worst_document"]["name"], "docs 7");
  EXPECT_EQ(to_json(d)["worst_document"]["ear"], 0.9);
}

// A strange document in one domain is evidence about every domain.
TEST(Domains, AStrangeDocumentWidensAllIntervalsWhereverItIs) {
  const std::vector<DocumentFidelity> prose = documents("prose", 20, 0.01, 2);
  std::vector<DocumentFidelity> both = documents("docs", 20, 0.02, 1);
  both.insert(both.end(), prose.begin(), prose.end());
  const DomainFidelity before = by_domain(both)[1];
  EXPECT_EQ(before.domain, "prose");
  std::vector<DocumentFidelity> strange = both;
  strange[4].ear = 900, strange[4].kl *= 5;
  const DomainFidelity elsewhere = by_domain(strange)[1];
  EXPECT_EQ(elsewhere.ear.value, before.ear.value);
  EXPECT_GT(width(elsewhere.ear), 1.2 * width(before.ear));
  EXPECT_GT(width(elsewhere.kl), 1.2 * width(before.kl));
  EXPECT_GT(width(elsewhere.document_ear), 1.2 * width(before.document_ear));
}

TEST(Domains, WithoutAFlipAgreementIsStillUncertain) {
  const DomainFidelity d = by_domain(documents("docs", 20, 0.02, 1))[0];
  EXPECT_EQ(d.top1.value, 1);
  EXPECT_EQ(d.top1.ci95.high, 1);
  EXPECT_NEAR(std::pow(d.top1.ci95.low, 20'000), 0.025, 1e-9);
  std::vector<DocumentFidelity> flipped = documents("docs", 20, 0.02, 1);
  flipped[3].agreements = 999;  // the other documents have none, so that more than half of the documents are alike
  const Estimate one = by_domain(flipped)[0].top1;
  EXPECT_DOUBLE_EQ(one.value, 1 - 1.0 / 20'000);
  EXPECT_LT(one.ci95.low, one.value);
}

}  // namespace
}  // namespace fidelio
