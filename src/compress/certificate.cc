#include "compress/certificate.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "compress/job.h"
#include "core/error.h"
#include "eval/statistics/clusters.h"

namespace fidelio {
namespace {

Measurement measurement_of(const DomainFidelity& d, Promise promise) {
  if (promise == Promise::document) return {d.document_ear, d.document_kl, 0};
  return {d.ear, d.kl, 0};
}

// Of every end the worst domain's: where EAR and KL have different ones, both must do. Its name is of EAR.
std::pair<std::string, Measurement> worst_of(const std::vector<DomainFidelity>& domains, Promise promise) {
  std::string worst;
  Measurement measured;
  for (const DomainFidelity& d : domains) {
    const Measurement m = measurement_of(d, promise);
    if (worst.empty() || !(m.kl.ci95.high <= measured.kl.ci95.high)) measured.kl = m.kl;
    if (worst.empty() || !(m.ear.ci95.low >= measured.ear.ci95.low)) measured.ear = m.ear, worst = d.domain;
  }
  return {worst, measured};
}

}  // namespace

Judged judge(std::span<const DocumentFidelity> documents, Promise promise, double confidence) {
  Judged judged{by_domain(documents), as_one(documents), "all", {}};
  if (promise == Promise::all)
    judged.measured = measurement_of(as_one(documents, confidence), promise);
  else
    std::tie(judged.worst, judged.measured) = worst_of(by_domain(documents, confidence), promise);
  return judged;
}

Measurement foreseen(std::span<const DocumentFidelity> documents, Promise promise, double confidence,
                     const DocumentCounts& certificate) {
  if (promise == Promise::all) return measurement_of(as_one(documents, confidence, certificate), promise);
  return worst_of(by_domain(documents, confidence, certificate), promise).second;
}

double confidence_of_look(int look) { return 1 - 0.05 * std::pow(0.5, look - 1); }

double widening(const TextSet& set) {
  const DocumentCounts documents = set.counts();
  int64_t fewest = 0;
  for (const auto& [domain, count] : documents) fewest = fewest == 0 ? count : std::min(fewest, count);
  if (fewest < 2) return std::numeric_limits<double>::infinity();
  const auto domains = static_cast<double>(documents.size());
  const auto reach = [](double n) { return student_quantile(0.975, n - 1) / std::sqrt(n); };
  return std::max(1.0, reach(static_cast<double>(fewest)) / reach(std::max(2.0, kEnoughDocuments / domains)));
}

std::string few_documents_text(const TextSet& set) {
  const auto documents = static_cast<int64_t>(set.documents.size());
  if (documents >= kEnoughDocuments && set.windows >= kEnoughWindows && !set.passages()) return "";
  const std::string other = "may not hold for other documents";
  if (documents >= kEnoughDocuments && set.windows >= kEnoughWindows)
    return "these are passages of few documents: intervals " + other;
  return fmt::format(
      "only {} {} with {} windows of text ({} and {} or more are recommended): intervals are about {:.1f} times "
      "wider{}",
      documents, set.passages() ? "passages" : "documents", set.windows, kEnoughDocuments, kEnoughWindows,
      widening(set), set.passages() ? ", and " + other : "");
}

namespace {

nlohmann::json kernels_of(const Runner& served, Activations activations) {
  std::set<std::string> kernels;
  for (LinearId id : linears_of(served.config())) kernels.insert(served.kernel_of(id, activations));
  return kernels;
}

}  // namespace

nlohmann::json make_certificate(const Target& target, const Certified& c, const Runner& served,
                                const std::string& reference_sha256, const std::vector<std::string>& sources) {
  const double confidence = confidence_of_look(c.looks);
  const Judged judged = judge(documents_of(c.report, c.set), c.promise, confidence);
  nlohmann::json wanted = nlohmann::json::object(), domains = nlohmann::json::array(), texts = nlohmann::json::array();
  if (target.ear) wanted["ear"] = *target.ear;
  if (target.kl) wanted["kl"] = *target.kl;
  for (const DomainFidelity& d : judged.domains) domains.push_back(to_json(d));
  for (const std::string& source : sources) texts.push_back({{"name", source}});
  const Activations activations = c.report.options.candidate_mode.activations;
  return {{"target", wanted},
          {"promise", std::string(name_of(c.promise))},
          {"met", meets(judged.measured, target)},
          {"promised",
           {{"domain", judged.worst},
            {"confidence", confidence},
            {"ear", to_json(judged.measured.ear)},
            {"kl", to_json(judged.measured.kl)}}},
          {"ear", to_json(judged.all.ear)},
          {"kl", to_json(judged.all.kl)},
          {"top1", to_json(judged.all.top1)},
          {"next_document", {{"ear", to_json(judged.all.document_ear)}, {"kl", to_json(judged.all.document_kl)}}},
          {"domains", domains},
          {"perplexity_ratio", to_json(c.report.perplexity_ratio())},
          {"tokens", c.report.positions()},
          {"windows", c.report.windows.size()},
          {"documents", c.set.documents.size()},
          {"passages", c.set.passages()},
          {"wider", widening(c.set)},
          {"context", c.report.options.windows.context},
          {"texts", texts},
          {"places", place_names(c.set)},
          {"sha256", c.set.sha256},
          {"activations", std::string(name_of(activations))},
          {"kv", std::string(name_of(served.options().kv))},
          {"kernels", kernels_of(served, activations)},
          {"floor", c.floor},
          {"draft", nullptr},
          {"looks", c.looks},
          {"bootstrap", {{"unit", "document"}, {"seed", 0}}},
          {"reference_sha256", reference_sha256}};
}

namespace {

std::string of_100(const nlohmann::json& share) {
  return share.is_null() ? "?" : fmt::format("{:.2f}", 100 * share.get<double>());
}
// Writes the lower end of an interval in percent; it is never rounded up.
std::string least_of_100(const nlohmann::json& estimate) {
  const nlohmann::json& low = estimate.at("ci95")[0];
  return low.is_null() ? "?" : fmt::format("{:.2f}", std::floor(1e4 * low.get<double>() + 1e-6) / 100);
}

std::string listed(const std::vector<std::string>& parts) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  return text;
}

// Says in which text the overlap is promised or was measured.
std::string where_words(const nlohmann::json& c) {
  const auto promise = c.at("promise").get<std::string>();
  return promise == "all"             ? "over all the text named here together"
         : promise == "document"      ? "in a new document of any kind named here"
         : c.at("domains").size() > 1 ? "in every kind of text named here"
                                      : "in text of the kind named here";
}

// The figure itself, and of several domains the one in which it is lowest; what a reader at temperature 0 sees beside it.
std::string measured_words(const nlohmann::json& c) {
  const nlohmann::json& promised = c.at("promised");
  const bool named = c.at("promise") != "all" && c.at("domains").size() > 1;
  return fmt::format("{}% overlap (EAR){}. With greedy decoding the two pick the same token {}% of the time",
                     of_100(promised.at("ear").at("value")),
                     named ? fmt::format(" in {}, where it is lowest", promised.at("domain").get<std::string>()) : "",
                     of_100(c.at("top1").at("value")));
}

// Says what was promised and what was measured, or that the promise is not kept.
PlainWords promised_words(const nlohmann::json& c, bool kept) {
  const nlohmann::json &target = c.at("target"), &promised = c.at("promised");
  const bool of_ear = target.contains("ear"), of_kl = target.contains("kl");
  if (!kept) {
    const std::string claimed = of_ear  ? fmt::format("at least {}% overlap", of_100(target.at("ear")))
                                : of_kl ? fmt::format("KL of at most {:g} nats a token", target.at("kl").get<double>())
                                        : std::string("the figures that the file holds");
    const std::string found = of_ear || !of_kl
                                  ? fmt::format("{}% (lower end {}%)", of_100(promised.at("ear").at("value")),
                                                least_of_100(promised.at("ear")))
                                  : fmt::format("KL {:.6f}", promised.at("kl").at("value").get<double>());
    return {"Claimed", fmt::format("{}; on this text {}{}: NOT kept.", claimed, found,
                                   c.at("met").get<bool>() ? ", which is not what the certificate says" : "")};
  }
  if (of_ear)
    return {"Promised",
            fmt::format("the next-token probabilities of this model and of the original overlap by at least "
                        "{}% on average, {}; measured: {}.",
                        of_100(target.at("ear")), where_words(c), measured_words(c))};
  if (of_kl)
    return {"Promised",
            fmt::format("KL of at most {:g} nats a token, {}; measured: KL {:.6f}, {}.", target.at("kl").get<double>(),
                        where_words(c), promised.at("kl").at("value").get<double>(), measured_words(c))};
  return {"Measured",
          fmt::format("no overlap was asked for; what was found {}: {}.", where_words(c), measured_words(c))};
}

std::string accuracy_words(const nlohmann::json& t) {
  return fmt::format(
      "at least {}% of the right answers are kept; measured: {}%, on {} questions that nothing was chosen by, and with "
      "{:g}% certainty not below {}%.",
      of_100(1 - t.at("accuracy_drop").get<double>()), of_100(t.at("recovery").at("value")),
      t.at("questions").at("check").get<int64_t>(), 100 * (1 - (1 - t.at("confidence").get<double>()) / 2),
      least_of_100(t.at("recovery")));
}

std::string sure_words(const nlohmann::json& c) {
  const nlohmann::json& promised = c.at("promised");
  const std::string least = least_of_100(promised.at("ear"));
  const int looks = c.at("looks").get<int>();
  std::string means = fmt::format("one more document of any of these kinds overlaps by no less than {}%", least);
  if (c.at("promise") != "document") {
    std::vector<std::string> next;
    for (const nlohmann::json& d : c.at("domains"))
      next.push_back(
          fmt::format("{}% in {}", least_of_100(d.at("next_document").at("ear")), d.at("domain").get<std::string>()));
    means = fmt::format(
        "more text of this sort overlaps by no less than {}% on average, and one new document alone by no less than {}",
        least, listed(next));
  }
  return fmt::format(
      "with {:g}% certainty, judged by how much these {} differ from each other, {}{}.",
      100 * (1 - (1 - promised.at("confidence").get<double>()) / 2),
      c.at("passages").get<bool>() ? "passages" : "documents", means,
      looks == 1 ? ""
                 : fmt::format("; this was test {} on this text, and each took twice the caution of the last", looks));
}

}  // namespace

