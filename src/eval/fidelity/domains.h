// Fidelity by domain: a comparison (eval/studies/compare.h) on documents of several kinds of text. Of each kind the mean
// over its positions, which is what the model does to such text on the whole, and what its next document may look like.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/estimate.h"

namespace fidelio {

// What a target is promised of: the mean of every domain (so of the worst), a new document of every domain, or the mean
// over all text together.
enum class Promise : uint8_t { domain, document, all };

// What was measured on one document.
struct DocumentFidelity {
  std::string domain, name;
  int64_t windows = 0, tokens = 0;
  double kl = 0, ear = 0, agreements = 0;  // sums over its tokens
  double kl_sampled = 0,
         ear_sampled = 0;  // the same as the model is sampled (eval/studies/at_sampling.h); 0: not asked
};

struct DomainFidelity {
  std::string domain;
  int64_t documents = 0, windows = 0, tokens = 0;
  Estimate kl, ear, top1;              // means over tokens; intervals by document (eval/statistics/clusters.h)
  Estimate document_kl, document_ear;  // of a document of this domain that was not measured
  std::optional<Estimate> kl_sampled{}, ear_sampled{};  // where its documents have them
  std::string worst_document{};                         // the name of the one that has the lowest EAR
  double worst_ear = 0;
};

// Judges the documents of each domain, in alphabetical order; intervals of this confidence, each by itself (for all domains
// together see confidence_of_each, clusters.h). How documents differ is learned from all domains, and from the documents
// `beside` these, on which this plan or another one of the same model was measured and which no mean is made of
// (eval/statistics/pool.h). With `others`, of how many documents by domain, the intervals are the ones foreseen for those
// (clusters.h), of KL, EAR and greedy agreement alone.
using DocumentCounts = std::map<std::string, int64_t>;
std::vector<DomainFidelity> by_domain(std::span<const DocumentFidelity> documents, double confidence = 0.95,
                                      const DocumentCounts& others = {}, std::span<const DocumentFidelity> beside = {});
// Takes all of them as one kind of text, named "all". A part of the document before it (of the same name, its domain's
// with "/..." behind) is joined to that. Its intervals rest on these documents alone.
DomainFidelity as_one(std::span<const DocumentFidelity> documents, double confidence = 0.95,
                      const DocumentCounts& others = {});

nlohmann::json to_json(const DomainFidelity& domain);
// {domain, name, windows, tokens, kl, ear}, its means: enough to make every interval again.
nlohmann::json to_json(const DocumentFidelity& document);

}  // namespace fidelio
