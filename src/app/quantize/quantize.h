// This file has the options of `quantize`, which its command line, the preparation and the work share.
#pragma once
#include "app/options/common.h"
#include "quant/quantize_model.h"
#include "sensitivity/journal.h"

namespace fidelio::app {

// These are the steps that GPTQ can add to its plain form, which feeds errors back and takes scales from each group's
// own range. docs/formats.md says what each does, docs/results.md what it is worth. The first five are done by default.
inline const std::vector<std::string> kSteps = {"act-order", "range-search",  "descent",  "refit",
                                                "feedback",  "source-inputs", "curvature"};
inline const std::vector<std::string> kDefaultSteps(kSteps.begin(), kSteps.begin() + 5);

// Embedding and head see every token and are a fifth of the file in small models; eight bits cost them next to nothing.
// This format equals Q8_0 of a GGUF file bit for bit, so an export to llama.cpp holds it as it is; vLLM and
// transformers hold them in BF16.
inline constexpr const char* kEmbeddingFormat = "int8g32";

struct Quantize {
  RunOptions run;
  std::string format, method, embedding, out, json;  // If the method is empty, settle_defaults() chooses it.
  std::string predictor = kPredictorFormat;
  std::vector<std::string> calibration;
  std::vector<std::string> steps = kDefaultSteps;
  int64_t tokens = 0, samples = 0, context = 0;  // 0 means calibration_tokens_for() or window_length().
  bool calibrated = false;                       // It is true if an option about calibration was given.
  bool fresh = false;
  uint64_t seed = 0;
  bool keep_embedding = false, rotate = false, atom = false;
  // These are the parts of SCVQ that run as in the paper; if empty, vector codes are made by feedback and descent.
  std::vector<std::string> paper;
  float alpha = 0.25f;
  int64_t gradient_tokens = 32768;
  int view_bits = 0;
  float view_weight = 0;
};

void quantize(Quantize options);

// The functions from here on prepare the work, and are in start.cc. check_room throws Error where the disk lacks room
// for the output and for the journal beside it.
void check_room(const Quantize& options, const Checkpoint& source, const std::map<LinearId, FormatSpec>& formats);
// Prints how long calibrating will take, from a few seconds of measurements.
void foretell(const Quantize& options, const Checkpoint& source, const Dataset& data, Runner& runner, ThreadPool& pool);

// Keeps finished parts in OUT.journal, as `compress` does, so the same command resumes there after an interrupt. The
// order of columns that --atom finds is not in the journal, so with --atom the work begins anew.
class Kept {
 public:
  Kept(const Quantize& options, const Checkpoint& source, const Dataset& data, const Runner& runner);
  ~Kept();  // It removes an empty journal after an error.
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  StopStore* store() { return journal_ ? &*journal_ : nullptr; }
  void remove();  // It is called after the output is complete.

 private:
  std::string folder_;
  std::optional<JournalLock> lock_;
  std::optional<Journal> journal_;
};

}  // namespace fidelio::app
