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
  std::string text =
      fmt::format("{} windows of {} {}", set.windows, documents, set.passages() ? "passages" : "documents");
  if (documents < kEnoughDocuments || set.windows < kEnoughWindows)
    text += fmt::format(", where {} of {} documents are wanted: intervals are about {:.1f} times as wide",
                        kEnoughWindows, kEnoughDocuments, widening(set));
  if (set.passages()) text += "; passages of few documents say what holds in those documents, less of others";
  return text;
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

std::vector<std::string> in_plain_words(const nlohmann::json& c) {
  const auto percent = [](double share) { return fmt::format("{:.2f}", 100 * share); };
  const auto low = [](const nlohmann::json& e) {
    return e.at("ci95")[0].is_null() ? 0.0 : e.at("ci95")[0].get<double>();
  };
  const nlohmann::json& promised = c.at("promised");
  const auto promise = c.at("promise").get<std::string>();
  const std::string where = promise == "all"        ? "over all of the text together"
                            : promise == "document" ? "in a new document of any of the kinds of text below"
                                                    : fmt::format("in every kind of text below ({} is the worst)",
                                                                  promised.at("domain").get<std::string>());
  std::vector<std::string> lines;
  const double ear = promised.at("ear").at("value").get<double>();
  std::string first = fmt::format(
      "This model chooses the same next token as the one it was made from for {} of 100 tokens {}, if both are let "
      "choose as alike as their probabilities allow (expected acceptance rate, EAR).",
      percent(ear), where);
  if (c.at("target").contains("ear"))
    first += fmt::format(" At least {} of 100 were promised.", percent(c.at("target").at("ear").get<double>()));
  lines.push_back(first);
  std::vector<std::string> kinds;
  for (const nlohmann::json& d : c.at("domains"))
    kinds.push_back(
        fmt::format("{} ({} {}, {} tokens)", d.at("domain").get<std::string>(), d.at("documents").get<int64_t>(),
                    c.at("passages").get<bool>() ? "passages" : "documents", d.at("tokens").get<int64_t>()));
  std::string named;
  for (size_t i = 0; i < kinds.size(); ++i) named += (i == 0 ? "" : i + 1 == kinds.size() ? " and " : ", ") + kinds[i];
  lines.push_back(fmt::format(
      "That was measured on {}, none of which the search for this model had used; the windows are {} tokens long.",
      named, c.at("context").get<int64_t>()));
  lines.push_back(fmt::format(
      "We are {:g}% sure that it is no lower than {} of 100: documents were drawn again and again to see how much "
      "others would have changed it.{}",
      100 * (1 - (1 - promised.at("confidence").get<double>()) / 2), percent(low(promised.at("ear"))),
      c.at("looks").get<int>() == 1
          ? std::string(" These documents were looked at once.")
          : fmt::format(" These documents were looked at {} times, each time with twice the caution of the last.",
                        c.at("looks").get<int>())));
  std::string next;
  for (const nlohmann::json& d : c.at("domains"))
    next += fmt::format("{}{} in {}", next.empty() ? "" : ", ", percent(low(d.at("next_document").at("ear"))),
                        d.at("domain").get<std::string>());
  lines.push_back("A single new document may lie lower than the mean: with 97.5% confidence not below " + next + ".");
  lines.push_back(
      fmt::format("It was not tested on other kinds or sources of text, in other languages, on contexts longer than {} "
                  "tokens, with "
                  "other kernels or caches than those named here, nor for whether its answers are right: the "
                  "original's mistakes are kept.",
                  c.at("context").get<int64_t>()));
  return lines;
}

namespace {

Estimate read_estimate(const nlohmann::json& json) {
  const nlohmann::json& ci = json.at("ci95");
  return {json.at("value").get<double>(), {ci.at(0).get<double>(), ci.at(1).get<double>()}};
}

}  // namespace

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
  check(claim.looks >= 1 && claim.looks <= kMostLooks, "{}: the certificate counts {} looks: the file is damaged",
        checkpoint.folder(), claim.looks);
  return claim;
}

}  // namespace fidelio
