// This file certifies a model that carries no certificate, of whatever program: a .gguf file, a folder of GPTQ, AWQ or
// compressed-tensors, or one that `fidelio quantize` wrote. What made it is not known, so it may have seen the text.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "app/certify/certify.h"
#include "compress/inputs/sets.h"
#include "core/foreign/foreign_text.h"
#include "core/thread_pool.h"
#include "runtime/texts/words.h"
#include "sensitivity/candidates.h"

namespace fidelio::app {
namespace {

constexpr int64_t kFileWindows = 240;  // as many as a certificate of `compress` has

// A StandingOut is a linear of a layer that stands out, with the share by which its weights differ from the source's,
// and the median of that share over other layers.
struct StandingOut {
  LinearId id;
  double share = 0, elsewhere = 0;
};

// A WeightErrors compares a model's weights with its source's.
class WeightErrors {
 public:
  WeightErrors(const Certify& o, const TextModel& model, const Checkpoint& reference)
      : pool_(o.run.threads), model_(model.checkpoint), reference_(reference) {}

  // Finds the linears of these layers whose weights are further from the source's than three times what is usual.
  std::vector<StandingOut> standing_out(const std::vector<int>& layers) {
    std::vector<StandingOut> found;
    for (LinearId id : linears_of(model_.config())) {
      if (id.layer < 0 || std::ranges::find(layers, id.layer) == layers.end()) continue;
      const StandingOut linear{id, share(id), elsewhere(id, layers)};
      if (!(linear.share <= 3 * linear.elsewhere)) found.push_back(linear);
    }
    return found;
  }

 private:
  double share(LinearId id) { return std::sqrt(relative_error(model_.linear(id), reference_.linear(id), pool_)); }

  // Returns the median over at most eight layers that do not stand out and have such a linear; NaN if there is none.
  double elsewhere(LinearId id, const std::vector<int>& damaged) {
    const auto [known, is_new] = elsewhere_.try_emplace({id.role, id.expert}, std::nan(""));
    if (!is_new) return known->second;
    constexpr size_t kLayers = 8;
    std::vector<LinearId> same;
    for (LinearId other : linears_of(model_.config()))
      if (other.layer >= 0 && other.role == id.role && other.expert == id.expert &&
          std::ranges::find(damaged, other.layer) == damaged.end())
        same.push_back(other);
    std::vector<double> errors;
    const size_t step = std::max<size_t>(1, same.size() / kLayers);
    for (size_t i = 0; i < same.size(); i += step) errors.push_back(share(same[i]));
    if (errors.empty()) return known->second;
    std::ranges::sort(errors);
    return known->second = errors[errors.size() / 2];
  }

