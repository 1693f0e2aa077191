#include "compress/certificate/words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "compress/certificate/beyond.h"
#include "compress/certificate/judge.h"
#include "eval/statistics/clusters.h"

namespace fidelio {
namespace {

std::string of_100(double share) { return std::isfinite(share) ? fmt::format("{:.2f}", 100 * share) : "?"; }
// Writes the lower end of an interval in percent; it is never rounded up.
std::string least_of_100(const Estimate& e) {
  return std::isfinite(e.ci95.low) ? fmt::format("{:.2f}", std::floor(1e4 * e.ci95.low + 1e-6) / 100) : "?";
}

std::string listed(const std::vector<std::string>& parts) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  return text;
}

// The documents behind a certificate's passages, which are the places that end with a p.
size_t files_of_passages(const Certificate& c) {
  std::set<std::string> hashes;
  for (const std::string& place : c.places)
    if (place.ends_with('p')) hashes.insert(place.substr(0, kPlaceHashDigits));
  return hashes.size();
}

const char* units_of(const Certificate& c) { return c.passages ? "passages" : "documents"; }

// Says in which text the overlap is promised or was measured.
std::string where_words(const Certificate& c) {
  switch (c.promise) {
    case Promise::all:
      return "over all the text named here together";
    case Promise::document:
      return "in a new document of any kind named here";
    case Promise::domain:
      break;
  }
  return c.domains.size() > 1 ? "in every kind of text named here" : "in text of the kind named here";
}

// The figure itself, and of several domains the one in which it is lowest; what a reader at temperature 0 sees beside
// it.
std::string measured_words(const Certificate& c) {
  const bool named = c.promise != Promise::all && c.domains.size() > 1;
  return fmt::format("{}% overlap (EAR){}. With greedy decoding the two pick the same token {}% of the time",
                     of_100(c.promised.ear.value),
                     named ? fmt::format(" in {}, where it is lowest", c.promised.domain) : "",
                     of_100(c.all.top1.value));
}

PlainWords not_kept_words(const Certificate& c) {
  const std::string claimed =
      c.target.ear    ? fmt::format("at least {}% overlap", of_100(*c.target.ear))
      : c.target.kl   ? fmt::format("KL of at most {:g} nats a token", *c.target.kl)
      : c.target.top1 ? fmt::format("the same greedy token at least {}% of the time", of_100(*c.target.top1))
                      : std::string("the figures that the file holds");
  const std::string found =
      c.target.top1 && !c.target.ear && !c.target.kl
          ? fmt::format("{}% (lower end {}%)", of_100(c.promised.top1.value), least_of_100(c.promised.top1))
      : c.target.ear || !c.target.kl
          ? fmt::format("{}% (lower end {}%)", of_100(c.promised.ear.value), least_of_100(c.promised.ear))
          : fmt::format("KL {:.6f}", c.promised.kl.value);
  return {"Claimed", fmt::format("{}; on this text {}{}: NOT kept.", claimed, found,
                                 c.met ? ", which is not what the certificate says" : "")};
}

// Says what was promised and what was measured, or that the promise is not kept.
PlainWords promised_words(const Certificate& c, bool kept) {
  if (!kept) return not_kept_words(c);
  if (c.target.ear)
    return {"Promised",
            fmt::format("the next-token probabilities of this model and of the original overlap by at least "
                        "{}% on average, {}; measured: {}.",
                        of_100(*c.target.ear), where_words(c), measured_words(c))};
  if (c.target.kl)
    return {"Promised", fmt::format("KL of at most {:g} nats a token, {}; measured: KL {:.6f}, {}.", *c.target.kl,
                                    where_words(c), c.promised.kl.value, measured_words(c))};
  if (c.target.top1)
    return {
        "Promised",
        fmt::format("with greedy decoding this model and the original pick the same token at least {}% of the time, "
                    "{}; measured: {}, {}.",
                    of_100(*c.target.top1), where_words(c), of_100(c.promised.top1.value) + "%", measured_words(c))};
  return {"Measured",
          fmt::format("no overlap was asked for; what was found {}: {}.", where_words(c), measured_words(c))};
}

std::string accuracy_words(const CertifiedTasks& t) {
  return fmt::format(
      "at least {}% of the right answers are kept; measured: {}%, on {} questions that nothing was chosen by, and with "
      "{:g}% certainty not below {}%.",
      of_100(1 - t.accuracy_drop), of_100(t.recovery.value), t.asked.check, 100 * certainty_after(t.plans_checked),
      least_of_100(t.recovery));
}

// Says what is sure of the mean: what was promised, where plans were tested by that. The interval of the plan that held
// last was chosen by its holding, so that its own end is right a little less often than the promise is.
std::string sure_of(const Certificate& c) {
  if (c.met && c.target.ear) return fmt::format("overlaps by no less than {}%", of_100(*c.target.ear));
  if (c.met && c.target.kl) return fmt::format("has a KL of no more than {:g} nats a token", *c.target.kl);
  if (c.met && c.target.top1)
    return fmt::format("gets the same greedy token no less than {}% of the time", of_100(*c.target.top1));
  return fmt::format("overlaps by no less than {}%", least_of_100(c.promised.ear));
}

// Says by which tests the plan was chosen, and what their errors are together (ladder_step.h).
std::string tests_words(const Certificate& c) {
  if (c.ladder.empty()) return "";
  return fmt::format(
      "; {} tested on this text, in an order that was fixed before, and this one passed at a level of {:g}%. A plan "
      "below the promise passes in at most {:g}% of all runs among the plan that was expected to hold and smaller "
      "ones, "
      "in {:g}% among larger ones, which are tested where it fails, and so in {:g}% together; other targets and other "
      "runs on the same text each have that chance by themselves",
      c.ladder.size() == 1 ? "one plan was" : fmt::format("{} plans were", c.ladder.size()),
      100 * certified_level(c.ladder), 100 * kExpectedLevel, 100 * kLargerLevel, 100 * kWholeLevel);
}

std::string sure_words(const Certificate& c) {
  std::string means = "one more document of any of these kinds " + sure_of(c);
  if (c.promise != Promise::document) {
    std::vector<std::string> next;
    for (const DomainFidelity& d : c.domains)
      next.push_back(fmt::format("{}% in {}", least_of_100(d.document_ear), d.domain));
    means =
        fmt::format("more text of this sort {} on average, and one new document alone overlaps by no less than {}{}",
                    sure_of(c), listed(next), next.size() > 1 ? ", each of these by itself" : "");
  }
  // A test at a lower level than the whole leaves room for the other sequence of plans.
  const double certainty = c.ladder.empty() ? 1 - (1 - c.promised.confidence) / 2 : 1 - kWholeLevel;
  return fmt::format("with {:g}% certainty, judged by how much these {} differ from each other, {}{}.", 100 * certainty,
                     units_of(c), means, tests_words(c));
}

// Says what documents as many as these may hold none of, by the domain that has the fewest. No interval that is made of
// them knows of it.
std::string rare_words(const Certificate& c) {
  const auto fewest = std::min_element(c.domains.begin(), c.domains.end(),
                                       [](const auto& a, const auto& b) { return a.documents < b.documents; });
  if (fewest == c.domains.end()) return "";
  return fmt::format(
      "a sort of text that makes up less than {:.1f}% of its kind: the {} {} of {} may hold none of it, and the "
      "certainty "
      "above does not cover it; ",
      100 * largest_unseen_share(fewest->documents, kWholeLevel), fewest->documents, units_of(c), fewest->domain);
}

std::string untested_words(const Certificate& c) {
  return fmt::format(
      "{}{}other kinds of text and other languages; pieces longer than {} tokens; other programs, processors and "
      "number "
      "formats than those that measured; and whether answers are right: the original's mistakes are kept.",
      c.passages ? fmt::format("documents other than the {} from which these passages are; ", files_of_passages(c))
                 : "",
      rare_words(c), c.context);
}

}  // namespace

