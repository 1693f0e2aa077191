#include "compress/inputs/own_text.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "compress/self_samples.h"
#include "core/error.h"
#include "core/foreign/lines.h"
#include "core/hash.h"
#include "eval/studies/at_sampling.h"
#include "eval/tasks/tasks.h"
#include "runtime/texts/bundled.h"
#include "runtime/texts/words.h"

namespace fidelio {
namespace {

constexpr int64_t kStart = 16;            // A model without a template continues so many tokens of a document.
constexpr int64_t kQuestionsForOwn = 64;  // The first so many questions of fidelio are for `own`.

std::vector<std::vector<int32_t>> questions(const Tokenizer& tokenizer, const ChatTemplate& chat, bool for_own) {
  const PromptBuilder prompt = chat_prompt(tokenizer, chat);
  std::vector<std::vector<int32_t>> all;
  for_each_line(read_text(bundled_text("chat.txt")), [&](std::string_view line, int64_t number) {
    const ChatMessage message{"user", std::string(line)};
    if ((number <= kQuestionsForOwn) == for_own) all.push_back(prompt({&message, 1}));
  });
  return all;
}

// Returns so many beginnings of windows, spread evenly over all of them.
std::vector<std::vector<int32_t>> beginnings(const std::vector<Document>& documents, int64_t context, int64_t count) {
  std::vector<std::vector<int32_t>> all, some;
  for (const Document& d : documents)
    for (size_t begin = 0; begin + kStart < d.ids.size(); begin += static_cast<size_t>(context))
      all.emplace_back(d.ids.begin() + static_cast<int64_t>(begin),
                       d.ids.begin() + static_cast<int64_t>(begin) + kStart);
  for (int64_t i = 0; i < std::min(count, std::ssize(all)); ++i)
    some.push_back(all[static_cast<size_t>(i * std::ssize(all) / std::min(count, std::ssize(all)))]);
  return some;
}

SamplingOptions own_sampling(const World& world, uint64_t seed) {
  const GenerationDefaults defaults = GenerationDefaults::load(world.source.texts());
  SamplingOptions sampling = recommended_sampling(defaults).value_or(SamplingOptions{});
  if (defaults.do_sample != false && sampling.temperature == 0) sampling.temperature = defaults.temperature.value_or(1);
  sampling.repetition_penalty = defaults.repetition_penalty.value_or(1);
  sampling.seed = seed;
  return sampling;
}

// Returns answers that repeat their prompt up to the greatest length that the model's own may have.
std::vector<OwnAnswer> stand_ins(std::span<const std::vector<int32_t>> prompts, const OwnAnswerOptions& how) {
  std::vector<OwnAnswer> answers;
  for (const std::vector<int32_t>& prompt : prompts) {
    const int64_t given = std::ssize(prompt);
    OwnAnswer& one = answers.emplace_back(OwnAnswer{prompt, given});
    for (int64_t i = 0; i < std::min(how.longest, how.context - given); ++i)
      one.ids.push_back(prompt[static_cast<size_t>(i % given)]);
  }
  return answers;
}

}  // namespace

std::vector<int32_t> stop_ids_of(const Checkpoint& model, const Tokenizer& tokenizer) {
  return stop_token_ids(model.texts(), [&](std::string_view token) { return tokenizer.id_of(token); });
}

Corpus own_corpus(const World& world, const Job& job, const std::vector<Document>& starts, int64_t documents,
                  OwnAnswers kind) {
  std::vector<std::vector<int32_t>> prompts = world.chat != nullptr ? questions(world.tokenizer, *world.chat, true)
                                                                    : beginnings(starts, job.context, documents);
  check(std::ssize(prompts) >= documents,
        "own:{}: there are prompts for {} answers of the model itself; ask for no more{}", documents, prompts.size(),
        world.chat != nullptr ? "" : ", or give more text beside it (--text)");
  prompts.resize(static_cast<size_t>(documents));
  OwnAnswerOptions how;
  how.sampling = own_sampling(world, job.seed);
  how.stop_ids = stop_ids_of(world.source, world.tokenizer);
  how.context = job.context;
  Corpus own;
  for (OwnAnswer& a : kind == OwnAnswers::stand_ins ? stand_ins(prompts, how)
                                                    : own_answers(world.make_runner, job.serving, prompts, how)) {
    if (std::ssize(a.ids) - a.given < kShortestDocument) {
      ++own.too_short;
      continue;
    }
    const std::string name = fmt::format("own-{}", own.documents.size() + 1);
    own.documents.push_back(document_of_ids(name, "own", std::move(a.ids), a.given));
  }
  remove_repeated(own);  // Documents that begin alike are continued alike by a model that does not sample.
  own.sha256 = sha256_hex(own_text(own, world.tokenizer));
  check(std::ssize(own.documents) >= kLeastOwnDocuments,
        "own:{}: only {} of the model's own answers have {} tokens or more and repeat no other, and {} are needed; ask "
        "for "
        "more, or leave `own` out",
        documents, own.documents.size(), kShortestDocument, kLeastOwnDocuments);
  return own;
}

void add_own(Corpus& text, Corpus own) {
  std::move(own.documents.begin(), own.documents.end(), std::back_inserter(text.documents));
  text.sha256 = sha256_hex(text.sha256 + " " + own.sha256);
}

std::string own_text(const Corpus& own, const Tokenizer& tokenizer) {
  std::string lines;
  for (const Document& d : own.documents) lines += ids_record(d.name, d.domain, d.ids, d.given, tokenizer) + "\n";
  return lines;
}

std::vector<std::vector<int32_t>> answer_prompts(const Tokenizer& tokenizer, const ChatTemplate* chat,
                                                 const TextSet& set, int64_t count) {
  if (chat != nullptr) {
    std::vector<std::vector<int32_t>> prompts = questions(tokenizer, *chat, false);
    check(count <= std::ssize(prompts), "--answers {}: there are {} questions to be answered; ask for no more", count,
          prompts.size());
    prompts.resize(static_cast<size_t>(count));
    return prompts;
  }
  std::map<std::string, std::vector<size_t>> of;
  for (size_t i = 0; i < set.documents.size(); ++i) of[set.documents[i].domain].push_back(i);
  std::vector<std::vector<int32_t>> prompts;
  for (size_t round = 0; std::ssize(prompts) < count; ++round) {
    const size_t before = prompts.size();
    for (const auto& [domain, places] : of) {
      if (round >= places.size() || std::ssize(prompts) == count) continue;
      const std::vector<int32_t>& ids = set.texts[places[round]].ids;
      prompts.emplace_back(ids.begin(), ids.begin() + std::min(kStart, std::ssize(ids)));
    }
    check(prompts.size() > before,
          "--answers {}: the certificate has {} documents that answers can begin with; ask "
          "for no more",
          count, prompts.size());
  }
  return prompts;
}

}  // namespace fidelio
