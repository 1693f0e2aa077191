// What a compression will need, known before it begins: memory from sizes alone, time from measurements of a few
// seconds.
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
  int64_t rows = 0, logit_rows = 0;                                    // of the largest batch
  int64_t trial_tokens = 0, certificate_tokens = 0;                    // of adjustment and certificate
  Activations served = Activations::a16, measured = Activations::f32;  // in trials, in sensitivities
  std::string method = "";
  int permutations = 0, max_trials = 0;  // besides the look at the unseen text
  int generations = 0;                   // of evolution; 0: there is none
  int ranks = 1;                         // that share candidates and sensitivities
  int64_t answering_tokens = 0;          // room for the questions answered side by side; 0: none are asked
  int64_t budget = 0;                    // bytes that a plan may have; 0: any number
  const SharedCodebooks* codebooks = nullptr;
  bool on_gpu = false;          // models live there; the host's memory holds what is stored
  bool building_alone = false;  // of the times what building one plan takes is wanted, and nothing that is measured
};

struct MemoryNeed {
  std::string what;
  int64_t bytes = 0;
};
// Everything of size that is held at the same time at the worst moment: by the host, and by the GPU of a size that is
// on one.
std::vector<MemoryNeed> memory_needs(const CompressSize& size);
std::vector<MemoryNeed> gpu_memory_needs(const CompressSize& size);
// Bytes of the folder beside the output: every candidate, a plan's weights while it is built, and as they are written.
int64_t disk_need(const CompressSize& size);
int64_t total(const std::vector<MemoryNeed>& needs);
// Throws Error where the folder that `out` is to stand in is not there, or has less free than is needed; what an
// interrupted run left in OUT.journal counts as free. `why` and `remedy` end the sentences "this needs so much ...".
void check_disk(const std::string& out, int64_t need, std::string_view why, std::string_view remedy);
// What this process may still take: what the system has available, or less if its control group says so. Throws Error
// if the system does not say.
int64_t available_memory();
// Throws Error naming what is needed, whose memory there is how much of, and what would make it smaller.
void check_memory(const std::vector<MemoryNeed>& needs, int64_t available, std::string_view whose);

// Tokens of calibration text that are worth their time for a model of so many parameters: GPTQ gets better with them, and
// they get dearer with the model (docs/results.md).
int64_t calibration_tokens_for(int64_t parameters, bool on_gpu);
// Tokens of the text that sensitivities are measured on, likewise.
int64_t search_tokens_for(int64_t parameters, bool on_gpu);

// Of each phase. Answering questions is not counted: how long answers become is not known. A search to a target is
// counted with kTypicalTrials plans measured before the look at unseen text, and at most with all there may be.
constexpr int kTypicalTrials = 3, kTypicalLadder = 6;
struct TimeNeed {
  Seconds candidates, sensitivities, search, search_at_most;
  Seconds building;  // one plan, each linear against what the ones before it give; with the vocabulary's matrices
  Seconds total() const { return candidates + sensitivities + search; }
};
// From one batch of `sample` through a layer and the head of the reference, dense and as codes, and from pieces of two
// linears and of the embedding in every format. The reference is left as it was.
TimeNeed time_need(const CompressSize& size, Runner& reference, const Dataset& sample, ThreadPool& pool);
// Estimates how long it takes to quantise all of a model in one format, calibrated on `data`, each linear against what
// the ones before it give. The runner holds the source and is left with it. Not for vector codes, whose samples would
// take long themselves.
Seconds quantising_time(const Checkpoint& source, const FormatSpec& format, bool with_embedding, const Dataset& data,
                        Runner& runner, ThreadPool& pool);

}  // namespace fidelio