  ThreadPool pool_;
  const Checkpoint &model_, &reference_;
  std::map<std::pair<Role, int>, double> elsewhere_;
};

std::string percent(double share) { return fmt::format("{:.3g}%", 100 * share); }

// Says which parts stand out, or that none does.
std::vector<std::string> words_of_layers(const LayerErrors& e, const std::vector<StandingOut>& linears) {
  const double median = median_of_layers(e);
  const std::vector<int> layers = layers_that_stand_out(e);
  const auto of = [&](const std::string& part, double error) {
    return fmt::format("{} stands out: {} of what it computes is wrong, of what the middle layer of all {} adds {}",
                       part, percent(error), e.layers.size(), percent(median));
  };
  std::vector<std::string> words;
  if (embedding_stands_out(e)) words.push_back(of("the embedding", e.embedding));
  for (int layer : layers) words.push_back(of(fmt::format("layer {}", layer), e.layers[static_cast<size_t>(layer)]));
  if (head_stands_out(e)) words.push_back(of("the last norm or the head", e.head));
  for (const StandingOut& l : linears)
    words.push_back(
        fmt::format("the weights of {} differ from the source's by {}, those of the same part of other layers "
                    "by {}",
                    to_string(l.id), percent(l.share), percent(l.elsewhere)));
  if (!words.empty() || e.layers.empty()) return words;
  const auto worst = std::ranges::max_element(e.layers);
  return {
      fmt::format("no layer stands out: of what the worst of them, {}, adds {} is wrong, of what the middle one adds "
                  "{}",
                  worst - e.layers.begin(), percent(*worst), percent(median))};
}

// Both models must read the text as the same tokens, or their probabilities are not of the same thing.
void check_same_tokens(const Certify& o, const Corpus& own, const Corpus& source) {
  const size_t documents = std::min(own.documents.size(), source.documents.size());
  check(own.documents.size() == source.documents.size(), "{} and {} read the text as {} and {} documents", o.run.model,
        o.reference, own.documents.size(), source.documents.size());
  for (size_t i = 0; i < documents; ++i) {
    const auto &a = own.documents[i].ids, &b = source.documents[i].ids;
    const auto [x, y] = std::ranges::mismatch(a, b);
    check(x == a.end() && y == b.end(),
          "{} has another tokenizer than {}: the document {} becomes {} tokens in place of {}, which differ from token "
          "{} "
          "on. It answers otherwise than its source, whatever its weights are: repair its tokenizer first",
          o.run.model, o.reference, foreign(own.documents[i].name), a.size(), b.size(), x - a.begin());
  }
}

Corpus text_of_file(const Certify& o, const TextModel& model, const Checkpoint& reference, int64_t context) {
  const std::vector<std::string> sources = without_words(o.texts, TextUse::heldout, "");
  const auto read = [&](const Tokenizer& tokenizer) {
    return read_corpus(sources, tokenizer, model.chat ? &*model.chat : nullptr, context, Shingles::none);
  };
  Corpus corpus = read(model.tokenizer);
  check_same_tokens(o, corpus, read(Tokenizer::load(reference.texts())));
  remove_repeated(corpus);
  return corpus;
}

void check_same_shapes(const Certify& o, const ModelConfig& file, const ModelConfig& source) {
  check(file.L == source.L && file.d == source.d && file.v == source.v && linears_of(file) == linears_of(source),
        "{} is not made of {}: it has {} layers of {} with a vocabulary of {}, expected {} of {} with {}, and the same "
        "linears; give the model that it was quantised from",
        o.run.model, o.reference, file.L, file.d, file.v, source.L, source.d, source.v);
}

}  // namespace

void certify_file(const Certify& asked, const TextModel& model, const Checkpoint& reference) {
  Certify o = asked;
  check_same_shapes(o, model.checkpoint.config(), reference.config());
  o.texts = beside_words(o.texts, bundled_texts(o.reference).heldout);
  check(std::ranges::find(o.texts, "own") == o.texts.end(),
        "{} has no answers of its own beside it, as `compress` writes them: leave out --text own", o.run.model);
  check_takes_words(o.texts, model.chat ? &*model.chat : nullptr, o.run.model);
  Certificate claim;
  claim.target = o.target;
  claim.context = window_length("--context", o.context, model.checkpoint.config());
  claim.activations = o.run.activations;
  claim.kv = name_of(runner_options(o.run).kv);
  const Corpus corpus = text_of_file(o, model, reference, claim.context);
  const TextSet set = text_set(units_of(corpus, claim.context, names_text(o.texts)), claim.context, kFileWindows);
  std::unique_ptr<Runner> served;
  const Measurements found = measure_certified(o, model, reference, claim, set, true, served);
  Certificate made = make_certificate(o.target, {found.report, set}, *served, reference.sha256(), o.texts);
  made.answers = found.answers;
  served.reset();
  add_draft_to(made, o, model, claim, set);
  const std::vector<DocumentFidelity> documents = documents_of(found.report, set);
  const std::vector<std::string> layers = words_of_layers(
      *found.layers, WeightErrors(o, model, reference).standing_out(layers_that_stand_out(*found.layers)));
  const double bits =
      8.0 * static_cast<double>(model.checkpoint.file_bytes()) / static_cast<double>(model.checkpoint.parameters());
  const std::string verdict = o.target.empty() ? "measured on text that nobody says it was not made with"
                                               : fmt::format("its overlap with the original is {} that was asked for",
                                                             made.met ? "what" : "not what");
  write_json(o.json, {{"measured", to_json(made)},
                      {"met", made.met},
                      {"bits_per_parameter", bits},
                      {"layers", to_json(*found.layers)},
                      {"words_of_layers", layers},
                      {"documents", documents_json(documents)}});
  write_page(o, fmt::format("{}; {}", verdict, fmt::join(layers, "; ")), made, made.met, documents);
  write_card_of(o, model, made, made.met);
  if (!quiet(o.json)) {
    fmt::print("{}: {:.3f} bits a parameter{}. It carries no certificate; this is the first.\n", o.run.model, bits,
               model.checkpoint.quantised_by().empty() ? "" : ", by " + model.checkpoint.quantised_by());
    print_domains(made);
    print_plain_words(made, made.met);
    for (const std::string& words : layers) fmt::print("  Layers: {}.\n", words);
  }
  check(made.met, "{}: what was asked for is not met: {}", o.run.model, not_met(made));
}

}  // namespace fidelio::app
