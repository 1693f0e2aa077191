// The four sets of documents that a compression works with. Disjoint: no document is in two of them.
//
//   --calibration   nine documents of ten: calibration, what the quantisers see;  the tenth: search, what
//                   sensitivities and evolution are measured on
//   --text          one document of three: adjustment, what plans are tried on until one meets the target;  two of
//                   three: certificate, looked at when a plan has been chosen
//
// Documents are dealt out within each domain by the order of their SHA-256, which nobody chose. A domain with fewer than
// kFewDocuments is cut into passages instead, and its sets are neighbouring stretches of it; what is then said holds for
// those documents, and the certificate says so. A passage is as long as text stays alike: neighbouring passages of 2,048
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
// What a certificate should rest on; with less it says how much wider that makes it.
inline constexpr int64_t kEnoughWindows = 200, kEnoughDocuments = 40;

// Documents to measure on, each a text for compare_models, cut to some of its windows.
struct TextSet {
  std::vector<EvalText> texts;
  std::vector<Document> documents;  // the same ones without their ids
  int64_t windows = 0, tokens = 0;
  std::string sha256;  // of the documents' hashes and lengths, in order

  bool passages() const;  // whether some are pieces of documents
  int64_t files() const;  // the documents behind the passages; without passages as many as there are documents
  std::vector<std::string> domains() const;
  std::map<std::string, int64_t> counts() const;  // documents of each domain, those of apart_domain() among them
};
nlohmann::json to_json(const TextSet& set);  // {documents, windows, tokens, sha256, domains: {name: documents}}
// "40 documents, 200 windows, 92,160 tokens", or "9 passages of 1 document, ..".
std::string describe(const TextSet& set);

// A set of at most `windows` windows of these documents. The domains have equal shares. Within a domain every document
// gives its first window before any gives its second, up to kWindowsOfOne each: documents differ more than windows of one
// document do, so that the more of them there are, the narrower an interval is. A passage gives up to kWindowsOfPassage.
inline constexpr int64_t kWindowsOfOne = 4, kWindowsOfPassage = 12;
TextSet text_set(std::vector<Document> documents, int64_t context, int64_t windows);

// What is dealt out and drawn: the documents of a domain, by domain and hash, or where they are few passages of them in
// their order. Throws Error naming a domain with too little text, and `what`.
std::vector<Document> units_of(const Corpus& corpus, int64_t context, const std::string& what);

// Units, one part of `parts` in `first`, the others in `second`.
struct Division {
  std::vector<Document> first, second;
};
Division divide(const std::vector<Document>& units, int64_t parts);
inline constexpr int64_t kAdjustmentShare = 3;  // one unit of three of --text

// Windows of the documents as sequences, spread over them evenly.
Dataset dataset_of(const std::vector<Document>& documents, int64_t context, int64_t tokens);

std::string sequences_sha256(const Dataset& data);  // of the tokens themselves

// Documents of `corpus` that `other` has too are taken out; how many these were.
int64_t remove_shared(Corpus& corpus, const Corpus& other);
// So are those that it has had already, under whatever name or domain: a document that repeats would be in two sets at
// once, and count as several that happen to be alike. Of several domains the first by name keeps it.
int64_t remove_repeated(Corpus& corpus);

// A document of a set as a certificate names it, so that certify finds the same tokens: the beginning of its SHA-256,
// and where they lie in it. And the set of those that are named so. Throws Error if one is not in the corpus.
inline constexpr size_t kPlaceHashDigits = 12;
std::vector<std::string> place_names(const TextSet& set);
TextSet set_of_places(const Corpus& corpus, int64_t context, const std::vector<std::string>& places);

// A comparison on a set, by document. What a document wants apart (the arguments of calls) is a document of its own, of the
// same name and of the domain apart_domain(), and the document itself is the rest: each position counts once.
inline std::string apart_domain(const std::string& domain) { return domain + "/arguments"; }
std::vector<DocumentFidelity> documents_of(const FidelityReport& report, const TextSet& set);

}  // namespace fidelio
