#include "compress/certificate/dealt.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/foreign/foreign_text.h"

namespace fidelio {

void name_domain(Corpus& corpus, const Certificate& certificate) {
  const bool unnamed = std::all_of(corpus.documents.begin(), corpus.documents.end(),
                                   [](const Document& d) { return d.domain == "text"; });
  if (!unnamed || certificate.domains.size() != 1) return;
  for (Document& d : corpus.documents) d.domain = certificate.domains.front().domain;
}

void check_documents(const Certificate& c, const TextSet& set, const std::string& of) {
  std::vector<std::string> claimed;
  for (const DomainFidelity& d : c.domains) claimed.push_back(foreign(d.domain));
  std::sort(claimed.begin(), claimed.end());
  check(claimed == set.domains(),
        "{}: the certificate speaks of the domains {}, and the documents that it names are of {}: it was changed, or "
        "the text is given under another name (--text FILE:DOMAIN names it)",
        of, fmt::join(claimed, ", "), fmt::join(set.domains(), ", "));
  check(std::find(claimed.begin(), claimed.end(), foreign(c.promised.domain)) != claimed.end() ||
            (c.promise == Promise::all && c.promised.domain == "all"),
        "{}: the certificate's promise names the domain {}, and it was measured on {}", of, foreign(c.promised.domain),
        fmt::join(claimed, ", "));
  check(c.sets.has_value(), "{}: the certificate does not say which sets of text were used (sets): it was changed", of);
  const DocumentsUsed& used = c.sets->certificate;
  check(set.sha256 == c.places_sha256 && set.sha256 == used.sha256 && set.counts() == used.domains,
        "{}: the {} documents that the certificate names (places) are not the {} of the set that it was taken on "
        "(SHA-256 "
        "{}, sets.certificate {}): some were dropped, changed or put in another order",
        of, set.documents.size(), used.documents, set.sha256.substr(0, 12), foreign(used.sha256).substr(0, 12));
}

std::string check_dealt(const Certificate& c, const Corpus& corpus, const std::string& of) {
  const TextDealt& dealt = c.sets->dealt;
  if (dealt.rule != kDealing)
    return fmt::format("it was dealt by rule {}, and this fidelio deals by rule {}", dealt.rule, kDealing);
  if (dealt.sha256.empty()) return "more documents were left out of the text than a certificate names";
  if (dealt.sha256 != corpus.sha256) return "the text is not given whole, as it was to compress";
  const std::set<std::string> left_out(dealt.left_out.begin(), dealt.left_out.end());
  Corpus fresh = corpus;
  remove_repeated(fresh);
  std::erase_if(fresh.documents,
                [&](const Document& d) { return left_out.contains(d.sha256.substr(0, kPlaceHashDigits)); });
  Division division = divide(units_of(fresh, c.context, of), kAdjustmentShare);
  const TextSet anew = text_set(std::move(division.second), c.context, dealt.windows);
  std::set<std::string> named(c.places.begin(), c.places.end());
  for (const std::string& place : place_names(anew)) named.erase(place);
  check(
      anew.sha256 == c.places_sha256,
      "{}: other documents of this text would have been certified on: of the {} that the certificate names {} are not "
      "among the {} that are dealt to it. They were chosen by somebody; compress the model again",
      of, c.places.size(), named.size(), anew.documents.size());
  return "";
}

}  // namespace fidelio
