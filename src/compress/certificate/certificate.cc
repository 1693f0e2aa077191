#include "compress/certificate/certificate.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/certificate/judge.h"
#include "compress/job.h"
#include "core/error.h"
#include "eval/statistics/statistics.h"

namespace fidelio {
namespace {

using nlohmann::json;

template <typename T>
T read(const json& from, const char* key) {
  return from.at(key).get<T>();
}
Estimate estimate_at(const json& from, const char* key) { return estimate_from_json(from.at(key)); }

void put_figures(json& into, const Estimate& ear, const Estimate& kl, const Estimate& top1) {
  into["ear"] = to_json(ear);
  into["kl"] = to_json(kl);
  into["top1"] = to_json(top1);
}

// Reads what to_json(DomainFidelity) writes, and the same figures of all text, which name no domain.
DomainFidelity read_domain(const json& from, const std::string& name) {
  DomainFidelity d;
  d.domain = name;
  d.documents = read<int64_t>(from, "documents");
  d.windows = read<int64_t>(from, "windows");
  d.tokens = read<int64_t>(from, "tokens");
  d.ear = estimate_at(from, "ear");
  d.kl = estimate_at(from, "kl");
  d.top1 = estimate_at(from, "top1");
  d.document_ear = estimate_at(from.at("next_document"), "ear");
  d.document_kl = estimate_at(from.at("next_document"), "kl");
  if (const auto sampled = from.find("sampled"); sampled != from.end() && !sampled->is_null()) {
    d.ear_sampled = estimate_at(*sampled, "ear");
    d.kl_sampled = estimate_at(*sampled, "kl");
  }
  d.worst_document = read<std::string>(from.at("worst_document"), "name");
  d.worst_ear = read<double>(from.at("worst_document"), "ear");
  return d;
}

json floor_json(const FloorFigures& f) {
  json into = {{"windows", f.windows}, {"tokens", f.tokens}};
  put_figures(into, f.ear, f.kl, f.top1);
  return into;
}
FloorFigures read_floor(const json& from) {
  return {read<int64_t>(from, "windows"), read<int64_t>(from, "tokens"), estimate_at(from, "ear"),
          estimate_at(from, "kl"), estimate_at(from, "top1")};
}

json sequences_json(const SequencesUsed& s) {
  return {{"sequences", s.sequences}, {"tokens", s.tokens}, {"sha256", s.sha256}};
}
SequencesUsed read_sequences(const json& from) {
  return {read<int64_t>(from, "sequences"), read<int64_t>(from, "tokens"), read<std::string>(from, "sha256")};
}
json documents_json(const DocumentsUsed& d) {
  return {{"documents", d.documents},
          {"windows", d.windows},
          {"tokens", d.tokens},
          {"sha256", d.sha256},
          {"domains", d.domains}};
}
DocumentsUsed read_documents(const json& from) {
  return {read<int64_t>(from, "documents"), read<int64_t>(from, "windows"), read<int64_t>(from, "tokens"),
          read<std::string>(from, "sha256"), read<DocumentCounts>(from, "domains")};
}
json dealt_json(const TextDealt& d) {
  return {{"rule", d.rule}, {"sha256", d.sha256}, {"windows", d.windows}, {"left_out", d.left_out}};
}
TextDealt read_dealt(const json& from) {
  return {read<int>(from, "rule"), read<std::string>(from, "sha256"), read<int64_t>(from, "windows"),
          read<std::vector<std::string>>(from, "left_out")};
}
json sets_json(const CertifiedSets& s) {
  return {{"calibration", sequences_json(s.calibration)},
          {"search", sequences_json(s.search)},
          {"adjustment", documents_json(s.adjustment)},
          {"certificate", documents_json(s.certificate)},
          {"dealt", dealt_json(s.dealt)}};
}
CertifiedSets read_sets(const json& from) {
  return {read_sequences(from.at("calibration")), read_sequences(from.at("search")),
          read_documents(from.at("adjustment")), read_documents(from.at("certificate")), read_dealt(from.at("dealt"))};
}

json tasks_json(const CertifiedTasks& t) {
  return {{"file_sha256", t.asked.file_sha256},
          {"questions", {{"calibration", t.asked.calibration}, {"check", t.asked.check}}},
          {"sampling", t.asked.sampling},
          {"runs", t.asked.runs},
          {"accuracy_drop", t.accuracy_drop},
          {"calibration",
           {{"bits", t.calibration_bits},
            {"kl", to_json(t.calibration_kl)},
            {"recovery", to_json(t.calibration_recovery)},
            {"alpha", to_json(t.alpha)},
            {"rho", t.rho}}},
          {"kl_allowed", t.kl_allowed},
          {"kl", to_json(t.kl)},
          {"predicted_recovery", to_json(t.predicted_recovery)},
          {"recovery", to_json(t.recovery)},
          {"confidence", t.confidence},
          {"looks", t.plans_checked}};
}
CertifiedTasks read_tasks(const json& from) {
  CertifiedTasks t;
  const json &questions = from.at("questions"), &point = from.at("calibration");
  t.asked = {read<std::string>(from, "file_sha256"), read<std::string>(from, "sampling"),
             read<int64_t>(questions, "calibration"), read<int64_t>(questions, "check"), read<int64_t>(from, "runs")};
  t.accuracy_drop = read<double>(from, "accuracy_drop");
  t.calibration_bits = read<double>(point, "bits");
  t.calibration_kl = estimate_at(point, "kl");
  t.calibration_recovery = estimate_at(point, "recovery");
  t.alpha = estimate_at(point, "alpha");
  t.rho = read<double>(point, "rho");
  t.kl_allowed = read<double>(from, "kl_allowed");
  t.kl = estimate_at(from, "kl");
  t.predicted_recovery = estimate_at(from, "predicted_recovery");
  t.recovery = estimate_at(from, "recovery");
  t.confidence = read<double>(from, "confidence");
  t.plans_checked = read<int>(from, "looks");
  return t;
}

json draft_json(const CertifiedDraft& d) {
  return {{"draft", d.draft},
          {"bytes_share", d.bytes_share},
          {"ear", to_json(d.ear)},
          {"judged", d.judged},
          {"temperature", d.temperature},
          {"accepted", d.accepted},
          {"acceptance", d.acceptance},
          {"expected_acceptance", d.expected_acceptance}};
}

Target read_target(const json& from) {
  Target target;
  check(from.is_object(), "its target is no object");
  if (from.contains("ear")) target.ear = read<double>(from, "ear");
  if (from.contains("kl")) target.kl = read<double>(from, "kl");
  if (from.contains("top1")) target.top1 = read<double>(from, "top1");
  return target;
}

template <typename Read>
auto read_optional(const json& from, const char* key, Read how) -> std::optional<decltype(how(from))> {
  const auto there = from.find(key);
  if (there == from.end() || there->is_null()) return std::nullopt;
  return how(*there);
}

Certificate read_all(const json& from) {
  Certificate c;
  c.target = read_target(from.at("target"));
  c.promise = parse_option<Promise>("its promise", read<std::string>(from, "promise"));
  const json& promised = from.at("promised");
  c.promised = {read<std::string>(promised, "domain"), read<double>(promised, "confidence"),
                estimate_at(promised, "ear"), estimate_at(promised, "kl"), estimate_at(promised, "top1")};
  c.met = read<bool>(from, "met");
  c.all = read_domain(from, "all");
  for (const json& d : from.at("domains")) c.domains.push_back(read_domain(d, read<std::string>(d, "domain")));
  c.perplexity_ratio = estimate_at(from, "perplexity_ratio");
  c.passages = read<bool>(from, "passages");
  c.wider = from.at("wider").is_null() ? std::numeric_limits<double>::infinity() : read<double>(from, "wider");
  c.context = read<int64_t>(from, "context");
  for (const json& text : from.at("texts")) c.texts.push_back(read<std::string>(text, "name"));
  c.places = read<std::vector<std::string>>(from, "places");
  c.places_sha256 = read<std::string>(from, "sha256");
  c.activations = read<std::string>(from, "activations");
  c.kv = read<std::string>(from, "kv");
  c.kernels = read<std::vector<std::string>>(from, "kernels");
  c.sets = read_optional(from, "sets", read_sets);
  c.overlap = read_optional(from, "overlap", overlap_from_json);
  c.floor = read_optional(from, "floor", read_floor);
  c.tasks = read_optional(from, "tasks", read_tasks);
  c.draft = read_optional(from, "draft", certified_draft);
  for (const json& step : from.at("ladder")) c.ladder.push_back(ladder_step_from_json(step));
  c.tails = tails_from_json(from.at("tails"));
  c.sampling = read_optional(from, "sampled", sampling_from_json);
  c.answers = read_optional(from, "answers", answers_from_json);
  c.reference_sha256 = read<std::string>(from, "reference_sha256");
  return c;
}

}  // namespace

CertifiedDraft certified_draft(const json& measured) {
  CertifiedDraft d;
  d.draft = read<std::string>(measured, "draft");
  d.bytes_share = read<double>(measured, "bytes_share");
  d.temperature = read<double>(measured, "temperature");
  d.judged = read<int64_t>(measured, "judged");
  d.accepted = read<int64_t>(measured, "accepted");
  d.acceptance = read<double>(measured, "acceptance");
  d.expected_acceptance = read<double>(measured, "expected_acceptance");
  d.ear = estimate_at(measured, "ear");
  return d;
}

json to_json(const Certificate& c) {
  json wanted = json::object(), domains = json::array(), texts = json::array(), ladder = json::array();
  if (c.target.ear) wanted["ear"] = *c.target.ear;
  if (c.target.kl) wanted["kl"] = *c.target.kl;
  if (c.target.top1) wanted["top1"] = *c.target.top1;
  for (const DomainFidelity& d : c.domains) domains.push_back(to_json(d));
  for (const std::string& text : c.texts) texts.push_back({{"name", text}});
  for (const LadderStep& s : c.ladder) ladder.push_back(to_json(s));
  json into = to_json(c.all);  // the figures of all text stand at the top
  into.erase("domain");
  if (c.sampling) into["sampled"].update(sampling_json(*c.sampling));
  into.update({{"schema", Certificate::kSchema},
               {"target", wanted},
               {"promise", std::string(name_of(c.promise))},
               {"met", c.met},
               {"promised",
                {{"domain", c.promised.domain},
                 {"confidence", c.promised.confidence},
                 {"ear", to_json(c.promised.ear)},
                 {"kl", to_json(c.promised.kl)},
                 {"top1", to_json(c.promised.top1)}}},
               {"domains", domains},
               {"perplexity_ratio", to_json(c.perplexity_ratio)},
               {"passages", c.passages},
               {"wider", c.wider},
               {"context", c.context},
               {"texts", texts},
               {"places", c.places},
               {"sha256", c.places_sha256},
               {"activations", c.activations},
               {"kv", c.kv},
               {"kernels", c.kernels},
               {"floor", c.floor ? floor_json(*c.floor) : json()},
               {"overlap", c.overlap ? to_json(*c.overlap) : json()},
               {"draft", c.draft ? draft_json(*c.draft) : json()},
               {"ladder", ladder},
               {"tails", to_json(c.tails)},
               {"answers", c.answers ? to_json(*c.answers) : json()},
               {"bootstrap", {{"unit", "document"}, {"seed", 0}}},
               {"reference_sha256", c.reference_sha256}});
  if (c.sets) into["sets"] = sets_json(*c.sets);
  if (c.tasks) into["tasks"] = tasks_json(*c.tasks);
  return into;
}

Certificate certificate_from_json(const json& from, const std::string& of) {
  check(from.is_object(), "{}: its certificate is no object: the file is damaged", of);
  const json schema = from.value("schema", json());
  check(schema == Certificate::kSchema,
        "{}: its certificate has schema {}, and this fidelio reads schema {}: another version of fidelio made it; "
        "certify with that one, or compress the model again",
        of, schema.is_null() ? "none" : schema.dump().substr(0, 20), Certificate::kSchema);
  try {
    Certificate c = read_all(from);
    check_ladder(c.ladder);
    const double confidence = confidence_at(certified_level(c.ladder));
    check(c.promised.confidence == confidence, "its confidence is {:g}, and that of its test {:g}",
          c.promised.confidence, confidence);
    return c;
  } catch (const json::exception& e) {
    throw Error("{}: the certificate cannot be read, the file is damaged: {}", of, e.what());
  } catch (const Error& e) {
    throw Error("{}: the certificate is damaged: {}", of, e.what());
  }
}

namespace {
bool holds_certificate(const json& provenance) { return provenance.is_object() && provenance.contains("certificate"); }
}  // namespace

bool has_certificate(const Checkpoint& checkpoint) { return holds_certificate(json::parse(checkpoint.provenance())); }

Certificate read_certificate(const Checkpoint& checkpoint) {
  const json provenance = json::parse(checkpoint.provenance());
  check(holds_certificate(provenance), "{} carries no certificate; `fidelio compress` writes one", checkpoint.folder());
  Certificate c = certificate_from_json(provenance["certificate"], checkpoint.folder());
  const int64_t most = checkpoint.config().max_positions;
  check(c.context >= 2 && c.context <= most,
        "{}: the certificate speaks of windows of {} tokens, expected 2 to {}: the file is damaged",
        checkpoint.folder(), c.context, most);
  return c;
}

}  // namespace fidelio
