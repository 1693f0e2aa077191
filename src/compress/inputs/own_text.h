// This file asks a model for answers of its own, as text of the domain `own` of a certificate and as whole answers.
//
// A model with a chat template is asked the questions that come with fidelio (models/data/chat.txt). The first of them
// are for `own`, the others for whole answers, so no answer is in both. A model without one continues the beginnings of
// documents.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "compress/inputs/sets.h"
#include "compress/job.h"

namespace fidelio {

// A run has the model write its answers. A dry run needs only their number and lengths: it takes stand-ins of the
// greatest length that an answer may have, and runs no model.
enum class OwnAnswers : uint8_t { written, stand_ins };
// Returns the model's own answers as documents of the domain "own". They are sampled as its generation_config.json
// recommends, or at temperature 1 if it recommends nothing. Prompts of a model without a template are taken from the
// documents `starts`. Answers that repeat others are left out. The hash is that of own_text(). Throws Error if there
// are too few prompts or answers.
Corpus own_corpus(const World& world, const Job& job, const std::vector<Document>& starts, int64_t documents,
                  OwnAnswers kind);
// Adds them behind the documents of the files. The hash of the whole text is made from both hashes, so it is the same
// when the answers are read back from their file, wherever `own` stood among the files.
void add_own(Corpus& text, Corpus own);
// Returns the text of the file that keeps them beside a checkpoint, a line each (io/checkpoint_files.h).
std::string own_text(const Corpus& own, const Tokenizer& tokenizer);

// Returns the tokens that end an answer of a model.
std::vector<int32_t> stop_ids_of(const Checkpoint& model, const Tokenizer& tokenizer);

// Returns prompts for whole answers: questions, or the beginnings of the set's documents, of every domain in turn.
std::vector<std::vector<int32_t>> answer_prompts(const Tokenizer& tokenizer, const ChatTemplate* chat,
                                                 const TextSet& set, int64_t count);

}  // namespace fidelio
