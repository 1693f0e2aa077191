// This file removes from the texts of one compression what would be counted twice, and keeps account of how they are
// used.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "compress/inputs/sets.h"
#include "compress/inputs/used_texts.h"

namespace fidelio {

// RunTexts holds two corpora. Calibration and search may see `seen`; plans are tried and certified on `fresh`. Inside
// either no document repeats another or is a near-copy of one, and no document of `fresh` repeats one of `seen` or is
// taken from one (near_copies.h).
struct RunTexts {
  Corpus seen, fresh;
  int64_t near_copies = 0, taken = 0;  // documents left out of `fresh`: as copies in it; as seen
  std::vector<std::string> left_out;   // all of these, by the beginning of their SHA-256
};
// Makes RunTexts of two corpora that were read with their shingles, and tells `note` what it leaves out. Throws Error
// if nothing is left.
RunTexts rid_of_copies(Corpus seen, Corpus fresh, const std::function<void(const std::string&)>& note);

// Removes from a user's text the documents that a finished model was made with, by the model's record. Throws Error if
// nothing is left, or if more than half of the rest was used too. Without a record nothing is known, and nothing is
// returned.
std::optional<TextOverlap> leave_used_out(Corpus& corpus, const std::optional<UsedTexts>& used, const std::string& name,
                                          const std::function<void(const std::string&)>& note);

// A TextAccount records the text that a model is made, tried and chosen with, and compares it with the documents that
// it is certified on.
class TextAccount {
 public:
  TextAccount() = default;
  TextAccount(int64_t parameters, const RunTexts& texts, const TextSet& certificate);
  // Records documents of a corpus, by SHA-256, as used in a set. Documents of an earlier set are not recorded again.
  void add(const std::string& set, const Corpus& corpus, const std::set<std::string>& hashes);
  void add_text(const std::string& set, const std::string& text);
  // Records the documents of the certificate as well, for later comparisons with other text. No set is added after it.
  void add_certificate();
  TextOverlap overlap() const;
  const UsedTexts& record() const { return used_; }
  int64_t record_bytes() const;  // the size of the record in a checkpoint's metadata

 private:
  UsedTexts used_;
  ShingleSet shingles_;
  std::vector<Document> certified_;  // without their tokens
  std::set<std::string> noted_, certified_hashes_;
  uint64_t certified_mask_ = 0;
  TextOverlap overlap_;
};

}  // namespace fidelio
