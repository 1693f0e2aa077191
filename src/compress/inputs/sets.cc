#include "compress/inputs/sets.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/hash.h"

namespace fidelio {
namespace {

constexpr int64_t kLeastUnits = 6;  // With fewer documents or passages a domain has no useful interval.

int64_t windows_in(const Document& d, int64_t context) {
  return std::max<int64_t>(1, static_cast<int64_t>(d.ids.size()) / context);
}

std::map<std::string, std::vector<Document>> by_domain_name(std::vector<Document> documents) {
  std::map<std::string, std::vector<Document>> of;
  for (Document& d : documents) of[d.domain].push_back(std::move(d));
  return of;
}

}  // namespace

bool TextSet::passages() const {
  return std::any_of(documents.begin(), documents.end(), [](const Document& d) { return d.passage; });
}

int64_t TextSet::files() const {
  std::set<std::string> hashes;
  for (const Document& d : documents) hashes.insert(d.sha256);
  return static_cast<int64_t>(hashes.size());
}

std::map<std::string, int64_t> TextSet::counts() const {
  std::map<std::string, int64_t> all;
  for (const Document& d : documents) {
    ++all[d.domain];
    if (!d.apart.empty()) ++all[apart_domain(d.domain)];
  }
  return all;
}
std::vector<std::string> TextSet::domains() const {
  std::vector<std::string> names;
  for (const auto& [name, count] : counts()) names.push_back(name);
  return names;
}

nlohmann::json to_json(const TextSet& set) {
  const nlohmann::json domains = set.counts();
  return {{"documents", set.documents.size()},
          {"windows", set.windows},
          {"tokens", set.tokens},
          {"sha256", set.sha256},
          {"domains", domains}};
}

std::string describe(const TextSet& set) {
  const std::string units =
      set.passages() ? fmt::format("passages of {} document{}", set.files(), set.files() == 1 ? "" : "s") : "documents";
  return fmt::format("{} {}, {} windows, {} tokens, SHA-256 {}", set.documents.size(), units, set.windows, set.tokens,
                     set.sha256.substr(0, 12));
}

namespace {

class SetBuilder {
 public:
  explicit SetBuilder(int64_t context) : context_(context) {}

  void add(Document d) {
    set_.windows += windows_in(d, context_);
    set_.tokens += static_cast<int64_t>(d.ids.size());
    hash_.update(fmt::format("{} {} {} {}\n", d.domain, d.sha256, d.begin, d.ids.size()));
    std::vector<int32_t> ids = std::exchange(d.ids, {});
    std::erase_if(d.apart, [&](const TokenSpan& s) { return s.begin >= std::ssize(ids); });
    set_.texts.push_back({d.name, d.sha256, std::move(ids), d.apart, d.given});
    set_.documents.push_back(std::move(d));
  }
  TextSet finish() {
    set_.sha256 = hash_.hex();
    return std::move(set_);
  }

