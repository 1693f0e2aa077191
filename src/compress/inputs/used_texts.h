// UsedTexts is a record of the texts that a model was made, tried and chosen with. It stands in the model's provenance,
// so that other text can be compared with those texts when they are no longer at hand. It names every document by the
// beginning of its SHA-256, and holds a sample of their shingles.
//
// The sample consists of the smallest hashes (bottom-k): all shingles of every set whose hash lies below a limit. The
// limit leaves a given number of all sets together. The shingles of another text that lie below it are an equally good
// sample of that text, and the share of them that the record holds estimates the share of the text that was used. For
// example, a record of 1,024 hashes of 100,000 words samples one shingle of a hundred. A text of 20,000 words has 200
// of these. The chance that none of them shows an overlap of 3% is .002, and an estimated share has a standard error of
// at most .035.
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

  // Records a document under the name of a set ("calibration"). `mask` is Corpus::shingle_mask of its corpus.
  void add(const std::string& set, const Document& document, uint64_t mask);
  nlohmann::json to_json() const;

  // Reads the record of a checkpoint's provenance. There is none if an earlier fidelio wrote it. Throws Error naming
  // `of` if it is damaged.
  static std::optional<UsedTexts> read(const nlohmann::json& provenance, const std::string& of);
  // Returns the set that a document is in, or "" if it is in none.
  std::string set_of(const Document& document) const;
  // Counts the shingles of a document that lie below the limit, and those of them that stand in the record.
  SharedShingles with(const Document& document, uint64_t mask) const;

 private:
  struct Set {
    std::set<std::string> documents;
    std::set<uint64_t> shingles;  // the smallest ones
    bool cut = false;             // true if larger ones were left out
  };
  uint64_t limit() const;
  std::map<std::string, Set> sets_;
  size_t most_;
  uint64_t mask_ = 0;
  std::optional<uint64_t> read_limit_;
};

// SequenceOrigins names the documents that sequences were cut from. Sequences that were cut from none are samples of
// the model itself.
struct SequenceOrigins {
  std::set<std::string> documents;  // by SHA-256
  std::vector<const std::vector<int32_t>*> others;
};
SequenceOrigins origins_of(const std::vector<std::vector<int32_t>>& sequences, const std::vector<Document>& documents,
                           int64_t context);

// Makes a document of a text that has none. Its hash and its shingles are those of the text itself.
Document document_of_text(const std::string& text);

// A TextOverlap says how much of the certificate's text was used to make, try or choose the model.
struct TextOverlap {
  bool by_record = false;              // true if a record (UsedTexts) was compared and not the texts themselves
  SharedShingles shingles;             // those of the certificate's documents, and how many were used elsewhere
  int64_t tried_on_parts = 0;          // documents whose other passages plans were tried on
  int64_t near_copies = 0, taken = 0;  // documents left out: as copies of others of the text; as used before
};
nlohmann::json to_json(const TextOverlap& overlap);
TextOverlap overlap_from_json(const nlohmann::json& json);
// Returns a whole sentence about the overlap. Without one it says that nothing is known.
std::string overlap_words(const std::optional<TextOverlap>& overlap);

}  // namespace fidelio
