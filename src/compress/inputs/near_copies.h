// Near-copies: documents that are not the same bytes and yet the same text, cut, dated, wrapped or quoted anew. They are
// found by the shingles that they share (text/shingles.h).
//
//   inside a set     a document of whose shingles more than half stand in those kept before it is left out. The longest
//                    comes first, so that a document that was cut into pieces stays and the pieces go; of pieces that
//                    overlap by half every second one stays. What stays may be dealt out and resampled as if each were
//                    drawn by itself.
//   between two      a document of whose shingles more than a quarter stand in the other set is left out. What a model
//                    gains on text that its quantisers saw was measured as EAR .0004 where all of it was seen: a quarter
//                    of that is below any certificate's interval. The rest is counted, and the certificate says it.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/texts/corpus.h"

namespace fidelio {

inline constexpr double kNearCopy = 0.5, kTakenFrom = 0.25;

// A set of 64-bit hashes: an open table of 8 bytes an entry, at most half full.
class HashSet {
 public:
  explicit HashSet(int64_t expected = 0);
  void insert(std::span<const uint64_t> hashes);
  bool contains(uint64_t hash) const;

 private:
  size_t place_of(uint64_t hash) const;
  void grow(int64_t entries);
  std::vector<uint64_t> table_;
  int shift_ = 0;  // A hash's highest bits say where it stands: the lowest may be alike in all (Corpus::shingle_mask).
  int64_t size_ = 0;
};

// The shingles of documents, and how many of a document's stand among them.
struct SharedShingles {
  int64_t shared = 0, all = 0;
  double share() const { return all == 0 ? 0 : static_cast<double>(shared) / static_cast<double>(all); }
};
class ShingleSet {
 public:
  // `mask` is Corpus::shingle_mask of where the document comes from. Those shingles are compared that all sides keep.
  void add(const Document& document, uint64_t mask);
  SharedShingles with(const Document& document, uint64_t mask) const;

 private:
  HashSet hashes_;
  uint64_t mask_ = 0;
};

// A LeftOut says how many documents were left out, and the name of one of them.
struct LeftOut {
  int64_t documents = 0;
  std::string example;
};
// Takes out documents that are near-copies of others of the corpus. Documents without shingles stay.
LeftOut remove_near_copies(Corpus& corpus);
// Takes out documents that are taken from `other`.
LeftOut remove_taken_from(Corpus& corpus, const Corpus& other);

}  // namespace fidelio
