// A record of what a model was made, tried and chosen with stands in its provenance, so that text can be compared with it
// when those texts are no more at hand: every document by the beginning of its SHA-256, and a sample of their shingles.
//
// The sample is made of the smallest hashes (bottom-k): all shingles whose hash lies below a limit, of every set, where the
// limit leaves so many of all sets together. Those of another text that lie below it are as good a sample of that, and the
// share of them that the record holds is the share of the text that was used. An example: a record of 1,024 hashes of
// 100,000 words samples one shingle of a hundred, a text of 20,000 words has 200 of these, the chance that none shows an
// overlap of 3% is .002, and a share that is found has a standard error of at most .035.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "compress/inputs/near_copies.h"
#include "runtime/dataset.h"

namespace fidelio {

class UsedTexts {
 public:
  // Returns how many hashes suit a model: at most 1,536, which are 18 kB, and fewer where a file is small.
  static int64_t hashes_for(int64_t parameters);
  explicit UsedTexts(int64_t hashes = 0) : most_(static_cast<size_t>(hashes)) {}

  // Notes a document under the name of a set ("calibration"). `mask`: Corpus::shingle_mask of where it comes from.
  void add(const std::string& set, const Document& document, uint64_t mask);
  nlohmann::json to_json() const;

  // Reads what a checkpoint's provenance says; nothing where an earlier fidelio wrote it. Throws Error naming `of`.
  static std::optional<UsedTexts> read(const nlohmann::json& provenance, const std::string& of);
  // The set that a document is one of; "" if it is of none.
  std::string set_of(const Document& document) const;
  // How many of a document's shingles that lie below the limit stand in the record, and how many lie there.
  SharedShingles with(const Document& document, uint64_t mask) const;

 private:
  struct Set {
    std::set<std::string> documents;
    std::set<uint64_t> shingles;  // the smallest
    bool cut = false;             // larger ones were left out
  };
  uint64_t limit() const;
  std::map<std::string, Set> sets_;
  size_t most_;
  uint64_t mask_ = 0;
  std::optional<uint64_t> read_limit_;
};

// The documents that sequences were cut from, and those sequences that were cut from none: the model's own samples.
struct SequenceOrigins {
  std::set<std::string> documents;  // by SHA-256
  std::vector<const std::vector<int32_t>*> others;
};
SequenceOrigins origins_of(const std::vector<std::vector<int32_t>>& sequences, const std::vector<Document>& documents,
                           int64_t context);

// A text that has no document: its hash and its shingles are those of the text itself.
Document document_of_text(const std::string& text);

// Compared with what a model was made, tried or chosen with, as a certificate keeps it.
struct TextOverlap {
  bool by_record = false;              // compared with a record (UsedTexts) and not with the texts themselves
  SharedShingles shingles;             // of the certificate's documents, and how many of them stand in the others
  int64_t tried_on_parts = 0;          // documents of which plans were tried on other passages
  int64_t near_copies = 0, taken = 0;  // documents left out: as copies of others of the text; as used before
};
nlohmann::json to_json(const TextOverlap& overlap);
TextOverlap overlap_from_json(const nlohmann::json& json);
// A whole sentence about it. Without an overlap it says that nothing is known.
std::string overlap_words(const std::optional<TextOverlap>& overlap);

}  // namespace fidelio
