// This file deals documents out into the four sets that a compression works with. No document is in two of them.
//
//   --calibration   Nine documents of ten are `calibration`, which the quantisers see. The tenth is `search`, on which
//                   sensitivities and evolution are measured.
//   --text          One document of three is `adjustment`, on which plans are tried until one meets the target. Two of
//                   three are `certificate`, on which the chosen plan is tested.
//
// Documents are dealt out within each domain by the order of their SHA-256, which nobody chose. A domain with fewer
// than kFewDocuments is cut into passages instead, and its sets are neighbouring stretches of it. A certificate then
// holds only for those documents, and says so. A passage is as long as text stays alike: neighbouring passages of 2,048
// tokens lose alike (a correlation of .45), neighbouring ones of kWindowsOfPassage windows hardly do (.06 to .2).
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eval/fidelity/domains.h"
#include "eval/studies/compare.h"
#include "runtime/dataset.h"
#include "runtime/texts/corpus.h"

namespace fidelio {

inline constexpr int64_t kFewDocuments = 12;
// A certificate should rest on so many windows and documents. With fewer it says how much wider its intervals are.
inline constexpr int64_t kEnoughWindows = 200, kEnoughDocuments = 40;

// A TextSet holds documents to measure on. Each is a text for compare_models, cut to some of its windows.
struct TextSet {
  std::vector<EvalText> texts;
  std::vector<Document> documents;  // the same documents without their ids
  int64_t windows = 0, tokens = 0;
  std::string sha256;  // hash of the documents' hashes and lengths, in order

  bool passages() const;  // true if some are pieces of documents
  int64_t files() const;  // the number of documents before they were cut into passages
  std::vector<std::string> domains() const;
  std::map<std::string, int64_t> counts() const;  // documents of each domain, also those of apart_domain()
};
nlohmann::json to_json(const TextSet& set);  // {documents, windows, tokens, sha256, domains: {name: n}}
// Returns "40 documents, 200 windows, 92,160 tokens", or "9 passages of 1 document, ..".
std::string describe(const TextSet& set);

// Makes a set of at most `windows` windows of these documents. The domains have equal shares. Within a domain every
// document gives its first window before any gives its second, up to kWindowsOfOne each. Documents differ more than
// windows of one document do, so more documents make a narrower interval. A passage gives up to kWindowsOfPassage.
inline constexpr int64_t kWindowsOfOne = 4, kWindowsOfPassage = 12;
TextSet text_set(std::vector<Document> documents, int64_t context, int64_t windows);

// Returns the units that are dealt out: the documents of each domain in the order of their hashes, or, if a domain has
// few, passages of them in their order. Throws Error naming `what` and a domain with too little text.
std::vector<Document> units_of(const Corpus& corpus, int64_t context, const std::string& what);

// A Division has one unit of `parts` in `first` and the others in `second`.
struct Division {
  std::vector<Document> first, second;
};
Division divide(const std::vector<Document>& units, int64_t parts);
inline constexpr int64_t kAdjustmentShare = 3;  // One unit of three of --text is for adjustment.

// Returns windows of the documents as sequences, spread evenly over them.
Dataset dataset_of(const std::vector<Document>& documents, int64_t context, int64_t tokens);

std::string sequences_sha256(const Dataset& data);  // hash of the tokens

// Removes the documents of `corpus` that `other` has too, and returns their number.
int64_t remove_shared(Corpus& corpus, const Corpus& other);
// Removes documents that repeat others of the corpus, under any name or domain, and returns their number. A repeated
// document would be in two sets at once and would count as several that happen to be alike. The first of several
// domains by name keeps it.
int64_t remove_repeated(Corpus& corpus);

// Returns the documents of a set as a certificate names them, so that certify finds the same tokens: by the beginning
// of the SHA-256 and the place of the tokens in the document. set_of_places() returns the set that is named so. It
// throws Error if a document is not in the corpus.
inline constexpr size_t kPlaceHashDigits = 12;
std::vector<std::string> place_names(const TextSet& set);
TextSet set_of_places(const Corpus& corpus, int64_t context, const std::vector<std::string>& places);

// Returns a comparison on a set, by document. The part of a document that is judged apart (the arguments of calls) is a
// document of its own, with the same name and the domain apart_domain(). The document itself is the rest, so each
// position counts once.
inline std::string apart_domain(const std::string& domain) { return domain + "/arguments"; }
std::vector<DocumentFidelity> documents_of(const FidelityReport& report, const TextSet& set);

}  // namespace fidelio
