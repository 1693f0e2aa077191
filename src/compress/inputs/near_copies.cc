#include "compress/inputs/near_copies.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace fidelio {
namespace {

constexpr uint64_t kFree = 0;  // It marks a free place of the table; a hash of 0 is kept as 1.

int64_t shingles_in(std::span<const Document> documents) {
  int64_t all = 0;
  for (const Document& d : documents) all += std::ssize(d.shingles);
  return all;
}

}  // namespace

HashSet::HashSet(int64_t expected) { grow(expected); }

size_t HashSet::place_of(uint64_t hash) const {
  size_t place = hash >> shift_;
  while (table_[place] != kFree && table_[place] != hash) place = (place + 1) & (table_.size() - 1);
  return place;
}

void HashSet::grow(int64_t entries) {
  const size_t places = std::bit_ceil(2 * static_cast<size_t>(std::max<int64_t>(entries, 8)));
  const std::vector<uint64_t> before = std::exchange(table_, std::vector<uint64_t>(places));
  shift_ = 64 - std::countr_zero(places);
  for (uint64_t hash : before)
    if (hash != kFree) table_[place_of(hash)] = hash;
}

void HashSet::insert(std::span<const uint64_t> hashes) {
  if (2 * (size_ + std::ssize(hashes)) > std::ssize(table_)) grow(size_ + std::ssize(hashes));
  for (uint64_t hash : hashes) {
    uint64_t& place = table_[place_of(std::max<uint64_t>(hash, 1))];
    if (place != kFree) continue;
    place = std::max<uint64_t>(hash, 1);
    ++size_;
  }
}

bool HashSet::contains(uint64_t hash) const { return table_[place_of(std::max<uint64_t>(hash, 1))] != kFree; }

void ShingleSet::add(const Document& document, uint64_t mask) {
  mask_ |= mask;
  hashes_.insert(document.shingles);
}

SharedShingles ShingleSet::with(const Document& document, uint64_t mask) const {
  SharedShingles found;
  for (uint64_t hash : document.shingles) {
    if ((hash & (mask | mask_)) != 0) continue;
    ++found.all;
    if (hashes_.contains(hash)) ++found.shared;
  }
  return found;
}

namespace {

// Removes the documents that are marked.
LeftOut leave_out(Corpus& corpus, const std::vector<bool>& marked) {
  LeftOut out;
  std::vector<Document> kept;
  for (size_t i = 0; i < marked.size(); ++i) {
    if (!marked[i]) {
      kept.push_back(std::move(corpus.documents[i]));
      continue;
    }
    if (out.documents++ == 0) out.example = corpus.documents[i].name;
  }
  corpus.documents = std::move(kept);
  return out;
}

}  // namespace

LeftOut remove_near_copies(Corpus& corpus) {
  const std::vector<Document>& all = corpus.documents;
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (all[a].shingles.size() != all[b].shingles.size()) return all[a].shingles.size() > all[b].shingles.size();
    return all[a].sha256 < all[b].sha256;
  });
  HashSet kept(shingles_in(all));
  std::vector<bool> copies(all.size());
  for (size_t i : order) {
    const std::vector<uint64_t>& own = all[i].shingles;
    const auto there = std::count_if(own.begin(), own.end(), [&](uint64_t hash) { return kept.contains(hash); });
    copies[i] = static_cast<double>(there) > kNearCopy * static_cast<double>(own.size());
    if (!copies[i]) kept.insert(own);
  }
  return leave_out(corpus, copies);
}

LeftOut remove_taken_from(Corpus& corpus, const Corpus& other) {
  ShingleSet there;
  for (const Document& d : other.documents) there.add(d, other.shingle_mask);
  std::vector<bool> taken;
  for (const Document& d : corpus.documents) taken.push_back(there.with(d, corpus.shingle_mask).share() > kTakenFrom);
  return leave_out(corpus, taken);
}

}  // namespace fidelio
