// This file sums up a comparison (eval/studies/compare.h) by domain, where a domain is a kind of text such as prose
// or code. For each domain it gives the mean over positions, which says how the model treats such text as a whole,
// and what the next document of that kind may look like.
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

// A Promise says what a target must hold for: the mean of every domain (and so of the worst one), a new document of
// every domain, or the mean over all text together.
enum class Promise : uint8_t { domain, document, all };

// DocumentFidelity is what was measured on one document.
struct DocumentFidelity {
  std::string domain, name;
  int64_t windows = 0, tokens = 0;
  double kl = 0, ear = 0, agreements = 0;  // sums over the document's tokens
  // These are the same sums for the model as it is sampled (eval/studies/at_sampling.h). They are 0 if that was not
  // asked for.
  double kl_sampled = 0, ear_sampled = 0;
};

struct DomainFidelity {
  std::string domain;
  int64_t documents = 0, windows = 0, tokens = 0;
  Estimate kl, ear, top1;              // means over tokens, with intervals by document (eval/statistics/clusters.h)
  Estimate document_kl, document_ear;  // expected values for a document of this domain that was not measured
  std::optional<Estimate> kl_sampled{}, ear_sampled{};  // present if the domain's documents have them
  std::string worst_document{};                         // the name of the document with the lowest EAR
  double worst_ear = 0;
};

// DocumentCounts holds a number of documents for each domain.
using DocumentCounts = std::map<std::string, int64_t>;
// Sums up the documents of each domain, in alphabetical order of the domains. Each interval has this confidence by
// itself; for all domains together see confidence_of_each in clusters.h. How much documents differ is learned from
// all domains (eval/statistics/pool.h). If `others` gives numbers of documents by domain, the intervals are those
// foreseen for that many further documents (clusters.h), for KL, EAR and greedy agreement only.
std::vector<DomainFidelity> by_domain(std::span<const DocumentFidelity> documents, double confidence = 0.95,
                                      const DocumentCounts& others = {});
// Treats all documents as one kind of text, named "all". A part of the document before it (with the same name, and a
// domain that continues that document's domain with "/...") is joined to that document. The intervals rest on these
// documents alone.
DomainFidelity as_one(std::span<const DocumentFidelity> documents, double confidence = 0.95,
                      const DocumentCounts& others = {});

// Both functions write the means, and the second one enough to recompute every interval: {domain, name, windows,
// tokens, kl, ear}.
nlohmann::json to_json(const DomainFidelity& domain);
nlohmann::json to_json(const DocumentFidelity& document);

}  // namespace fidelio