std::vector<PlainWords> in_plain_words(const nlohmann::json& c, bool kept) {
  const bool passages = c.at("passages").get<bool>();
  const auto context = c.at("context").get<int64_t>();
  std::vector<std::string> kinds;
  for (const nlohmann::json& d : c.at("domains"))
    kinds.push_back(fmt::format("{} ({} {}, {} tokens)", d.at("domain").get<std::string>(),
                                d.at("documents").get<int64_t>(), passages ? "passages" : "documents",
                                d.at("tokens").get<int64_t>()));
  std::vector<PlainWords> words;
  if (c.contains("tasks")) words.push_back({"Promised of answers", accuracy_words(c.at("tasks"))});
  words.push_back(promised_words(c, kept));
  words.push_back(
      {"On what text", fmt::format("{}, read in pieces of up to {} tokens. This model was not made, tried or "
                                   "chosen with any of it.",
                                   listed(kinds), context)});
  words.push_back({"How sure", sure_words(c)});
  if (const nlohmann::json& draft = c.at("draft"); !draft.is_null())
    words.push_back(
        {"With a draft",
         fmt::format("the draft \"{}\" changes no token that the model chooses; of {} tokens that it guessed the model "
                     "took {}%.",
                     draft.at("draft").get<std::string>(), draft.at("judged").get<int64_t>(),
                     of_100(draft.at("acceptance")))});
  words.push_back(
      {"Not tested",
       fmt::format("{}other kinds of text and other languages; pieces longer than {} tokens; other "
                   "programs, processors and number formats than those that measured; and whether answers are right: "
                   "the original's mistakes are kept.",
                   passages ? "other documents than the few that these passages come from; " : "", context)});
  return words;
}

