#include "eval/fidelity/domains.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "eval/statistics/clusters.h"
#include "eval/statistics/pool.h"
#include "eval/statistics/statistics.h"

namespace fidelio {
namespace {

// Returns true if `part` belongs to the document before it: it has the same name, and its domain continues the
// document's domain behind a slash. Where all text is one kind, both are one document, because parts of one document
// are not independent draws.
bool is_part_of(const DocumentFidelity& part, const DocumentFidelity& document) {
  return part.name == document.name && part.domain.starts_with(document.domain + "/");
}

// Losses holds the documents of one domain as the statistics take them: for each document a sum of each loss, and its
// number of tokens.
struct Losses {
  std::vector<double> kl, ear, flips, tokens, kl_sampled, ear_sampled;
  // The sum over all documents. If the overlap is zero at every position, no document was measured as sampled.
  double sampled = 0;

  void add(const DocumentFidelity& d) {
    const auto count = static_cast<double>(d.tokens);
    tokens.push_back(count);
    kl.push_back(d.kl);
    ear.push_back(count - d.ear);
    flips.push_back(count - d.agreements);
    kl_sampled.push_back(d.kl_sampled);
    ear_sampled.push_back(count - d.ear_sampled);
    sampled += d.ear_sampled;
  }
};

// Ratios say how far documents of a domain differ from its typical document, judged by all documents that are known.
// If they are empty, only the domain's own documents count.
struct Ratios {
  std::vector<double> kl, ear, flips, kl_sampled, ear_sampled;
};

// Returns the mean share of flips. If no flip was seen, there is no spread to make an interval of; its end is then
// the largest share that so many tokens could have missed.
Estimate mean_of_flips(const Losses& losses, const ClusterOptions& options) {
  const double flips = std::accumulate(losses.flips.begin(), losses.flips.end(), 0.0),
               tokens = std::accumulate(losses.tokens.begin(), losses.tokens.end(), 0.0);
  if (flips > 0 || tokens == 0) return cluster_mean(losses.flips, losses.tokens, options);
  return {0, {0, largest_unseen_share(static_cast<int64_t>(tokens), (1 - options.confidence) / 2)}};
}

DomainFidelity measured(const std::string& name, std::span<const DocumentFidelity* const> documents, double confidence,
                        int64_t others, const Ratios& ratios) {
  DomainFidelity d;
  d.domain = name;
  Losses losses;
  for (const DocumentFidelity* one : documents) {
    ++d.documents;
    d.windows += one->windows;
    d.tokens += one->tokens;
    losses.add(*one);
    const double ear = one->ear / static_cast<double>(one->tokens);
    if (one->tokens > 0 && (d.worst_document.empty() || ear < d.worst_ear))
      d.worst_document = one->name, d.worst_ear = ear;
  }
  if (others > 0) {
    d.kl = foreseen_mean(losses.kl, losses.tokens, others, confidence);
    d.ear = complement(foreseen_mean(losses.ear, losses.tokens, others, confidence));
    d.top1 = complement(foreseen_mean(losses.flips, losses.tokens, others, confidence));
    d.document_kl = foreseen_document(losses.kl, losses.tokens, others, confidence);
    d.document_ear = complement(foreseen_document(losses.ear, losses.tokens, others, confidence));
    return d;
  }
  const auto options = [&](const std::vector<double>& of) {
    return ClusterOptions{.confidence = confidence, .resamples = resamples_for(confidence), .seed = 0, .ratios = of};
  };
  d.kl = cluster_mean(losses.kl, losses.tokens, options(ratios.kl));
  d.ear = complement(cluster_mean(losses.ear, losses.tokens, options(ratios.ear)));
  d.top1 = complement(mean_of_flips(losses, options(ratios.flips)));
  if (losses.sampled > 0) {
    d.kl_sampled = cluster_mean(losses.kl_sampled, losses.tokens, options(ratios.kl_sampled));
    d.ear_sampled = complement(cluster_mean(losses.ear_sampled, losses.tokens, options(ratios.ear_sampled)));
  }
  d.document_kl = next_document(losses.kl, losses.tokens, confidence, ratios.kl);
  d.document_ear = complement(next_document(losses.ear, losses.tokens, confidence, ratios.ear));
  return d;
}

// Returns the ratios of every domain, learned from all documents.
std::map<std::string, Ratios> pooled(std::span<const DocumentFidelity> documents) {
  DocumentPool kl, ear, flips, kl_sampled, ear_sampled;
  std::map<std::string, Losses> of;
  for (const DocumentFidelity& d : documents) of[d.domain].add(d);
  std::map<std::string, int> kinds;
  for (const auto& [name, losses] : of) {
    const int kind = kinds.emplace(name, static_cast<int>(kinds.size())).first->second;
    kl.add(kind, losses.kl, losses.tokens);
    ear.add(kind, losses.ear, losses.tokens);
    flips.add(kind, losses.flips, losses.tokens);
    if (losses.sampled == 0) continue;
    kl_sampled.add(kind, losses.kl_sampled, losses.tokens);
    ear_sampled.add(kind, losses.ear_sampled, losses.tokens);
  }
  std::map<std::string, Ratios> ratios;
  for (const auto& [name, kind] : kinds)
    ratios[name] = {kl.ratios(kind), ear.ratios(kind), flips.ratios(kind), kl_sampled.ratios(kind),
                    ear_sampled.ratios(kind)};
  return ratios;
}

}  // namespace

std::vector<DomainFidelity> by_domain(std::span<const DocumentFidelity> documents, double confidence,
                                      const DocumentCounts& others) {
  std::map<std::string, std::vector<const DocumentFidelity*>> of;
  for (const DocumentFidelity& d : documents) of[d.domain].push_back(&d);
  const std::map<std::string, Ratios> ratios = pooled(documents);
  std::vector<DomainFidelity> all;
  for (const auto& [name, own] : of) {
    const auto there = others.find(name);
    all.push_back(measured(name, own, confidence, there == others.end() ? 0 : there->second, ratios.at(name)));
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
  return measured("all", all, confidence, there, {});
}

nlohmann::json to_json(const DocumentFidelity& d) {
  const double tokens = static_cast<double>(d.tokens);
  return {{"domain", d.domain}, {"name", d.name},      {"windows", d.windows},
          {"tokens", d.tokens}, {"kl", d.kl / tokens}, {"ear", d.ear / tokens}};
}

nlohmann::json to_json(const DomainFidelity& d) {
  nlohmann::json json = {{"domain", d.domain},
                         {"documents", d.documents},
                         {"windows", d.windows},
                         {"tokens", d.tokens},
                         {"ear", to_json(d.ear)},
                         {"kl", to_json(d.kl)},
                         {"top1", to_json(d.top1)},
                         {"next_document", {{"ear", to_json(d.document_ear)}, {"kl", to_json(d.document_kl)}}},
                         {"worst_document", {{"name", d.worst_document}, {"ear", d.worst_ear}}}};
  if (d.ear_sampled) json["sampled"] = {{"ear", to_json(*d.ear_sampled)}, {"kl", to_json(*d.kl_sampled)}};
  return json;
}

}  // namespace fidelio
