#include "compress/inputs/used_texts.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/inputs/sets.h"
#include "core/error.h"
#include "core/hash.h"
#include "text/shingles.h"

namespace fidelio {
namespace {

// A record keeps the highest 48 bits of a hash. Two of a million shingles are alike in these by chance once in 500
// cases.
constexpr int kDropped = 16;
constexpr size_t kHashDigits = 12;

std::string hash_digits(uint64_t hash) { return fmt::format("{:012x}", hash >> kDropped); }

uint64_t read_digits(std::string_view digits, const std::string& of) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  check(digits.size() == kHashDigits && error == std::errc() && end == digits.data() + digits.size(),
        "{}: the record of texts that were used holds \"{}\", which is no hash: the file is damaged", of, digits);
  return value << kDropped;
}

}  // namespace

int64_t UsedTexts::hashes_for(int64_t parameters) { return std::clamp<int64_t>(parameters / 4096, 256, 1536); }

void UsedTexts::add(const std::string& set, const Document& document, uint64_t mask) {
  Set& into = sets_[set];
  mask_ |= mask;
  into.documents.insert(document.sha256.substr(0, kPlaceHashDigits));
  for (const uint64_t hash : document.shingles) {  // in ascending order
    if ((hash & mask_) != 0) continue;
    if (into.shingles.size() == most_ && hash >= *into.shingles.rbegin()) {
      into.cut = true;
      break;
    }
    if (!into.shingles.insert(hash).second || into.shingles.size() <= most_) continue;
    into.shingles.erase(std::prev(into.shingles.end()));
    into.cut = true;
  }
}

// Returns the limit below which every set's shingles are all there, and no more than `most_` of all sets together.
uint64_t UsedTexts::limit() const {
  if (read_limit_) return *read_limit_;
  uint64_t limit = ~uint64_t{0};
  std::set<uint64_t> all;
  for (const auto& [name, set] : sets_) {
    if (set.cut) limit = std::min(limit, *set.shingles.rbegin());
    for (uint64_t hash : set.shingles)
      if ((hash & mask_) == 0) all.insert(hash);
  }
  if (all.size() > most_) limit = std::min(limit, *std::next(all.begin(), static_cast<int64_t>(most_)));
  return limit >> kDropped << kDropped;
}

nlohmann::json UsedTexts::to_json() const {
  const uint64_t below = limit();
  nlohmann::json documents = nlohmann::json::object(), shingles = nlohmann::json::object();
  for (const auto& [name, set] : sets_) {
    documents[name] = set.documents;
    std::string digits;
    for (uint64_t hash : set.shingles)
      if (hash < below && (hash & mask_) == 0) digits += hash_digits(hash);
    shingles[name] = digits;
  }
  return {{"documents", documents},
          {"words", kShingleWords},
          {"below", hash_digits(below)},
          {"mask", mask_},
          {"shingles", shingles}};
}

std::optional<UsedTexts> UsedTexts::read(const nlohmann::json& provenance, const std::string& of) {
  if (!provenance.is_object() || !provenance.contains("used_texts")) return std::nullopt;
  UsedTexts used;
  try {
    const nlohmann::json& from = provenance.at("used_texts");
    if (from.at("words").get<size_t>() != kShingleWords) return std::nullopt;
    used.read_limit_ = read_digits(from.at("below").get<std::string>(), of);
    used.mask_ = from.at("mask").get<uint64_t>();
    for (const auto& [name, documents] : from.at("documents").items())
      used.sets_[name].documents = documents.get<std::set<std::string>>();
    for (const auto& [name, json] : from.at("shingles").items()) {
      const auto digits = json.get<std::string>();
      for (size_t i = 0; i < digits.size(); i += kHashDigits)
        used.sets_[name].shingles.insert(read_digits(std::string_view(digits).substr(i, kHashDigits), of));
    }
  } catch (const nlohmann::json::exception& e) {
    throw Error("{}: the record of texts that were used cannot be read, the file is damaged: {}", of, e.what());
  }
  return used;
}

std::string UsedTexts::set_of(const Document& document) const {
  const std::string hash = document.sha256.substr(0, kPlaceHashDigits);
  for (const auto& [name, set] : sets_)
    if (set.documents.contains(hash)) return name;
  return "";
}

