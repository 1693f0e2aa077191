#include "app/common.h"
#include "compress/certificate.h"
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
  const Claim claim = read_claim(model.checkpoint);
  // Before anything is measured: a changed byte may cost so little that measuring does not tell.
  check(!model.checkpoint.written_weights_sha256().empty(),
        "{} does not say what its weights' SHA-256 is: an earlier fidelio wrote it; compress the model again",
        o.run.model);
  check(model.checkpoint.weights_sha256() == model.checkpoint.written_weights_sha256(),
        "{}: its weights are not those that were certified (their SHA-256 differs): the file is damaged or was changed",
        o.run.model);
  const Checkpoint reference = Checkpoint::open(o.reference);
  check(reference.sha256() == claim.reference_sha256,
        "{} is not the model the certificate speaks of (its SHA-256 differs)", o.reference);
  const std::vector<std::string> files = o.texts.empty() ? claim.texts : o.texts;
  check(files.size() == claim.texts.size(), "the certificate speaks of {} texts, {} were given", claim.texts.size(),
        files.size());
  SplitTexts texts = split_texts(files, model.tokenizer, claim.context);
  for (size_t i = 0; i < files.size(); ++i)
    check(texts.certify[i].sha256 == claim.text_sha256[i],
          "{} is not the text the certificate speaks of (its SHA-256 differs)", files[i]);

  RunnerOptions options = runner_options(o.run);
  options.mode = parse_activations(claim.activations);
  options.kv = parse_kv(claim.kv);
  options.max_rows = std::max<int64_t>(2048, texts.context);
  options.cache_tokens = 2 * options.max_rows;
  options.context = texts.context;
  const auto served = make_runner(o.run, model.checkpoint, options);
  options.kv = KvFormat::f32;
  const auto exact = make_runner(o.run, reference, options);
  ThreadPool pool(o.run.threads);
  CompareOptions compare;
  compare.windows.context = texts.context;
  compare.candidate_mode = options.mode;
  const FidelityReport report = compare_models(*exact, *served, texts.certify, compare, pool);
  const nlohmann::json measured =
      make_certificate(claim.target, report, *served, claim.looks, claim.reference_sha256, files);
  // Without a target (--bits, --bytes) the claim is the number itself.
  const double ear = report.ear().value;
  const bool holds = measured["met"].get<bool>() &&
                     (claim.target.ear || claim.target.kl || (ear >= claim.ear.ci95.low && ear <= claim.ear.ci95.high));
  write_json(o.json, {{"claimed", claim.json}, {"measured", measured}, {"holds", holds}});
  if (!quiet(o.json))
    fmt::print("claimed  EAR {:.6f}, KL {:.8f}\nmeasured EAR {:.6f}, KL {:.8f}\nThe certificate {}.\n", claim.ear.value,
               claim.kl.value, report.ear().value, report.kl().value, holds ? "holds" : "does not hold");
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
