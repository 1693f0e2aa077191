// This file declares what the two halves of the verb `certify` share: a certificate that is measured again
// (certify.cc), and a file without one, of any program, that is certified for the first time (certify_file.cc).
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/options/common.h"
#include "app/options/texts.h"
#include "app/verbs/eval_draft.h"
#include "compress/certificate/certify.h"
#include "eval/studies/layer_errors.h"

namespace fidelio::app {

struct Certify {
  RunOptions run;
  std::string reference, json, page, card, card_block;
  std::vector<std::string> texts;
  int64_t answers = -1;  // -1 means as many as the certificate has.
  DraftOptions draft;
  // These are for a file without a certificate, which says the target and the windows of one that has it.
  Target target;
  int64_t context = 0;  // 0 means 512, or the context if that is shorter.
};

struct Measurements {
  FidelityReport report;
  std::optional<WholeAnswers> answers{};
  std::optional<LayerErrors> layers{};  // of a file without a certificate
};
// Measures the model as `claim` says that it is served, beside its reference. Where `layers` is set, the errors of
// layers are measured on some of the text, too.
Measurements measure_certified(const Certify& o, const TextModel& model, const Checkpoint& reference,
                               const Certificate& claim, const TextSet& set, bool layers,
                               std::unique_ptr<Runner>& served);

// Measures, if there is a --draft, how often the model accepts the draft's guesses, on the first windows of the
// documents. It does not affect any token.
void add_draft_to(Certificate& certificate, const Certify& o, const TextModel& model, const Certificate& claim,
                  const TextSet& set);

std::string ear_text(const Estimate& ear);  // It returns "EAR .. [.., ..]".
// Returns the file names of texts, in a row.
std::string names_text(const std::vector<std::string>& files);
// Returns the figures that miss the target, with the target and the domain.
std::string not_met(const Certificate& measured);
nlohmann::json documents_json(const std::vector<DocumentFidelity>& documents);
// These write the page and the model's card, where they are asked for.
void write_page(const Certify& o, const std::string& verdict, const Certificate& certificate, bool kept,
                const std::vector<DocumentFidelity>& documents);
void write_card_of(const Certify& o, const TextModel& model, const Certificate& certificate, bool kept);

// Certifies a file that has no certificate, and names the layers that stand out.
void certify_file(const Certify& o, const TextModel& model, const Checkpoint& reference);

}  // namespace fidelio::app
