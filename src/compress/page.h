// This file writes the page about one compression: what was certified, which plans there were, how sensitive each group
// is, and which format it got.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "compress/report.h"
#include "compress/search/search.h"
#include "sensitivity/gamma.h"

namespace fidelio {

// A GammaRow is gamma_law of one linear of the source, at kGammaBits.
struct GammaRow {
  std::string linear;
  GammaLaw law;
};
inline constexpr int kGammaBits = 4;

struct CompressStory {
  std::string model;
  const Measured& measured;
  const std::vector<Plan>& front;
  const Found& found;
  std::vector<GammaRow> gamma;
  int gamma_group = 0;
  std::string search, allocate_by;
  const MadeCheckpoint& made;
  const std::vector<DocumentFidelity>& documents;  // the documents of the certificate
  std::string made_by{};                           // version, date and command
};
std::string compress_page(const CompressStory& story);  // Returns HTML that needs no other file.

// Returns a certificate in plain words (compress/certificate/words.h says what `kept` is), and by kind of text.
std::string certificate_html(const Certificate& certificate, bool kept, std::span<const DocumentFidelity> documents);
// Returns the page about a certificate that was measured again, or on other text.
std::string certify_page(const std::string& model, const std::string& verdict, const Certificate& certificate,
                         bool kept, const std::vector<DocumentFidelity>& documents, const std::string& made_by);

}  // namespace fidelio