SharedShingles UsedTexts::with(const Document& document, uint64_t mask) const {
  SharedShingles found;
  const uint64_t below = limit();
  for (const uint64_t hash : document.shingles) {  // in ascending order
    if (hash >= below) break;
    if ((hash & (mask | mask_)) != 0) continue;
    ++found.all;
    const uint64_t kept = hash >> kDropped << kDropped;
    const auto has = [&](const auto& set) {
      const auto next = set.second.shingles.lower_bound(kept);
      return next != set.second.shingles.end() && *next >> kDropped == hash >> kDropped;
    };
    if (std::any_of(sets_.begin(), sets_.end(), has)) ++found.shared;
  }
  return found;
}

SequenceOrigins origins_of(const std::vector<std::vector<int32_t>>& sequences, const std::vector<Document>& documents,
                           int64_t context) {
  std::map<std::string, std::string> of;  // the document of each window, found by the window's ids
  const auto key = [](std::span<const int32_t> ids) {
    return std::string(reinterpret_cast<const char*>(ids.data()), ids.size_bytes());
  };
  for (const Document& d : documents)
    for (size_t begin = 0; begin < d.ids.size(); begin += static_cast<size_t>(context))
      of.emplace(key(std::span(d.ids).subspan(begin, std::min(static_cast<size_t>(context), d.ids.size() - begin))),
                 d.sha256);
  SequenceOrigins origins;
  for (const auto& sequence : sequences) {
    const auto found = of.find(key(sequence));
    if (found == of.end())
      origins.others.push_back(&sequence);
    else
      origins.documents.insert(found->second);
  }
  return origins;
}

Document document_of_text(const std::string& text) {
  Document d{"", "", sha256_hex(text), {}};
  d.shingles = shingles_of(text);
  return d;
}

nlohmann::json to_json(const TextOverlap& o) {
  return {{"by", o.by_record ? "record" : "texts"},
          {"shingles", o.shingles.all},
          {"shared", o.shingles.shared},
          {"tried_on_parts", o.tried_on_parts},
          {"left_out", {{"near_copies", o.near_copies}, {"taken", o.taken}}}};
}

TextOverlap overlap_from_json(const nlohmann::json& json) {
  const auto by = json.at("by").get<std::string>();
  check(by == "record" || by == "texts", "its overlap was found by \"{}\", expected \"texts\" or \"record\"", by);
  const nlohmann::json& left_out = json.at("left_out");
  return {by == "record",
          {json.at("shared").get<int64_t>(), json.at("shingles").get<int64_t>()},
          json.at("tried_on_parts").get<int64_t>(),
          left_out.at("near_copies").get<int64_t>(),
          left_out.at("taken").get<int64_t>()};
}

namespace {

// Returns a share in percent that is never rounded to zero.
std::string percent(double share) { return share < 0.0005 ? "less than 0.1%" : fmt::format("{:.1f}%", 100 * share); }

}  // namespace

std::string overlap_words(const std::optional<TextOverlap>& overlap) {
  if (!overlap || (overlap->by_record && overlap->shingles.all == 0))
    return "Whether this model was made, tried or chosen with any of it is not known.";
  const TextOverlap& o = *overlap;
  const double share = o.shingles.share();
  if (o.by_record && o.shingles.shared > 0)
    return fmt::format(
        "About {} of it stands in text that this model was made, tried or chosen with ({} of {} runs of {} words that "
        "were compared).",
        percent(share), o.shingles.shared, o.shingles.all, kShingleWords);
  if (o.by_record)
    // A share of this size would have shown at least once with 95% chance, as so many shingles were compared.
    return fmt::format(
        "As far as its record tells, this model was not made, tried or chosen with any of it: of {} runs of {} words "
        "that were compared none stands there, so that with 95% certainty no more than {} of it does.",
        o.shingles.all, kShingleWords, percent(1 - std::pow(0.05, 1.0 / static_cast<double>(o.shingles.all))));
  const char* these = o.tried_on_parts > 0 ? "these passages" : o.shingles.shared > 0 ? "these documents" : "it";
  std::string words = fmt::format("This model was not made, tried or chosen with any of {}.", these);
  if (o.tried_on_parts > 0) words += " It was tried on other passages of the same documents.";
  if (o.shingles.shared > 0)
    words +=
        fmt::format(" Quotations are: {} of their runs of {} words stand in what it was made, tried or chosen with.",
                    percent(share), kShingleWords);
  return words;
}

}  // namespace fidelio
