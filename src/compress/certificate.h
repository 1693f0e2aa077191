// The certificate: a measured fidelity, written into the checkpoint, that anybody can measure again.
#pragma once
#include <nlohmann/json.hpp>

#include "alloc/search.h"
#include "compress/inputs/sets.h"
#include "io/checkpoint.h"
#include "runtime/runner.h"

namespace fidelio {

// A measurement by documents, judged by a promise.
struct Judged {
  std::vector<DomainFidelity> domains;  // 95% intervals
  DomainFidelity all;
  std::string worst;     // domain: of the lowest lower end of EAR; "all" where that is what was promised
  Measurement measured;  // what is compared with a target, its intervals of the confidence asked for
};
Judged judge(std::span<const DocumentFidelity> documents, Promise promise, double confidence = 0.95);
// What a look at the certificate's documents, of so many a domain, will not fall short of in nine of ten cases, by what
// was measured on other ones.
Measurement foreseen(std::span<const DocumentFidelity> documents, Promise promise, double confidence,
                     const DocumentCounts& certificate);

// A plan that fails its certificate is changed and looked at again, on the same documents. So that looking often does
// not make a promise true by chance, look k takes an interval of confidence 1 - .05 / 2^(k - 1): the chance that a plan
// whose fidelity is below the target passes one of them is below 2.5% + 1.25% + ... = 5%.
double confidence_of_look(int look);
inline constexpr int kMostLooks = 4;

// How many times as wide as with kEnoughDocuments these make an interval of a mean, and a sentence about it; 1 and ""
// where they are enough and so are the windows.
double widening(const TextSet& set);
std::string few_documents_text(const TextSet& set);

// All of a certificate but the target's own: what was measured, on what, by which kernels.
struct Certified {
  const FidelityReport& report;  // on the set
  const TextSet& set;
  Promise promise = Promise::domain;
  int looks = 1;
  nlohmann::json floor;  // the source itself through the same kernels (Desk::floor); null: not measured
};
// The certificate as it stands in a checkpoint's provenance, and as an export may carry it in its own metadata
// (docs/json.md). `sources`: what --text was.
nlohmann::json make_certificate(const Target& target, const Certified& certified, const Runner& served,
                                const std::string& reference_sha256, const std::vector<std::string>& sources);

// A certificate for somebody who has never heard of EAR, a sentence each: what was promised, on what text, how sure,
// what was not tested. `kept`: whether what was measured bears the promise out; if it does not, the words say so in place
// of the promise, so that nobody can quote it.
struct PlainWords {
  std::string about, sentence;  // "How sure", and what ends with a full stop
};
std::vector<PlainWords> in_plain_words(const nlohmann::json& certificate, bool kept);

// A measured number of a certificate; ends that the data give none of (one document) are null there and NaN here.
Estimate read_estimate(const nlohmann::json& json);

// What a certificate claims of some text; NaN: nothing.
struct ClaimedFigure {
  std::string of;  // "all text", "docs", "a new document of docs"
  Estimate ear, kl, top1, perplexity_ratio;
};
// What a checkpoint's certificate claims, as far as measuring it again needs. Throws Error for a checkpoint without one
// and for a damaged one.
struct Claim {
  Target target;
  Promise promise = Promise::domain;
  Estimate ear, kl;       // over all text
  Estimate promised_ear;  // what was compared with the target
  std::string worst;
  std::vector<ClaimedFigure> figures;  // of all text and of each domain
  int64_t documents = 0, windows = 0, tokens = 0;
  std::vector<std::string> sources;  // as --text takes them
  std::vector<std::string> places;   // the documents (compress/inputs/sets.h)
  int64_t context = 0;
  std::string activations, kv, reference_sha256;
  int looks = 0;
  nlohmann::json json;  // the whole
};
Claim read_claim(const Checkpoint& checkpoint);

// The first of a claim's figures that the certificate `measured` of the same documents does not bear out, as half a
// sentence; "" where all are. A target that is met says nothing about them: they may have been edited, or be of weights
// that an export has rounded since.
std::string not_borne_out(const Claim& claim, const nlohmann::json& measured);

}  // namespace fidelio
