#include "compress/inputs/run_texts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "text/shingles.h"

namespace fidelio {

namespace {

void remove_repeated_of(Corpus& corpus, const std::string& name, const std::function<void(const std::string&)>& note) {
  const int64_t repeated = remove_repeated(corpus);
  if (repeated > 0) note(fmt::format("{} documents of {} repeat others, and are left out", repeated, name));
}

int64_t remove_near_copies_of(Corpus& corpus, const std::string& name,
                              const std::function<void(const std::string&)>& note) {
  const LeftOut copies = remove_near_copies(corpus);
  if (copies.documents > 0)
    note(
        fmt::format("{} documents of {} are near-copies of others ({} is one: more than half of its runs of {} words "
                    "stand in them), and are left out",
                    copies.documents, name, copies.example, kShingleWords));
  return copies.documents;
}

}  // namespace

RunTexts rid_of_copies(Corpus seen, Corpus fresh, const std::function<void(const std::string&)>& note) {
  RunTexts read;
  read.seen = std::move(seen);
  read.fresh = std::move(fresh);
  remove_repeated_of(read.seen, "--calibration", note);
  remove_repeated_of(read.fresh, "--text", note);
  std::set<std::string> before;
  for (const Document& d : read.fresh.documents) before.insert(d.sha256.substr(0, kPlaceHashDigits));
  const int64_t shared = remove_shared(read.fresh, read.seen);
  if (shared > 0) note(fmt::format("{} documents of --text are in --calibration too, and left out of it", shared));
  const LeftOut taken = remove_taken_from(read.fresh, read.seen);
  if (taken.documents > 0)
    note(
        fmt::format("{} documents of --text are left out: more than a quarter of their runs of {} words stand in "
                    "--calibration too ({} is one)",
                    taken.documents, kShingleWords, taken.example));
  read.taken = shared + taken.documents;
  remove_near_copies_of(read.seen, "--calibration", note);
  read.near_copies = remove_near_copies_of(read.fresh, "--text", note);
  for (const Document& d : read.fresh.documents) before.erase(d.sha256.substr(0, kPlaceHashDigits));
  read.left_out.assign(before.begin(), before.end());
  if (const int64_t talks = read.seen.without_template + read.fresh.without_template; talks > 0)
    note(fmt::format("{} conversations are left out: the model has no chat template", talks));
  check(!read.seen.documents.empty(), "the calibration text has no document of at least {} tokens", kShortestDocument);
  check(!read.fresh.documents.empty(),
        "the text to certify with has no document of at least {} tokens that calibration has not{}", kShortestDocument,
        read.taken > 0 ? fmt::format(": {} are taken from it. Give other text, or calibrate on other text", read.taken)
                       : "");
  return read;
}

std::optional<TextOverlap> leave_used_out(Corpus& corpus, const std::optional<UsedTexts>& used, const std::string& name,
                                          const std::function<void(const std::string&)>& note) {
  remove_repeated_of(corpus, name, note);
  TextOverlap overlap;
  overlap.near_copies = remove_near_copies_of(corpus, name, note);
  if (!used) return std::nullopt;
  overlap.by_record = true;
  std::string example;
  overlap.taken = static_cast<int64_t>(std::erase_if(corpus.documents, [&](const Document& d) {
    const std::string set = used->set_of(d);
    if (!set.empty() && example.empty()) example = fmt::format("{} for {}", d.name, set);
    return !set.empty();
  }));
  if (overlap.taken > 0)
    note(fmt::format("{} documents of {} were used when this model was made, tried or chosen ({}), and are left out",
                     overlap.taken, name, example));
  check(!corpus.documents.empty(),
        "{}: nothing is left that this model was not made, tried or chosen with. Give other text", name);
  for (const Document& d : corpus.documents) {
    const SharedShingles of_one = used->with(d, corpus.shingle_mask);
    overlap.shingles.shared += of_one.shared;
    overlap.shingles.all += of_one.all;
  }
  // One shingle may be shared by chance, for example a phrase of a licence or a form.
  constexpr int64_t kNoChance = 3;
  check(
      overlap.shingles.shared < kNoChance || overlap.shingles.share() <= kNearCopy,
      "{} is mostly text that this model was made, tried or chosen with: {} of {} runs of {} words that were compared "
      "stand in it. Give other text",
      name, overlap.shingles.shared, overlap.shingles.all, kShingleWords);
  return overlap;
}

TextAccount::TextAccount(int64_t parameters, const RunTexts& texts, const TextSet& certificate)
    : used_(UsedTexts::hashes_for(parameters)), certified_mask_(texts.fresh.shingle_mask) {
  for (const Document& d : certificate.documents) certified_hashes_.insert(d.sha256);
  for (const Document& d : texts.fresh.documents) {
    if (!certified_hashes_.contains(d.sha256)) continue;
    Document& kept = certified_.emplace_back();
    kept.sha256 = d.sha256;
    kept.shingles = d.shingles;
  }
  overlap_.near_copies = texts.near_copies;
  overlap_.taken = texts.taken;
}

void TextAccount::add(const std::string& set, const Corpus& corpus, const std::set<std::string>& hashes) {
  for (const Document& d : corpus.documents) {
    if (!hashes.contains(d.sha256) || !noted_.insert(d.sha256).second) continue;
    used_.add(set, d, corpus.shingle_mask);
    // Plans may be tried on one part of a document and certified on another. Its shingles would be found in itself.
    if (certified_hashes_.contains(d.sha256))
      ++overlap_.tried_on_parts;
    else
      shingles_.add(d, corpus.shingle_mask);
  }
}

void TextAccount::add_text(const std::string& set, const std::string& text) {
  const Document d = document_of_text(text);
  if (!noted_.insert(d.sha256).second) return;
  used_.add(set, d, 0);
  shingles_.add(d, 0);
}

void TextAccount::add_certificate() {
  for (const Document& d : certified_)
    if (noted_.insert(d.sha256).second) used_.add("certificate", d, certified_mask_);
}

TextOverlap TextAccount::overlap() const {
  TextOverlap overlap = overlap_;
  for (const Document& d : certified_) {
    const SharedShingles of_one = shingles_.with(d, certified_mask_);
    overlap.shingles.shared += of_one.shared;
    overlap.shingles.all += of_one.all;
  }
  return overlap;
}

int64_t TextAccount::record_bytes() const {
  const std::string text = record().to_json().dump();
  // The record is JSON in a JSON string, where every quotation mark has a backslash before it.
  return std::ssize(text) + std::count(text.begin(), text.end(), '"');
}

}  // namespace fidelio