Estimate read_estimate(const nlohmann::json& json) {
  const auto end = [&](size_t i) {
    const nlohmann::json& at = json.at("ci95").at(i);
    return at.is_null() ? std::nan("") : at.get<double>();
  };
  return {json.at("value").get<double>(), {end(0), end(1)}};
}

namespace {

std::vector<ClaimedFigure> read_figures(const nlohmann::json& certificate) {
  std::vector<ClaimedFigure> figures;
  const auto if_there = [](const nlohmann::json& json, const char* key) {
    const double none = std::nan("");
    return json.contains(key) ? read_estimate(json.at(key)) : Estimate{none, {none, none}};
  };
  const auto add = [&](const std::string& of, const nlohmann::json& json) {
    figures.push_back({of, read_estimate(json.at("ear")), read_estimate(json.at("kl")), if_there(json, "top1"),
                       if_there(json, "perplexity_ratio")});
  };
  const auto add_with_next = [&](const std::string& of, const nlohmann::json& json) {
    add(of, json);
    if (const auto next = json.find("next_document"); next != json.end()) add("a new document of " + of, *next);
  };
  add_with_next("all text", certificate);
  for (const nlohmann::json& d : certificate.at("domains")) add_with_next(d.at("domain").get<std::string>(), d);
  add("the text promised of", certificate.at("promised"));
  return figures;
}

// Whether a claimed loss (KL, 1 - EAR ..) or an end of its interval lies below the measured one by more than kernels of
// another processor explain. These move a loss far less than half the interval of its documents; but that is narrow
// where documents are much alike, and of nothing where they lose nothing. An end that is not claimed is not understated.
// `least`: what they may always move it by.
bool understated(const Estimate& claimed, const Estimate& measured, double least = 1e-6) {
  const double half = (measured.ci95.high - measured.ci95.low) / 2;
  const double allowed = std::max(std::isfinite(half) ? half : 0, 0.02 * measured.value) + least;
  const auto within = [&](double claim, double found) { return std::isnan(claim) || found - claim <= allowed; };
  return !(within(claimed.value, measured.value) && within(claimed.ci95.low, measured.ci95.low) &&
           within(claimed.ci95.high, measured.ci95.high));
}

Estimate loss_of(const Estimate& kept) { return {1 - kept.value, {1 - kept.ci95.high, 1 - kept.ci95.low}}; }

std::string said(const char* figure, const std::string& of, const Estimate& claimed, const Estimate& measured) {
  return fmt::format("it claims {} {:.6f} [{:.6f}, {:.6f}] of {}, measured is {:.6f} [{:.6f}, {:.6f}]", figure,
                     claimed.value, claimed.ci95.low, claimed.ci95.high, of, measured.value, measured.ci95.low,
                     measured.ci95.high);
}

}  // namespace

