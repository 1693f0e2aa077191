// This file has the parts of the verb `certify` that measure and report, whether there was a certificate or not.
#include <fmt/ranges.h>

#include <algorithm>

#include "app/about.h"
#include "app/certify/certify.h"
#include "app/options/card.h"
#include "compress/card/card_block.h"
#include "compress/inputs/own_text.h"
#include "compress/page.h"
#include "core/file.h"
#include "core/foreign/foreign_text.h"
#include "core/progress.h"
#include "core/thread_pool.h"

namespace fidelio::app {
namespace {

// Returns the options with which the model was certified.
RunnerOptions as_certified(const Certify& o, const Certificate& claim) {
  RunnerOptions options = runner_options(o.run);
  options.mode = parse_activations(claim.activations);
  options.kv = parse_kv(claim.kv);
  options.max_rows = std::max<int64_t>(2048, claim.context);
  options.cache_tokens = 2 * options.max_rows;
  options.context = claim.context;
  return options;
}

// Returns the beginnings of some documents, of every domain, on which layers are compared.
std::vector<std::vector<int32_t>> beginnings_of(const TextSet& set, int64_t context) {
  constexpr size_t kSequences = 8;
  constexpr int64_t kTokens = 256;
  const size_t step = std::max<size_t>(1, set.texts.size() / kSequences);
  std::vector<std::vector<int32_t>> sequences;
  for (size_t i = 0; i < set.texts.size() && sequences.size() < kSequences; i += step) {
    const std::vector<int32_t>& ids = set.texts[i].ids;
    sequences.emplace_back(ids.begin(), ids.begin() + std::min<int64_t>({std::ssize(ids), context, kTokens}));
  }
  return sequences;
}

}  // namespace

Measurements measure_certified(const Certify& o, const TextModel& model, const Checkpoint& reference,
                               const Certificate& claim, const TextSet& set, bool layers,
                               std::unique_ptr<Runner>& served) {
  RunnerOptions options = as_certified(o, claim);
  served = make_runner(o.run, model.checkpoint, options);
  options.kv = KvFormat::f32;
  const auto exact = make_runner(o.run, reference, options);
  ThreadPool pool(o.run.threads);
  CompareOptions compare;
  compare.windows.context = claim.context;
  compare.candidate_mode = options.mode;
  compare.sampling = recommended_sampling(GenerationDefaults::load(reference.texts()));
  set_words_on_interrupt("Nothing is kept of a certificate half measured; the same command begins anew.");
  std::unique_ptr<Progress> progress;
  int64_t before = 0;
  Measurements found{compare_models(*exact, *served, set.texts, compare, pool, [&](int64_t done, int64_t total) {
    if (!progress) progress = std::make_unique<Progress>("certify", total);
    progress->advance(done - std::exchange(before, done));
  })};
  const int64_t answers = o.answers >= 0 ? o.answers : claim.answers ? claim.answers->prompts : 0;
  if (answers > 0)
    found.answers = measure_answers(
        *exact, *served, answer_prompts(model.tokenizer, model.chat ? &*model.chat : nullptr, set, answers),
        {.candidate_mode = options.mode,
         .max_tokens = claim.answers ? claim.answers->max_tokens : AnswerOptions{}.max_tokens,
         .stop_ids = model.stop_ids});
  if (layers) found.layers = measure_layer_errors(*exact, *served, beginnings_of(set, claim.context), options.mode);
  return found;
}

void add_draft_to(Certificate& certificate, const Certify& o, const TextModel& model, const Certificate& claim,
                  const TextSet& set) {
  constexpr size_t kTexts = 16;
  if (o.draft.draft == "off") return;
  std::vector<EvalText> texts(set.texts.begin(),
                              set.texts.begin() + static_cast<int64_t>(std::min(kTexts, set.texts.size())));
  WindowOptions windows;
  windows.context = claim.context;
  RunnerOptions options = as_certified(o, claim);
  options.cache_tokens = std::max<int64_t>(options.cache_tokens, 8 * claim.context);
  certificate.draft = certified_draft(measure_draft("certify", o.run, model, texts, windows, options, {o.draft, 1}));
}

std::string ear_text(const Estimate& e) {
  return fmt::format("EAR {:.5f} [{:.5f}, {:.5f}]", e.value, e.ci95.low, e.ci95.high);
}

std::string names_text(const std::vector<std::string>& files) {
  std::vector<std::string> names;
  for (const std::string& file : files) names.push_back(folder_name(parse_text_source(file).path));
  return fmt::format("{}", fmt::join(names, ", "));
}

nlohmann::json documents_json(const std::vector<DocumentFidelity>& documents) {
  nlohmann::json all = nlohmann::json::array();
  for (const DocumentFidelity& d : documents) all.push_back(to_json(d));
  return all;
}

void write_page(const Certify& o, const std::string& verdict, const Certificate& certificate, bool kept,
                const std::vector<DocumentFidelity>& documents) {
  if (!o.page.empty())
    write_file_atomically(o.page,
                          certify_page(folder_name(o.run.model), verdict, certificate, kept, documents, made_by()));
}

void write_card_of(const Certify& o, const TextModel& model, const Certificate& certificate, bool kept) {
  if (o.card.empty() && o.card_block.empty()) return;
  CardFacts facts = facts_of_run(model.checkpoint, model.checkpoint.texts());
  facts.certificate = certificate;
  facts.kept = kept;
  if (const std::string by = lower_case(model.checkpoint.quantised_by()); !by.empty()) facts.target = by;
  if (!o.card.empty()) write_file_atomically(o.card, model_card(facts));
  if (!o.card_block.empty()) write_file_atomically(o.card_block, card_block(facts));
}

std::string not_met(const Certificate& measured) {
  const PromisedFigures& p = measured.promised;
  std::vector<std::string> asked;
  if (measured.target.ear) asked.push_back(fmt::format("EAR of at least {:g}", *measured.target.ear));
  if (measured.target.kl) asked.push_back(fmt::format("KL of at most {:g}", *measured.target.kl));
  if (measured.target.top1)
    asked.push_back(fmt::format("the same first choice {:g} of the time", *measured.target.top1));
  return fmt::format(
      "measured is {}, KL {:.6f} [{:.6f}, {:.6f}], top1 {:.5f} [{:.5f}, {:.5f}] of {}; {}", ear_text(p.ear), p.kl.value,
      p.kl.ci95.low, p.kl.ci95.high, p.top1.value, p.top1.ci95.low, p.top1.ci95.high, p.domain,
      asked.empty() ? "it claims otherwise" : fmt::format("its target is {}", fmt::join(asked, " and ")));
}

}  // namespace fidelio::app
