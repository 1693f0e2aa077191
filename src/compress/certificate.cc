#include "compress/certificate.h"

#include <set>

#include "core/file.h"
#include "core/hash.h"

namespace fidelio {

SplitTexts split_texts(const std::vector<std::string>& files, const Tokenizer& tokenizer, int64_t context) {
  SplitTexts split;
  split.context = context;
  for (const std::string& file : files) {
    const std::string text = read_text_file(file);
    const EvalText whole{file, sha256_hex(text), tokenizer.encode(text, false)};
    const std::vector<int32_t>& ids = whole.ids;
    EvalText half[2] = {{whole.name, whole.sha256, {}}, {whole.name, whole.sha256, {}}};
    const auto windows = static_cast<int64_t>(ids.size()) / context;
    check(windows >= 4,
          "{} has {} tokens, which is fewer than four windows of {}: too little to search on and certify with",
          whole.name, ids.size(), context);
    for (int64_t w = 0; w < windows; ++w) {
      std::vector<int32_t>& to = half[w % 2].ids;
      to.insert(to.end(), ids.begin() + w * context, ids.begin() + (w + 1) * context);
    }
    split.search.push_back(std::move(half[0]));
    split.certify.push_back(std::move(half[1]));
  }
  return split;
}

Measurement measurement_of(const FidelityReport& report) { return {report.ear(), report.kl(), 0}; }

nlohmann::json make_certificate(const Target& target, const FidelityReport& report, const Runner& served, int looks,
                                const std::string& reference_sha256, const std::vector<std::string>& files) {
  std::set<std::string> kernels;
  for (LinearId id : linears_of(served.config()))
    kernels.insert(served.kernel_of(id, report.options.candidate_mode.activations));
  nlohmann::json texts = nlohmann::json::array();
  for (size_t i = 0; i < report.text_names.size(); ++i)
    texts.push_back({{"name", files[i]}, {"sha256", report.text_sha256[i]}, {"windows", "odd"}});
  nlohmann::json wanted = nlohmann::json::object();
  if (target.ear) wanted["ear"] = *target.ear;
  if (target.kl) wanted["kl"] = *target.kl;
  return {{"target", wanted},
          {"met", meets(measurement_of(report), target)},
          {"ear", to_json(report.ear())},
          {"kl", to_json(report.kl())},
          {"top1", to_json(report.mean_of(&FidelitySums::agreements))},
          {"perplexity_ratio", to_json(report.perplexity_ratio())},
          {"tokens", report.positions()},
          {"windows", report.windows.size()},
          {"context", report.options.windows.context},
          {"texts", texts},
          {"activations", std::string(name_of(report.options.candidate_mode.activations))},
          {"kv", std::string(name_of(served.options().kv))},
          {"kernels", kernels},
          {"looks", looks},
          {"bootstrap_seed", report.options.bootstrap.seed},
          {"reference_sha256", reference_sha256}};
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
  try {
    const nlohmann::json& json = claim.json;
    const nlohmann::json& target = json.at("target");
    check(target.is_object(), "{}: the target of the certificate is no object: the file is damaged",
          checkpoint.folder());
    if (target.contains("ear")) claim.target.ear = target.at("ear").get<double>();
    if (target.contains("kl")) claim.target.kl = target.at("kl").get<double>();
    claim.ear = read_estimate(json.at("ear"));
    claim.kl = read_estimate(json.at("kl"));
    for (const auto& text : json.at("texts")) {
      claim.texts.push_back(text.at("name").get<std::string>());
      claim.text_sha256.push_back(text.at("sha256").get<std::string>());
    }
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
  return claim;
}

}  // namespace fidelio
