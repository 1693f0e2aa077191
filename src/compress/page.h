// The page about one compression: what was certified, which plans there were, what each group can bear, and what it
// got.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "compress/report.h"
#include "compress/search/search.h"
#include "sensitivity/gamma.h"

namespace fidelio {

// gamma_law of one linear of the source, at kGammaBits.
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
  const std::vector<DocumentFidelity>& documents;  // of the certificate
  std::string made_by{};                           // version, date and command
};
std::string compress_page(const CompressStory& story);  // self-contained HTML

// A certificate in plain words (compress/certificate/words.h says what `kept` is), and by kind of text.
std::string certificate_html(const Certificate& certificate, bool kept, std::span<const DocumentFidelity> documents);
// The page about one that was measured again, or on other text.
std::string certify_page(const std::string& model, const std::string& verdict, const Certificate& certificate,
                         bool kept, const std::vector<DocumentFidelity>& documents, const std::string& made_by);

}  // namespace fidelio
