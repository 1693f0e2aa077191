// This file is the verb `certify`, which measures again what the certificate of a model claims, or certifies it on
// other texts. A model without a certificate is certified by certify_file.cc.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "app/certify/certify.h"
#include "compress/certificate/dealt.h"
#include "compress/certificate/seal.h"
#include "compress/inputs/own_text.h"
#include "compress/inputs/run_texts.h"
#include "core/foreign/foreign_text.h"
#include "io/checkpoint_files.h"
#include "runtime/texts/bundled.h"
#include "runtime/texts/words.h"

namespace fidelio::app {
namespace {

std::optional<UsedTexts> used_texts(const TextModel& model) {
  return UsedTexts::read(nlohmann::json::parse(model.checkpoint.provenance()), model.checkpoint.folder());
}

// The checkpoint must be the certified one, and the reference the one it was certified against. This is checked before
// anything is measured, because a changed byte may have so little effect that measuring does not show it.
void check_identity(const Certify& o, const TextModel& model, const Checkpoint& reference, const Certificate& claim) {
  check(!model.checkpoint.written_weights_sha256().empty(),
        "{} does not say what its weights' SHA-256 is: an earlier fidelio wrote it; compress the model again",
        o.run.model);
  check(!model.checkpoint.written().tensors.empty() && !model.checkpoint.written().files.empty(),
        "{} does not say what the SHA-256 of its tensors and files are: it was changed; compress the model again",
        o.run.model);
  const ChangedSinceWritten changed = changed_since_written(model.checkpoint);
  check(changed.weights.empty(),
        "{}: its weights are not those that were certified ({}): the file is damaged or was changed", o.run.model,
        changed.weights);
  check(changed.files.empty(),
        "{}: {} since it was certified, and what the model answers depends on it: put back what was there, or compress "
        "the model again",
        o.run.model, foreign(changed.files));
  check(reference.sha256() == claim.reference_sha256,
        "{} is not the model the certificate speaks of (its SHA-256 differs): give the one that {} was made of",
        o.reference, o.run.model);
}

// Fields that no measurement can confirm must be as they were written. Returns the other fields that are not.
std::vector<std::string> check_seal(const Certify& o, const TextModel& model) {
  const EditedFields edited = edited_fields(model.checkpoint);
  check(
      edited.others.empty(),
      "{}: the certificate was edited since it was written ({}): what it says there cannot be measured again; compress "
      "the model again",
      o.run.model, fmt::join(edited.others, ", "));
  return edited.by_measuring;
}

// No document of the certificate may be one that the model was made with.
void check_not_used(const Certify& o, const TextModel& model, const TextSet& set) {
  const std::optional<UsedTexts> used = used_texts(model);
  for (const Document& d : set.documents) {
    const std::string in = used ? used->set_of(d) : "";
    check(in.empty() || in == "certificate" || in == "trial",
          "{}: the certificate names the document {}, and the model was made with it ({}); compress the model again",
          o.run.model, foreign(d.name), in);
  }
}

// Says which of two certificates claims less, and which is more precise.
std::string compared(const Certificate& stored, const Certificate& own) {
  const Estimate &mine = own.promised.ear, &its = stored.promised.ear;
  const double difference = mine.value - its.value;
  const auto width = [](const Estimate& e) { return e.ci95.high - e.ci95.low; };
  const bool apart = mine.ci95.high < its.ci95.low || mine.ci95.low > its.ci95.high;
  return fmt::format(
      "On your text it is {} by {:.5f}{}; its interval is {} ({:.5f} wide, the stored one {:.5f}).\nThe lower of the "
      "two "
      "certificates is {}: no less than {:.5f} ({}); the other: {:.5f} ({}).",
      difference < 0 ? "lower" : "higher", std::fabs(difference),
      apart ? ", more than either interval allows for: the texts differ, not the measurement"
            : ", within what the intervals allow for",
      width(mine) < width(its) ? "narrower" : "wider", width(mine), width(its),
      mine.ci95.low < its.ci95.low ? "that of your text" : "the stored one", std::min(mine.ci95.low, its.ci95.low),
      mine.ci95.low < its.ci95.low ? own.promised.domain : stored.promised.domain,
      std::max(mine.ci95.low, its.ci95.low),
      mine.ci95.low < its.ci95.low ? stored.promised.domain : own.promised.domain);
}

std::string promised_text(const Certificate& c) {
  return fmt::format("{} ({}), KL {:.6f}", ear_text(c.promised.ear), c.promised.domain, c.promised.kl.value);
}

// Makes a second certificate, on the user's own documents, of which it uses as many as the stored one may have.
void certify_own_text(const Certify& o, const TextModel& model, const Checkpoint& reference, const Certificate& claim,
                      Corpus corpus) {
  constexpr int64_t kWindows = 1000;
  std::vector<std::string> left_out;
  const std::optional<TextOverlap> overlap = leave_used_out(corpus, used_texts(model), names_text(o.texts),
                                                            [&](const std::string& note) { left_out.push_back(note); });
  const TextSet set = text_set(units_of(corpus, claim.context, names_text(o.texts)), claim.context, kWindows);
  std::unique_ptr<Runner> served;
  const Measurements found = measure_certified(o, model, reference, claim, set, false, served);
  const FidelityReport& report = found.report;
  Certificate own =
      make_certificate(claim.target, {report, set, claim.promise}, *served, claim.reference_sha256, o.texts);
  own.answers = found.answers;
  own.overlap = overlap;
  served.reset();
  add_draft_to(own, o, model, claim, set);
  const bool met = own.met, lower = own.promised.ear.ci95.low < claim.promised.ear.ci95.low;
  const std::vector<DocumentFidelity> documents = documents_of(report, set);
  write_json(o.json, {{"claimed", to_json(claim)},
                      {"own", to_json(own)},
                      {"met", met},
                      {"lower", lower ? "own" : "claimed"},
                      {"documents", documents_json(documents)}});
  write_page(o, compared(claim, own), own, met, documents);
  write_card_of(o, model, own, met);
  if (!quiet(o.json)) {
    const std::string stored_name = names_text(claim.texts), own_name = names_text(o.texts);
    const size_t wide = std::max(stored_name.size(), own_name.size()) + 13;
    fmt::print("{:<{}} {}\n{:<{}} {}\n", "stored (" + stored_name + ")", wide, promised_text(claim),
               "your text (" + own_name + ")", wide, promised_text(own));
    print_domains(own);
    print_plain_words(own, met);
    fmt::print("{}\n", compared(claim, own));
    for (const std::string& note : left_out) fmt::print("{}.\n", note);
    if (const std::string few = few_documents_text(set); !few.empty()) fmt::print("Your text: {}.\n", few);
  }
  check(met, "{}: the certificate's target is not met on {}: {}", o.run.model, names_text(o.texts), not_met(own));
}

// Measures the claims of the certificate in the file again, and says whether they hold.
void certify_again(const Certify& o, const TextModel& model, const Checkpoint& reference, const Certificate& claim,
                   Corpus corpus, const std::vector<std::string>& edited) {
  name_domain(corpus, claim);
  const TextSet set = set_of_places(corpus, claim.context, claim.places);
  check_documents(claim, set, o.run.model);
  check_not_used(o, model, set);
  const std::string not_dealt = check_dealt(claim, corpus, o.run.model);
  std::unique_ptr<Runner> served;
  const Measurements found = measure_certified(o, model, reference, claim, set, false, served);
  const FidelityReport& report = found.report;
  Certificate measured = make_certificate(claim.target, {report, set, claim.promise, claim.ladder, claim.floor},
                                          *served, claim.reference_sha256, o.texts.empty() ? claim.texts : o.texts);
  measured.answers = found.answers;
  served.reset();
  measured.overlap = claim.overlap;
  add_draft_to(measured, o, model, claim, set);
  // Without a target (--bits, --bytes) the claim is the number itself.
  const double ear = measured.all.ear.value;
  const std::string otherwise = not_borne_out(claim, measured);
  const Interval& claimed = claim.all.ear.ci95;
  measured.met = measured.met || (claim.met && meets_again(measured));
  const bool met = measured.met && (!claim.target.empty() || !(ear < claimed.low || ear > claimed.high));
  const bool holds = met && otherwise.empty() && edited.empty();
  const std::vector<DocumentFidelity> documents = documents_of(report, set);
  const std::string verdict = fmt::format("The certificate {}.", holds ? "holds" : "does not hold");
  write_json(o.json, {{"claimed", to_json(claim)},
                      {"measured", to_json(measured)},
                      {"holds", holds},
                      {"answers_measured", false},
                      {"documents", documents_json(documents)}});
  write_page(o, verdict, measured, holds, documents);
  write_card_of(o, model, measured, holds);
  if (!quiet(o.json)) {
    fmt::print("claimed  EAR {:.6f}, KL {:.8f}\nmeasured EAR {:.6f}, KL {:.8f}\n{}\n", claim.all.ear.value,
               claim.all.kl.value, ear, measured.all.kl.value, verdict);
    if (claim.tasks)
      fmt::print(
          "Not measured again: its promise of answers (at least {:g}% of the right ones are kept). No question was "
          "asked.\n",
          100 * (1 - claim.tasks->accuracy_drop));
    if (!not_dealt.empty())
      fmt::print("Not looked at: whether the documents are those that the text gives; {}.\n", not_dealt);
    fmt::print("\n");
    print_plain_words(measured, holds);
  }
  check(met, "{}: what is certified is not met: {}", o.run.model, not_met(measured));
  check(otherwise.empty(),
        "{}: the certificate's figures are not those of this model: {}. It was changed, or is of other weights or "
        "kernels than these; compress the model again for one that holds",
        o.run.model, otherwise);
  check(edited.empty(),
        "{}: the certificate was edited since it was written ({}), though what is measured bears it out; compress the "
        "model again for one that holds",
        o.run.model, fmt::join(edited, ", "));
}

// The model's own answers are stored beside its weights.
std::string own_text_of(const Certify& o) { return o.run.model + "/" + std::string(kOwnTextFile); }

// Finds the text of a certificate: where the certificate says or, if that is on another machine, among the texts that
// come with fidelio.
std::vector<std::string> find_text(const Certify& o, const Certificate& claim) {
  std::vector<std::string> found;
  for (const std::string& source : without_words(claim.texts, TextUse::heldout, own_text_of(o))) {
    if (text_exists(parse_text_source(source).path)) {
      found.push_back(source);
      continue;
    }
    const std::string name = std::filesystem::path(source).filename().string();
    const size_t colon = std::min(name.rfind(':'), name.size());
    try {
      found.push_back(bundled_text(name.substr(0, colon)) + name.substr(colon));
    } catch (const Error&) {
      throw Error(
          "the certificate of {} speaks of the text {}, which is not there: say by --text where it lies now, or "
          "give text of your own",
          o.run.model, source);
    }
  }
  return found;
}

// Tells whether every certified document is here, under any name.
bool are_the_certificates(const Corpus& corpus, const Certificate& claim) {
  std::set<std::string> there;
  for (const Document& d : corpus.documents) there.insert(d.sha256.substr(0, kPlaceHashDigits));
  return std::all_of(claim.places.begin(), claim.places.end(),
                     [&](const std::string& place) { return there.contains(place.substr(0, kPlaceHashDigits)); });
}

// Reads the text as the compression did: the model's own answers come behind the files, wherever they are named.
Corpus read_text_of(const Certify& o, const TextModel& model, const Certificate& claim) {
  std::vector<std::string> files =
      o.texts.empty() ? find_text(o, claim) : without_words(o.texts, TextUse::heldout, own_text_of(o));
  const auto read = [&](const std::vector<std::string>& sources) {
    return read_corpus(sources, model.tokenizer, model.chat ? &*model.chat : nullptr, claim.context, Shingles::kept);
  };
  if (std::erase(files, own_text_of(o)) == 0) return read(files);
  Corpus own = read({own_text_of(o)});
  if (files.empty()) return own;
  Corpus corpus = read(files);
  add_own(corpus, std::move(own));
  return corpus;
}

void certify(const Certify& o) {
  check_can_write({o.json, o.page, o.card, o.card_block});
  check(o.card.empty() || !std::filesystem::exists(o.card),
        "--card {}: there is such a file, and it may be somebody's own; choose another name or remove it", o.card);
  const TextModel model = open_model(o.run.model);
  const Checkpoint reference = Checkpoint::open(o.reference);
  if (!has_certificate(model.checkpoint)) return certify_file(o, model, reference);
  const Certificate claim = read_certificate(model.checkpoint);
  check(o.target.empty() && o.context == 0,
        "{} carries a certificate, which says what its target and windows are: leave out --ear, --kl, --top1 and "
        "--context",
        o.run.model);
  check_identity(o, model, reference, claim);
  const std::vector<std::string> edited = check_seal(o, model);
  check_takes_words(o.texts, model.chat ? &*model.chat : nullptr, o.run.model);
  Corpus corpus = read_text_of(o, model, claim);
  const bool again = are_the_certificates(corpus, claim);
  check(again || !o.texts.empty(),
        "{} is not the text the certificate speaks of (documents are missing or changed): give that, wherever it lies "
        "now, or text of your own, by --text",
        names_text(claim.texts));
  if (again) return certify_again(o, model, reference, claim, std::move(corpus), edited);
  check(edited.empty(), "{}: the certificate was edited since it was written ({}); compress the model again",
        o.run.model, fmt::join(edited, ", "));
  certify_own_text(o, model, reference, claim, std::move(corpus));
}

}  // namespace

void add_certify(CLI::App& app) {
  auto o = std::make_shared<Certify>();
  CLI::App* verb = app.add_subcommand(
      "certify",
      "Measure a model's certificate again, or on text of your own, or certify what another program quantised");
  verb->footer(
      "Examples:\n  fidelio certify quill-99 --reference models/quill-26m\n"
      "  fidelio certify quill-99 --reference models/quill-26m --text my.txt\n"
      "  fidelio certify somebodys-Q4_K_M.gguf --reference ORIGINAL --ear 0.98 --report page.html");
  add_model(*verb, o->run);
  verb->add_option("--reference", o->reference, "The original model")->required()->check(model_folder());
  verb->add_option(
          "--text", o->texts,
          "Measure on a text of your own instead: DIR, FILE or JSONL, each with :domain or without; may be "
          "repeated. If "
          "the certificate's text has moved, give its new place; it is recognised by its SHA-256. The word tools "
          "is the calls of tools that come along, own the model's own answers that lie beside it")
      ->check(text_source_or_word());
  verb->add_option("--ear", o->target.ear, "Of a file without a certificate: the overlap that its lower end must reach")
      ->check(above_zero())
      ->check(from_to(0, 1));
  verb->add_option("--kl", o->target.kl,
                   "Likewise: the KL divergence, in nats a token, that its upper end must not pass")
      ->check(above_zero());
  verb->add_option("--top1", o->target.top1,
                   "Likewise: the share of greedy tokens that are the original's, as its lower end")
      ->check(above_zero())
      ->check(from_to(0, 1));
  verb->add_option("--context", o->context,
                   "Likewise: length of the windows of text (default: 512, or the model's context if that is shorter)");
  verb->add_option("--answers", o->answers,
                   "Greedy answers that are compared with the original's, word for word (default: as many as the "
                   "certificate has)")
      ->check(zero_or_more());
  add_draft(*verb, o->draft);
  add_device(*verb, o->run);
  add_json(*verb, o->json);
  add_report(*verb, o->page);
  verb->add_option("--card", o->card,
                   "Write the model's card with what is measured to this Markdown file, which must not exist");
  verb->add_option("--card-block", o->card_block,
                   "Write a few lines with what is measured to this Markdown file, for a model card of your own");
  verb->callback([o] { certify(*o); });
}

}  // namespace fidelio::app