std::vector<PlainWords> in_plain_words(const Certificate& c, bool kept) {
  std::vector<std::string> kinds;
  for (const DomainFidelity& d : c.domains)
    kinds.push_back(fmt::format("{} ({} {}, {} tokens)", d.domain, d.documents, units_of(c), d.tokens));
  std::vector<PlainWords> words;
  if (c.tasks) words.push_back({"Promised of answers", accuracy_words(*c.tasks)});
  words.push_back(promised_words(c, kept));
  words.push_back({"On what text", fmt::format("{}, read in pieces of up to {} tokens. {}", listed(kinds), c.context,
                                               overlap_words(c.overlap))});
  words.push_back({"How sure", sure_words(c)});
  for (PlainWords& beyond : words_beyond_means(c)) words.push_back(std::move(beyond));
  if (c.draft)
    words.push_back(
        {"With a draft",
         fmt::format("the draft \"{}\" changes no token that the model chooses; of {} tokens that it guessed the model "
                     "took {}%.",
                     c.draft->draft, c.draft->judged, of_100(c.draft->acceptance))});
  words.push_back({"Not tested", untested_words(c)});
  return words;
}

std::string percent_with_interval(const Estimate& e) {
  const std::string value = fmt::format("{:.2f}%", 100 * e.value);
  if (!std::isfinite(e.ci95.low) || !std::isfinite(e.ci95.high)) return value;
  return fmt::format("{} [{:.2f}, {:.2f}]", value, 100 * e.ci95.low, 100 * e.ci95.high);
}

}  // namespace fidelio
