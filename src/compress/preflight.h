// This file foresees what a compression will need before it begins: memory and disk from sizes alone, and time from
// measurements of a few seconds.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "compress/seconds.h"
#include "runtime/dataset.h"
#include "sensitivity/candidates.h"

namespace fidelio {

struct CompressSize {
  const Checkpoint& source;
  const std::vector<LinearGroup>& groups;
  const std::vector<FormatSpec>& formats;
  int64_t calibration_tokens = 0, search_tokens = 0;
  int64_t rows = 0, logit_rows = 0;                                    // rows of the largest batch
  int64_t trial_tokens = 0, certificate_tokens = 0;                    // tokens of adjustment and certificate
  Activations served = Activations::a16, measured = Activations::f32;  // activations in trials, and in sensitivities
  std::string method = "";
  int permutations = 0, max_trials = 0;  // trials before the tests on the certificate
  int generations = 0;                   // generations of evolution; 0: there is none
  int ranks = 1;                         // ranks that share candidates and sensitivities
  int64_t answering_tokens = 0;          // room for the questions answered side by side; 0: none are asked
  int64_t answering_states = 0;          // the slots for their states and prefixes, in a model that keeps some
  int64_t budget = 0;                    // bytes that a plan may have; 0: any number
  const SharedCodebooks* codebooks = nullptr;
  bool on_gpu = false;          // models live on a GPU; the host holds what is stored
  bool building_alone = false;  // only the time of building one plan is wanted
};

struct MemoryNeed {
  std::string what;
  int64_t bytes = 0;
};
// These return everything of size that is held at the same time at the worst moment, by the host and by the GPU. The
// second is meant for a compression on a GPU.
std::vector<MemoryNeed> memory_needs(const CompressSize& size);
std::vector<MemoryNeed> gpu_memory_needs(const CompressSize& size);
// Returns the bytes of the folder beside the output: every candidate, and plans while they are built and as they are
// written.
int64_t disk_need(const CompressSize& size);
int64_t total(const std::vector<MemoryNeed>& needs);
// Throws Error if the folder of `out` does not exist or has less room than is needed. Files that an interrupted run
// left in OUT.journal count as free. `why` and `remedy` become part of the message.
void check_disk(const std::string& out, int64_t need, std::string_view why, std::string_view remedy);
// Returns the memory that this process may still take: what the system has available, or less if its control group says
// so. Throws Error if the system does not say.
int64_t available_memory();
// Throws Error if the needs exceed the available memory. The message says whose memory it is and what would help.
void check_memory(const std::vector<MemoryNeed>& needs, int64_t available, std::string_view whose);

// Returns how many tokens of calibration text are worth their time for a model of so many parameters. GPTQ gets better
// with more tokens, and they get dearer with the model (docs/results.md).
int64_t calibration_tokens_for(int64_t parameters, bool on_gpu);
// Returns the same for the text that sensitivities are measured on.
int64_t search_tokens_for(int64_t parameters, bool on_gpu);

// Returns the rows of the largest batch in which texts pass a model: a window at least, and on a GPU so many that its
// units are busy and launches are few, as far as inputs of all rows take 256 MB.
int64_t batch_rows_for(const ModelConfig& config, int64_t context, bool on_gpu);
// Returns the rows whose logits are computed at once. A GPU compares as many as it has multiprocessors, or twice as
// many.
int64_t logit_rows_for(int64_t asked, bool on_gpu);

// A TimeNeed says how long each phase takes. Answering questions is not counted, since nobody knows how long answers
// become. A search to a target counts kTypicalTrials trials before the tests on the certificate. `search_at_most`
// counts as many trials as there may be.
constexpr int kTypicalTrials = 3, kTypicalLadder = 6;
struct TimeNeed {
  Seconds candidates, sensitivities, search, search_at_most;
  Seconds building;  // the time to build one plan, with embedding and head
  Seconds total() const { return candidates + sensitivities + search; }
};
// Estimates the times. It takes one batch of `sample` through a layer and the head of the reference, dense and as
// codes, and quantises pieces of two linears and of the embedding in every format. The reference is left as it was.
TimeNeed time_need(const CompressSize& size, Runner& reference, const Dataset& sample, ThreadPool& pool);
// Estimates how long it takes to quantise all of a model in one format with calibration on `data`, each linear by the
// inputs that the quantised ones before it give. The runner holds the source and is left with it. It is not meant for
// vector codes, whose samples would take long themselves.
Seconds quantising_time(const Checkpoint& source, const FormatSpec& format, bool with_embedding, const Dataset& data,
                        Runner& runner, ThreadPool& pool);

}  // namespace fidelio
