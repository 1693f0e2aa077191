// The certificate: a measured fidelity, written into the checkpoint, that anybody can measure again. This type is the
// one place that knows its fields; docs/json.md describes the JSON that stands in files and reports.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "alloc/search.h"
#include "compress/certificate/ladder_step.h"
#include "compress/inputs/used_texts.h"
#include "eval/fidelity/domains.h"
#include "eval/fidelity/tails.h"
#include "eval/studies/answers.h"
#include "eval/studies/at_sampling.h"
#include "io/checkpoint.h"

namespace fidelio {

// The figures that are compared with the target.
struct PromisedFigures {
  std::string domain;      // the one with the lowest lower end of EAR; "all" where all text together was promised
  double confidence = 0;   // of both ends of the intervals together: that of the test that the plan passed
  Estimate ear, kl, top1;  // top1: greedy agreement, NaN where a new document was promised
};

// The source itself through the kernels that serve: no plan can be nearer.
struct FloorFigures {
  int64_t windows = 0, tokens = 0;
  Estimate ear, kl, top1;
};

// The sets of text that the compression worked with, by size and SHA-256 (compress/inputs/sets.h).
struct SequencesUsed {
  int64_t sequences = 0, tokens = 0;
  std::string sha256;
  bool operator==(const SequencesUsed&) const = default;
};
struct DocumentsUsed {
  int64_t documents = 0, windows = 0, tokens = 0;
  std::string sha256;
  DocumentCounts domains;  // documents of each domain
  bool operator==(const DocumentsUsed&) const = default;
};
// How --text became the adjustment and the certificate, so that `certify` can deal it out again.
struct TextDealt {
  int rule = 0;                       // kDealing (compress/certificate/dealt.h) of whoever dealt
  std::string sha256;                 // of the text (add_own()); "" where more was left out than is worth naming
  int64_t windows = 0;                // of the certificate, at most
  std::vector<std::string> left_out;  // documents, by the beginning of their SHA-256
  bool operator==(const TextDealt&) const = default;
};
struct CertifiedSets {
  SequencesUsed calibration, search;
  DocumentsUsed adjustment, certificate;
  TextDealt dealt;
  bool operator==(const CertifiedSets&) const = default;
};

// The questions of a target of tasks, as they were asked.
struct AskedQuestions {
  std::string file_sha256, sampling;
  int64_t calibration = 0, check = 0, runs = 0;  // questions of either set; answers to each
};
// A promise about right answers (SLQ, Algorithm 2): the point it was derived from, and what was measured.
struct CertifiedTasks {
  AskedQuestions asked;
  double accuracy_drop = 0;  // the share of the accuracy that may be lost
  double calibration_bits = 0;
  Estimate calibration_kl, calibration_recovery, alpha;  // alpha: accuracy lost a nat
  double rho = 0;                                        // measured KL over the table's prediction
  double kl_allowed = 0;
  Estimate kl, predicted_recovery, recovery;  // of the certified plan; recovery's interval has `confidence`
  double confidence = 0;
  int plans_checked = 0;
};

// How often the model takes what a draft guesses (`certify --draft`). No token depends on it.
struct CertifiedDraft {
  std::string draft;
  double bytes_share = 0, temperature = 0;  // bytes a draft's step reads, as a share of the model's
  int64_t judged = 0, accepted = 0;         // guessed tokens
  double acceptance = 0, expected_acceptance = 0;
  Estimate ear;
};

struct Certificate {
  static constexpr int kSchema = 2;  // changes whenever a reader of the JSON must

  Target target;  // empty where a size or a speed was asked for
  Promise promise = Promise::domain;
  PromisedFigures promised;
  bool met = false;
  DomainFidelity all;  // over all text; its document_ear and document_kl are of a new document
  std::vector<DomainFidelity> domains;
  Estimate perplexity_ratio;
  bool passages = false;            // pieces of fewer than kFewDocuments documents stand for documents
  double wider = 1;                 // how many times as wide as with kEnoughDocuments documents the intervals are
  int64_t context = 0;              // tokens of a window
  std::vector<std::string> texts;   // as --text takes them
  std::vector<std::string> places;  // the documents (compress/inputs/sets.h)
  std::string places_sha256;        // of the set that these places make
  std::string activations, kv;      // as the model was served while it was measured
  std::vector<std::string> kernels;
  std::optional<CertifiedSets> sets;   // none: measured by `certify`
  std::optional<TextOverlap> overlap;  // with what the model was made, tried or chosen with; none: not known
  std::optional<FloorFigures> floor;
  std::optional<CertifiedTasks> tasks;
  std::optional<CertifiedDraft> draft;
  std::vector<LadderStep> ladder;  // tests on these documents, in their order; empty where no target was asked for
  Tails tails;                     // by position, over all text; none of an earlier fidelio's
  std::optional<SamplingOptions> sampling;  // by which `all` and `domains` have their figures as sampled
  std::optional<WholeAnswers> answers;      // none: not asked for (--answers)
  std::string reference_sha256;
};

nlohmann::json to_json(const Certificate& certificate);
// Throws Error naming `of` (a file, a report) where the JSON is no certificate, is damaged, or is of another schema.
Certificate certificate_from_json(const nlohmann::json& json, const std::string& of);

// Tells whether a checkpoint carries a certificate, which may still be damaged.
bool has_certificate(const Checkpoint& checkpoint);
// The certificate in a checkpoint's provenance. Throws Error for a checkpoint without one and for a damaged one.
Certificate read_certificate(const Checkpoint& checkpoint);

CertifiedDraft certified_draft(const nlohmann::json& measured);  // of what `eval --draft` reports

}  // namespace fidelio
