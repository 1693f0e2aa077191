// This file finds near-copies: documents that are not the same bytes and yet the same text, cut, dated, wrapped or
// quoted anew. They are found by the shingles that they share (text/shingles.h).
//
//   inside a set     A document is left out if more than half of its shingles stand in documents that were kept before
//                    it. The longest comes first, so a document that was cut into pieces stays and the pieces go. If
//                    pieces overlap by half, every second one stays. The documents that stay may be dealt out and
//                    resampled as if each were drawn by itself.
//   between two      A document is left out if more than a quarter of its shingles stand in the other set. A model
//                    gained EAR .0004 on text that its quantisers had seen completely. A quarter of that is below the
//                    interval of any certificate. Smaller overlaps are counted, and the certificate states them.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/texts/corpus.h"

namespace fidelio {

inline constexpr double kNearCopy = 0.5, kTakenFrom = 0.25;

// A HashSet holds 64-bit hashes in an open table of 8 bytes an entry, which is at most half full.
class HashSet {
 public:
  explicit HashSet(int64_t expected = 0);
  void insert(std::span<const uint64_t> hashes);
  bool contains(uint64_t hash) const;

 private:
  size_t place_of(uint64_t hash) const;
  void grow(int64_t entries);
  std::vector<uint64_t> table_;
  int shift_ = 0;  // A hash's highest bits say where it stands, since the lowest may be alike (Corpus::shingle_mask).
  int64_t size_ = 0;
};

// SharedShingles counts the shingles of a document, and those of them that a ShingleSet holds too.
struct SharedShingles {
  int64_t shared = 0, all = 0;
  double share() const { return all == 0 ? 0 : static_cast<double>(shared) / static_cast<double>(all); }
};
class ShingleSet {
 public:
  // `mask` is Corpus::shingle_mask of the document's corpus. Only shingles that all sides keep are compared.
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
// Removes documents that are near-copies of others of the corpus. Documents without shingles stay.
LeftOut remove_near_copies(Corpus& corpus);
// Removes documents that are taken from `other`.
LeftOut remove_taken_from(Corpus& corpus, const Corpus& other);

}  // namespace fidelio
