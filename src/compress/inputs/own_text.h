// The questions that a model is asked where its own answers count: in the domain `own` of a certificate, and as whole answers.
//
// A model with a chat template is asked the questions that come with fidelio (models/data/chat.txt); the first of them are
// for `own`, the others for whole answers, so that no answer is in both. Any other model goes on from where documents
// begin.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "compress/inputs/sets.h"
#include "compress/job.h"

namespace fidelio {

// The model's own answers as documents of the domain "own", sampled by what its generation_config.json recommends, or at
// temperature 1 where that recommends nothing. `starts`: documents that prompts of a model without a template are taken
// from. Throws Error where there are not so many prompts.
//
// A dry run wants their number and lengths alone. It takes stand-ins as long as an answer may be, and runs no model.
enum class OwnAnswers : uint8_t { written, stand_ins };
Corpus own_corpus(const World& world, const Job& job, const std::vector<Document>& starts, int64_t documents,
                  OwnAnswers kind);
// The file that a checkpoint has of them, a line each (runtime/texts/words.h).
std::string own_text(const Corpus& own, const Tokenizer& tokenizer);

// The tokens that end an answer of a model.
std::vector<int32_t> stop_ids_of(const Checkpoint& model, const Tokenizer& tokenizer);

// Prompts of whole answers: questions, else the beginnings of the set's documents, of every domain in turn.
std::vector<std::vector<int32_t>> answer_prompts(const Tokenizer& tokenizer, const ChatTemplate* chat,
                                                 const TextSet& set, int64_t count);

}  // namespace fidelio
