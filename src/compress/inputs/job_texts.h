// JobTexts are the texts of one compression, dealt out into the four sets that sets.h describes. They are read once and
// never change.
#pragma once
#include <string>
#include <vector>

#include "compress/inputs/own_text.h"
#include "compress/inputs/run_texts.h"
#include "compress/inputs/sets.h"
#include "compress/job.h"
#include "ranks/ranks.h"
#include "runtime/dataset.h"

namespace fidelio {

struct JobTexts {
  Dataset calibration;                          // what quantisers see
  Dataset search;                               // what sensitivities are measured on
  std::vector<Document> calibration_documents;  // what calibration was taken from, and plans are tuned on
  TextSet adjustment;                           // what plans are tried on
  TextSet certificate;                          // what is looked at when one is chosen
  TextDealt dealt;                              // how adjustment and certificate came about
  std::string own_text;                         // the model's own answers among --text, a line each; "": none
};

struct ReadTexts {
  JobTexts texts;
  TextAccount uses;  // the record of them
};
// Reads the job's texts and tells the user what they are. Sensitivities measured on what the quantisers have seen would
// be too good, so a plan is tried on what neither saw, and certified on what nothing has seen. Throws Error where there
// is too little text, or where it does not suit the model.
ReadTexts read_texts(const Job& job, const World& world, const Ranks& ranks, OwnAnswers own_answers);

}  // namespace fidelio