std::string not_borne_out(const Claim& claim, const nlohmann::json& measured) {
  for (const auto& [key, claimed] : {std::pair{"documents", claim.documents}, std::pair{"windows", claim.windows},
                                     std::pair{"tokens", claim.tokens}})
    if (const auto there = measured.at(key).get<int64_t>(); there != claimed)
      return fmt::format("it counts {} {}, of those that it names there are {}", claimed, key, there);
  const std::vector<ClaimedFigure> found = read_figures(measured);
  for (const ClaimedFigure& c : claim.figures)
    for (const ClaimedFigure& m : found) {
      if (m.of != c.of) continue;  // a domain may be named otherwise where its text has moved
      if (understated(loss_of(c.ear), loss_of(m.ear))) return said("EAR", c.of, c.ear, m.ear);
      if (understated(c.kl, m.kl)) return said("KL", c.of, c.kl, m.kl);
      // Tokens that are as good as equal change places: a few, whatever the interval is.
      if (understated(loss_of(c.top1), loss_of(m.top1), 3.0 / static_cast<double>(claim.tokens)))
        return said("top1", c.of, c.top1, m.top1);
      if (understated(loss_of(c.perplexity_ratio), loss_of(m.perplexity_ratio)))
        return said("a perplexity ratio", c.of, c.perplexity_ratio, m.perplexity_ratio);
    }
  return "";
}

Claim read_claim(const Checkpoint& checkpoint) {
  const nlohmann::json provenance = nlohmann::json::parse(checkpoint.provenance());
  check(provenance.is_object() && provenance.contains("certificate"),
        "{} carries no certificate; `fidelio compress` writes one", checkpoint.folder());
  Claim claim;
  claim.json = provenance["certificate"];
  check(!claim.json.is_object() || !claim.json.contains("ear") || claim.json.contains("places") ||
            !claim.json.contains("bootstrap_seed"),
        "{}: its certificate was made by windows, not by documents, by an earlier fidelio; compress the model again",
        checkpoint.folder());
  try {
    const nlohmann::json& json = claim.json;
    const nlohmann::json& target = json.at("target");
    check(target.is_object(), "{}: the target of the certificate is no object: the file is damaged",
          checkpoint.folder());
    if (target.contains("ear")) claim.target.ear = target.at("ear").get<double>();
    if (target.contains("kl")) claim.target.kl = target.at("kl").get<double>();
    claim.promise =
        parse_option<Promise>(fmt::format("{}: the certificate is damaged, its promise", checkpoint.folder()),
                              json.at("promise").get<std::string>());
    claim.ear = read_estimate(json.at("ear"));
    claim.kl = read_estimate(json.at("kl"));
    claim.promised_ear = read_estimate(json.at("promised").at("ear"));
    claim.worst = json.at("promised").at("domain").get<std::string>();
    claim.figures = read_figures(json);
    claim.documents = json.at("documents").get<int64_t>();
    claim.windows = json.at("windows").get<int64_t>();
    claim.tokens = json.at("tokens").get<int64_t>();
    for (const auto& text : json.at("texts")) claim.sources.push_back(text.at("name").get<std::string>());
    claim.places = json.at("places").get<std::vector<std::string>>();
    claim.context = json.at("context").get<int64_t>();
    claim.activations = json.at("activations").get<std::string>();
    claim.kv = json.at("kv").get<std::string>();
    claim.reference_sha256 = json.at("reference_sha256").get<std::string>();
    claim.looks = json.at("looks").get<int>();
  } catch (const nlohmann::json::exception& e) {
    throw Error("{}: the certificate cannot be read, the file is damaged: {}", checkpoint.folder(), e.what());
  }
  const int64_t most = checkpoint.config().max_positions;
  check(claim.context >= 2 && claim.context <= most,
        "{}: the certificate speaks of windows of {} tokens, expected 2 to {}: the file is damaged",
        checkpoint.folder(), claim.context, most);
  check(claim.looks >= 1 && claim.looks <= kMostLooks, "{}: the certificate counts {} tests: the file is damaged",
        checkpoint.folder(), claim.looks);
  return claim;
}

}  // namespace fidelio
