#include "app/certificate.h"
#include "app/common.h"
#include "core/thread_pool.h"

namespace fidelio::app {
namespace {

struct Certify {
  RunOptions run;
  std::string reference, json;
  std::vector<std::string> texts;
};

// Measures again what the certificate claims, from the file, and says whether it holds.
void certify(const Certify& o) {
  const TextModel model = open_model(o.run.model);
  const nlohmann::json provenance = nlohmann::json::parse(model.checkpoint.provenance());
  check(provenance.contains("certificate"), "{} carries no certificate; `fidelio compress` writes one", o.run.model);
  const nlohmann::json& claimed = provenance["certificate"];
  const Checkpoint reference = Checkpoint::open(o.reference);
  check(reference.sha256() == claimed.at("reference_sha256").get<std::string>(),
        "{} is not the model the certificate speaks of (its SHA-256 differs)", o.reference);
  std::vector<std::string> files = o.texts;
  if (files.empty())
    for (const auto& text : claimed.at("texts")) files.push_back(text.at("name"));
  check(files.size() == claimed.at("texts").size(), "the certificate speaks of {} texts, {} were given",
        claimed.at("texts").size(), files.size());
  SplitTexts texts = split_texts(files, model.tokenizer, claimed.at("context"));
  for (size_t i = 0; i < files.size(); ++i)
    check(texts.certify[i].sha256 == claimed["texts"][i].at("sha256").get<std::string>(),
          "{} is not the text the certificate speaks of (its SHA-256 differs)", files[i]);

  RunnerOptions options = runner_options(o.run);
  options.mode = parse_activations(claimed.at("activations"));
  options.kv = parse_kv(claimed.at("kv"));
  options.max_rows = std::max<int64_t>(2048, texts.context);
  options.cache_tokens = 2 * options.max_rows;
  const auto served = make_runner(o.run, model.checkpoint, options);
  options.kv = KvFormat::f32;
  const auto exact = make_runner(o.run, reference, options);
  ThreadPool pool(o.run.threads);
  CompareOptions compare;
  compare.windows.context = texts.context;
  compare.candidate_mode = options.mode;
  const FidelityReport report = compare_models(*exact, *served, texts.certify, compare, pool);
  Target target;
  if (claimed["target"].contains("ear")) target.ear = claimed["target"]["ear"].get<double>();
  if (claimed["target"].contains("kl")) target.kl = claimed["target"]["kl"].get<double>();
  const nlohmann::json measured =
      make_certificate(target, report, *served, claimed.at("looks"), reference.sha256(), files);
  // Without a target (--bits, --bytes) the claim is the number itself.
  const double ear = report.ear().value;
  const bool holds =
      measured["met"].get<bool>() &&
      (target.ear || target.kl ||
       (ear >= claimed["ear"]["ci95"][0].get<double>() && ear <= claimed["ear"]["ci95"][1].get<double>()));
  write_json(o.json, {{"claimed", claimed}, {"measured", measured}, {"holds", holds}});
  if (!quiet(o.json))
    fmt::print("claimed  EAR {:.6f}, KL {:.8f}\nmeasured EAR {:.6f}, KL {:.8f}\nThe certificate {}.\n",
               claimed["ear"]["value"].get<double>(), claimed["kl"]["value"].get<double>(), report.ear().value,
               report.kl().value, holds ? "holds" : "does not hold");
  check(holds, "{}: what is certified is not met", o.run.model);
}

}  // namespace

void add_certify(CLI::App& app) {
  auto o = std::make_shared<Certify>();
  CLI::App* verb = app.add_subcommand("certify", "Measure a checkpoint's certificate again");
  verb->footer("Example:\n  fidelio certify quill-99 --reference models/quill-26m");
  add_model(*verb, o->run);
  verb->add_option("--reference", o->reference, "The original model")->required();
  verb->add_option("--text", o->texts, "The certificate's text, if it has moved; may be repeated");
  add_device(*verb, o->run);
  add_json(*verb, o->json);
  verb->callback([o] { certify(*o); });
}

}  // namespace fidelio::app
