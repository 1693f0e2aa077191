// The texts of one compression: rid of what would be counted twice, and noted as they are used.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "compress/inputs/sets.h"
#include "compress/inputs/used_texts.h"

namespace fidelio {

// The first corpus is what calibration and search may see, the second what plans are tried and certified on. Inside either
// no document repeats another or is a near-copy of one; of the second none repeats one of the first or is taken from one
// (near_copies.h).
struct RunTexts {
  Corpus seen, fresh;
  int64_t near_copies = 0, taken = 0;  // documents of the second that were left out: as copies inside it; as seen
  std::vector<std::string> left_out;   // these, by the beginning of their SHA-256
};
// `note` is told what is left out. Both corpora were read with their shingles. Throws Error where nothing is left.
RunTexts rid_of_copies(Corpus seen, Corpus fresh, const std::function<void(const std::string&)>& note);

// The same for a text of a user's, against the record of a finished model: documents that were used leave it. Throws Error
// where nothing is left, or where more than half of the rest was used too. Without a record nothing is known.
std::optional<TextOverlap> leave_used_out(Corpus& corpus, const std::optional<UsedTexts>& used, const std::string& name,
                                          const std::function<void(const std::string&)>& note);

// Keeps account of what a model is made, tried and chosen with, beside the shingles of what it is certified on.
class TextAccount {
 public:
  TextAccount() = default;
  TextAccount(int64_t parameters, const RunTexts& texts, const TextSet& certificate);
  // Documents of a corpus, by SHA-256, as used in a set; those that are in an earlier set are not noted again.
  void add(const std::string& set, const Corpus& corpus, const std::set<std::string>& hashes);
  void add_text(const std::string& set, const std::string& text);
  // Notes what it is certified on as well, for other text that may be certified on later. No set is added after it.
  void add_certificate();
  TextOverlap overlap() const;
  const UsedTexts& record() const { return used_; }
  int64_t record_bytes() const;  // of the record, as it stands in a checkpoint's metadata

 private:
  UsedTexts used_;
  ShingleSet shingles_;
  std::vector<Document> certified_;  // without their tokens
  std::set<std::string> noted_, certified_hashes_;
  uint64_t certified_mask_ = 0;
  TextOverlap overlap_;
};

}  // namespace fidelio
