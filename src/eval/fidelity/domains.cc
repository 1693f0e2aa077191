#include "eval/fidelity/domains.h"

#include <nlohmann/json.hpp>

#include "eval/statistics/clusters.h"
#include "eval/statistics/statistics.h"

namespace fidelio {
namespace {

// One less a loss: an EAR, an agreement.
Estimate share(const Estimate& loss) { return {1 - loss.value, {1 - loss.ci95.high, 1 - loss.ci95.low}}; }

// A part of the document before it, whose domain's name goes on behind a slash: both are one document where all text is
// one kind, because what lies in one document is no independent draw.
bool is_part_of(const DocumentFidelity& part, const DocumentFidelity& document) {
  return part.name == document.name && part.domain.starts_with(document.domain + "/");
}

DomainFidelity measured(const std::string& name, std::span<const DocumentFidelity* const> documents, double confidence,
                        int64_t others) {
  DomainFidelity d;
  d.domain = name;
  std::vector<double> kl, loss, flips, tokens, kl_sampled, loss_sampled;
  double sampled = 0;  // an overlap of zero at every position is none
  for (const DocumentFidelity* one : documents) {
    ++d.documents;
    d.windows += one->windows;
    d.tokens += one->tokens;
    const auto count = static_cast<double>(one->tokens);
    tokens.push_back(count);
    kl.push_back(one->kl);
    loss.push_back(count - one->ear);
    flips.push_back(count - one->agreements);
    kl_sampled.push_back(one->kl_sampled);
    loss_sampled.push_back(count - one->ear_sampled);
    sampled += one->ear_sampled;
  }
  if (others > 0) {
    d.kl = foreseen_mean(kl, tokens, others, confidence);
    d.ear = share(foreseen_mean(loss, tokens, others, confidence));
    d.top1 = share(foreseen_mean(flips, tokens, others, confidence));
    d.document_kl = foreseen_document(kl, tokens, others, confidence);
    d.document_ear = share(foreseen_document(loss, tokens, others, confidence));
    return d;
  }
  const ClusterOptions options{.confidence = confidence, .resamples = 2000, .seed = 0};
  d.kl = cluster_mean(kl, tokens, options);
  d.ear = share(cluster_mean(loss, tokens, options));
  d.top1 = share(cluster_mean(flips, tokens, options));
  if (sampled > 0) {
    d.kl_sampled = cluster_mean(kl_sampled, tokens, options);
    d.ear_sampled = share(cluster_mean(loss_sampled, tokens, options));
  }
  d.document_kl = next_document(kl, tokens, confidence);
  d.document_ear = share(next_document(loss, tokens, confidence));
  return d;
}

}  // namespace

std::vector<DomainFidelity> by_domain(std::span<const DocumentFidelity> documents, double confidence,
                                      const DocumentCounts& others) {
  std::map<std::string, std::vector<const DocumentFidelity*>> of;
  for (const DocumentFidelity& d : documents) of[d.domain].push_back(&d);
  std::vector<DomainFidelity> all;
  for (const auto& [name, own] : of) {
    const auto there = others.find(name);
    all.push_back(measured(name, own, confidence, there == others.end() ? 0 : there->second));
  }
  return all;
}

DomainFidelity as_one(std::span<const DocumentFidelity> documents, double confidence, const DocumentCounts& others) {
  std::vector<DocumentFidelity> whole;
  for (const DocumentFidelity& d : documents) {
    if (whole.empty() || !is_part_of(d, whole.back())) {
      whole.push_back(d);
      continue;
    }
    whole.back().tokens += d.tokens;
    whole.back().kl += d.kl;
    whole.back().ear += d.ear;
    whole.back().agreements += d.agreements;
    whole.back().kl_sampled += d.kl_sampled;
    whole.back().ear_sampled += d.ear_sampled;
  }
  std::vector<const DocumentFidelity*> all;
  for (const DocumentFidelity& d : whole) all.push_back(&d);
  int64_t there = 0;
  for (const auto& [name, count] : others)
    if (name.find('/') == name.npos) there += count;
  return measured("all", all, confidence, there);
}

nlohmann::json to_json(const DocumentFidelity& d) {
  const double tokens = static_cast<double>(d.tokens);
  return {{"domain", d.domain}, {"name", d.name},      {"windows", d.windows},
          {"tokens", d.tokens}, {"kl", d.kl / tokens}, {"ear", d.ear / tokens}};
}

nlohmann::json to_json(const DomainFidelity& d) {
  nlohmann::json json = {
      {"domain", d.domain},      {"documents", d.documents},
      {"windows", d.windows},    {"tokens", d.tokens},
      {"ear", to_json(d.ear)},   {"kl", to_json(d.kl)},
      {"top1", to_json(d.top1)}, {"next_document", {{"ear", to_json(d.document_ear)}, {"kl", to_json(d.document_kl)}}}};
  if (d.ear_sampled) json["sampled"] = {{"ear", to_json(*d.ear_sampled)}, {"kl", to_json(*d.kl_sampled)}};
  return json;
}

}  // namespace fidelio
