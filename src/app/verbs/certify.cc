#include <cmath>

#include "app/options/common.h"
#include "app/options/texts.h"
#include "compress/certificate.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/progress.h"
#include "core/thread_pool.h"

namespace fidelio::app {
namespace {

struct Certify {
  RunOptions run;
  std::string reference, json;
  std::vector<std::string> texts;
};

// The checkpoint must be what was certified, and the reference what it was certified against. Before anything is
// measured: a changed byte may cost so little that measuring does not tell.
void check_identity(const Certify& o, const TextModel& model, const Checkpoint& reference, const Claim& claim) {
  check(!model.checkpoint.written_weights_sha256().empty(),
        "{} does not say what its weights' SHA-256 is: an earlier fidelio wrote it; compress the model again",
        o.run.model);
  check(model.checkpoint.weights_sha256() == model.checkpoint.written_weights_sha256(),
        "{}: its weights are not those that were certified (their SHA-256 differs): the file is damaged or was changed",
        o.run.model);
  check(reference.sha256() == claim.reference_sha256,
        "{} is not the model the certificate speaks of (its SHA-256 differs)", o.reference);
}

// The model as it was certified, beside its reference.
FidelityReport measure(const Certify& o, const TextModel& model, const Checkpoint& reference, const Claim& claim,
                       const std::vector<EvalText>& texts, std::unique_ptr<Runner>& served) {
  RunnerOptions options = runner_options(o.run);
  options.mode = parse_activations(claim.activations);
  options.kv = parse_kv(claim.kv);
  options.max_rows = std::max<int64_t>(2048, claim.context);
  options.cache_tokens = 2 * options.max_rows;
  options.context = claim.context;
  served = make_runner(o.run, model.checkpoint, options);
  options.kv = KvFormat::f32;
  const auto exact = make_runner(o.run, reference, options);
  ThreadPool pool(o.run.threads);
  CompareOptions compare;
  compare.windows.context = claim.context;
  compare.candidate_mode = options.mode;
  set_words_on_interrupt("Nothing is kept of a certificate half measured; the same command begins anew.");
  std::unique_ptr<Progress> progress;
  int64_t before = 0;
  return compare_models(*exact, *served, texts, compare, pool, [&](int64_t done, int64_t total) {
    if (!progress) progress = std::make_unique<Progress>("certify", total);
    progress->advance(done - std::exchange(before, done));
  });
}

std::string ear_text(const Estimate& e) {
  return fmt::format("EAR {:.5f} [{:.5f}, {:.5f}]", e.value, e.ci95.low, e.ci95.high);
}

std::string names_text(const std::vector<std::string>& files) {
  std::vector<std::string> names;
  for (const std::string& file : files) names.push_back(folder_name(file));
  return fmt::format("{}", fmt::join(names, ", "));
}

// Which of two certificates claims less, and which knows it better.
std::string compared(const Estimate& stored, const Estimate& own) {
  const double difference = own.value - stored.value;
  const auto width = [](const Estimate& e) { return e.ci95.high - e.ci95.low; };
  const bool apart = own.ci95.high < stored.ci95.low || own.ci95.low > stored.ci95.high;
  return fmt::format("On your text it is {} by {:.5f}{}; its interval is {} ({:.5f} wide, the stored one {:.5f}).",
                     difference < 0 ? "lower" : "higher", std::fabs(difference),
                     apart ? ", more than either interval allows for: the texts differ, not the measurement"
                           : ", within what the intervals allow for",
                     width(own) < width(stored) ? "narrower" : "wider", width(own), width(stored));
}

// A second certificate, on texts of the user's own, all of them.
void certify_own_text(const Certify& o, const TextModel& model, const Checkpoint& reference, const Claim& claim) {
  const std::vector<EvalText> texts = read_texts(o.texts, model.tokenizer);
  int64_t windows = 0;
  for (const EvalText& text : texts) windows += static_cast<int64_t>(text.ids.size()) / claim.context;
  check(windows >= 4, "{} has fewer than four windows of {} tokens: too little to certify with", names_text(o.texts),
        claim.context);
  std::unique_ptr<Runner> served;
  const FidelityReport report = measure(o, model, reference, claim, texts, served);
  nlohmann::json own = make_certificate(claim.target, report, *served, 1, claim.reference_sha256, o.texts);
  for (auto& text : own["texts"]) text["windows"] = "all";
  const bool met = own["met"].get<bool>();
  write_json(o.json, {{"claimed", claim.json}, {"own", own}, {"met", met}});
  if (!quiet(o.json)) {
    const std::string stored_name = names_text(claim.texts), own_name = names_text(o.texts);
    const size_t wide = std::max(stored_name.size(), own_name.size()) + 13;
    fmt::print("{:<{}} {}, KL {:.6f}\n{:<{}} {}, KL {:.6f}\n{}\n", "stored (" + stored_name + ")", wide,
               ear_text(claim.ear), claim.kl.value, "your text (" + own_name + ")", wide, ear_text(report.ear()),
               report.kl().value, compared(claim.ear, report.ear()));
    if (windows < 20) fmt::print("{} windows are few: take the interval as a rough one.\n", windows);
  }
  check(met, "{}: the certificate's target is not met on {}", o.run.model, names_text(o.texts));
}

// Measures again what the certificate claims, from the file, and says whether it holds.
void certify_again(const Certify& o, const TextModel& model, const Checkpoint& reference, const Claim& claim) {
  const std::vector<std::string> files = o.texts.empty() ? claim.texts : o.texts;
  const SplitTexts texts = split_texts(files, model.tokenizer, claim.context);
  for (size_t i = 0; i < files.size(); ++i)
    check(texts.certify[i].sha256 == claim.text_sha256[i],
          "{} is not the text the certificate speaks of (its SHA-256 differs)", files[i]);
  std::unique_ptr<Runner> served;
  const FidelityReport report = measure(o, model, reference, claim, texts.certify, served);
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

// The certificate's own texts under other names, or others.
bool are_the_certificates(const std::vector<std::string>& files, const Claim& claim) {
  if (files.empty()) return true;
  if (files.size() != claim.texts.size()) return false;
  for (size_t i = 0; i < files.size(); ++i)
    if (sha256_hex(read_text_file(files[i])) != claim.text_sha256[i]) return false;
  return true;
}

void certify(const Certify& o) {
  check_can_write({o.json});
  const TextModel model = open_model(o.run.model);
  const Claim claim = read_claim(model.checkpoint);
  const Checkpoint reference = Checkpoint::open(o.reference);
  check_identity(o, model, reference, claim);
  are_the_certificates(o.texts, claim) ? certify_again(o, model, reference, claim)
                                       : certify_own_text(o, model, reference, claim);
}

}  // namespace

void add_certify(CLI::App& app) {
  auto o = std::make_shared<Certify>();
  CLI::App* verb = app.add_subcommand("certify", "Measure a checkpoint's certificate again, or on text of your own");
  verb->footer(
      "Examples:\n  fidelio certify quill-99 --reference models/quill-26m\n"
      "  fidelio certify quill-99 --reference models/quill-26m --text my.txt");
  add_model(*verb, o->run);
  verb->add_option("--reference", o->reference, "The original model")->required()->check(model_folder());
  verb->add_option(
      "--text", o->texts,
      "Measure on this text instead, a second certificate beside the stored one; the certificate's own text, if it "
      "has moved, is known by its SHA-256; may be repeated");
  add_device(*verb, o->run);
  add_json(*verb, o->json);
  verb->callback([o] { certify(*o); });
}

}  // namespace fidelio::app