 private:
  int64_t context_;
  Sha256 hash_;
  TextSet set_;
};

// Returns how many windows each document of a domain gives, `share` together. They are dealt like cards: every document
// gives its first one, then every one gives its second, and so on. No document is left out while another gives two.
std::vector<int64_t> deal_windows(const std::vector<Document>& documents, int64_t context, int64_t share) {
  std::vector<int64_t> dealt(documents.size(), 0);
  for (int64_t round = 0; round < kWindowsOfPassage; ++round)
    for (size_t i = 0; i < documents.size() && share > 0; ++i) {
      const Document& d = documents[i];
      if (round < std::min(windows_in(d, context), d.passage ? kWindowsOfPassage : kWindowsOfOne)) ++dealt[i], --share;
    }
  return dealt;
}

}  // namespace

TextSet text_set(std::vector<Document> documents, int64_t context, int64_t windows) {
  SetBuilder set(context);
  std::map<std::string, std::vector<Document>> of = by_domain_name(std::move(documents));
  const int64_t share = std::max<int64_t>(1, windows / std::max<int64_t>(1, static_cast<int64_t>(of.size())));
  for (auto& [domain, own] : of) {
    const std::vector<int64_t> dealt = deal_windows(own, context, share);
    for (size_t i = 0; i < own.size(); ++i) {
      if (dealt[i] == 0) continue;
      Document& d = own[i];
      d.ids.resize(std::min(d.ids.size(), static_cast<size_t>(dealt[i] * context)));
      set.add(std::move(d));
    }
  }
  return set.finish();
}

std::vector<Document> units_of(const Corpus& corpus, int64_t context, const std::string& what) {
  std::vector<Document> units;
  for (auto& [domain, own] : by_domain_name(corpus.documents)) {
    if (static_cast<int64_t>(own.size()) >= kFewDocuments) {
      std::stable_sort(own.begin(), own.end(),
                       [](const Document& a, const Document& b) { return a.sha256 < b.sha256; });
    } else {
      int64_t windows = 0;
      for (const Document& d : own) windows += static_cast<int64_t>(d.ids.size()) / context;
      // A text too short for kFewDocuments passages of full length is cut into shorter ones.
      const size_t documents = own.size();
      own = cut_into_passages(own, context, std::clamp<int64_t>(windows / kFewDocuments, 1, kWindowsOfPassage));
      check(static_cast<int64_t>(own.size()) >= kLeastUnits,
            "{}: of the domain {} there are {} documents, {} whole windows of {} tokens: too little to certify with. "
            "Give {} documents of this kind, or a longer one",
            what, domain, documents, windows, context, kFewDocuments);
    }
    std::move(own.begin(), own.end(), std::back_inserter(units));
  }
  return units;
}

Division divide(const std::vector<Document>& units, int64_t parts) {
  Division division;
  for (auto& [domain, own] : by_domain_name(units)) {
    const bool passages = std::any_of(own.begin(), own.end(), [](const Document& d) { return d.passage; });
    const auto count = static_cast<int64_t>(own.size());
    const int64_t first = std::max<int64_t>(count / parts, 1);
    for (int64_t i = 0; i < count; ++i) {
      const bool in_first = passages ? i < first : i % parts == parts - 1;
      (in_first ? division.first : division.second).push_back(std::move(own[static_cast<size_t>(i)]));
    }
  }
  return division;
}

Dataset dataset_of(const std::vector<Document>& documents, int64_t context, int64_t tokens) {
  std::vector<std::vector<int32_t>> sequences;
  Sha256 hash;
  for (const Document& d : documents) {
    hash.update(fmt::format("{} {} {}\n", d.sha256, d.begin, d.ids.size()));
    for (size_t begin = 0; begin < d.ids.size(); begin += static_cast<size_t>(context)) {
      const size_t end = std::min(d.ids.size(), begin + static_cast<size_t>(context));
      if (end - begin > 1)
        sequences.emplace_back(d.ids.begin() + static_cast<int64_t>(begin), d.ids.begin() + static_cast<int64_t>(end));
    }
  }
  Dataset data;
  data.sequences = spread_evenly(sequences, tokens);
  for (const auto& s : data.sequences) data.tokens += static_cast<int64_t>(s.size());
  data.sha256 = hash.hex();
  return data;
}

std::string sequences_sha256(const Dataset& data) {
  Sha256 hash;
  for (const auto& ids : data.sequences) {
    hash.update(fmt::format("{} ", ids.size()));
    hash.update(std::as_bytes(std::span(ids)));
  }
  return hash.hex();
}

int64_t remove_shared(Corpus& corpus, const Corpus& other) {
  std::set<std::string> seen;
  for (const Document& d : other.documents) seen.insert(d.sha256);
  return static_cast<int64_t>(
      std::erase_if(corpus.documents, [&](const Document& d) { return seen.contains(d.sha256); }));
}

int64_t remove_repeated(Corpus& corpus) {
  std::map<std::string, std::string> domain;  // the domain that keeps the document with this hash
  for (const Document& d : corpus.documents) {
    const auto [kept, first] = domain.emplace(d.sha256, d.domain);
    if (!first) kept->second = std::min(kept->second, d.domain);
  }
  std::set<std::string> seen;
  return static_cast<int64_t>(std::erase_if(corpus.documents, [&](const Document& d) {
    return d.domain != domain.at(d.sha256) || !seen.insert(d.sha256).second;
  }));
}

std::vector<std::string> place_names(const TextSet& set) {
  std::vector<std::string> names;
  for (size_t i = 0; i < set.documents.size(); ++i)
    names.push_back(fmt::format("{}@{}+{}{}", set.documents[i].sha256.substr(0, kPlaceHashDigits),
                                set.documents[i].begin, set.texts[i].ids.size(), set.documents[i].passage ? "p" : ""));
  return names;
}

TextSet set_of_places(const Corpus& corpus, int64_t context, const std::vector<std::string>& places) {
  std::map<std::string, const Document*> of;
  for (const Document& d : corpus.documents) of.emplace(d.sha256.substr(0, kPlaceHashDigits), &d);
  SetBuilder set(context);
  std::map<std::string, std::vector<std::pair<uint64_t, uint64_t>>>
      taken;  // ranges of tokens that were taken, by document
  check(!places.empty(), "the certificate names no documents: the file is damaged");
  for (const std::string& place : places) {
    unsigned long long begin = 0, length = 0;
    char hash[kPlaceHashDigits + 1] = {}, passage[2] = {};
    const int read = std::sscanf(place.c_str(), "%12[0-9a-f]@%llu+%llu%1[p]", hash, &begin, &length, passage);
    check(read >= 3, "the certificate names a document {}, which is no hash and place: the file is damaged", place);
    const auto found = of.find(hash);
    check(found != of.end(), "the text lacks a document that was certified on, of SHA-256 {}...", hash);
    const std::vector<int32_t>& ids = found->second->ids;
    check(length >= 2 && length <= ids.size() && begin <= ids.size() - length,
          "the certificate speaks of tokens {} to {} of a document of {}: the file is damaged", begin, begin + length,
          ids.size());
    // The same text twice would make an interval narrower than its documents do.
    auto& of_this = taken[hash];
    check(std::none_of(of_this.begin(), of_this.end(),
                       [&](const auto& t) { return begin < t.second && t.first < begin + length; }),
          "the certificate names tokens of {} twice: it was changed, or made of documents that repeat; compress the "
          "model again",
          place);
    of_this.emplace_back(begin, begin + length);
    Document d{
        found->second->domain, found->second->name, found->second->sha256, {}, static_cast<int64_t>(begin), read == 4};
    d.ids.assign(ids.begin() + static_cast<int64_t>(begin), ids.begin() + static_cast<int64_t>(begin + length));
    if (begin == 0) {  // A document with such parts is never cut.
      d.apart = found->second->apart;
      d.given = found->second->given;
    }
    set.add(std::move(d));
  }
  return set.finish();
}

namespace {

void add_sums(DocumentFidelity& d, const FidelitySums& sums, int sign) {
  d.tokens += sign * sums.positions;
  d.kl += sign * sums.kl;
  d.ear += sign * sums.ear;
  d.agreements += sign * sums.agreements;
  d.kl_sampled += sign * sums.kl_sampled;
  d.ear_sampled += sign * sums.ear_sampled;
}

// Returns names as "docs-heldout.txt, part 7". Passages of a document are numbered by their order in it, within the
// set.
std::string name_in(const TextSet& set, const Document& passage) {
  if (!passage.passage) return passage.name;
  const auto before = std::count_if(set.documents.begin(), set.documents.end(), [&](const Document& d) {
    return d.sha256 == passage.sha256 && d.begin < passage.begin;
  });
  return fmt::format("{}, part {}", passage.name, before + 1);
}

}  // namespace

std::vector<DocumentFidelity> documents_of(const FidelityReport& report, const TextSet& set) {
  std::vector<DocumentFidelity> all, apart;
  for (const Document& d : set.documents) {
    all.push_back({d.domain, name_in(set, d)});
    apart.push_back({apart_domain(d.domain), all.back().name});
  }
  for (const WindowFidelity& w : report.windows) {
    DocumentFidelity &d = all[static_cast<size_t>(w.text)], &a = apart[static_cast<size_t>(w.text)];
    ++d.windows;
    a.windows += w.apart.positions > 0;
    add_sums(d, w.sums, 1);
    add_sums(d, w.apart, -1);
    add_sums(a, w.apart, 1);
  }
  std::vector<DocumentFidelity> both;  // every document, followed by its part
  for (size_t i = 0; i < all.size(); ++i)
    for (DocumentFidelity* d : {&all[i], &apart[i]})
      if (d->tokens > 0) both.push_back(std::move(*d));
  return both;
}

}  // namespace fidelio
