// What a compression will need, known before it begins: memory from sizes alone, time from measurements of a few
// seconds.
#pragma once
#include <string>
#include <vector>

#include "model/dataset.h"
#include "sensitivity/candidates.h"

namespace fidelio::app {

struct CompressSize {
  const Checkpoint& source;
  const std::vector<LinearGroup>& groups;
  const std::vector<FormatSpec>& formats;
  int64_t calibration_tokens = 0, search_tokens = 0;
  int64_t rows = 0, logit_rows = 0;  // of the largest batch
  int64_t trial_tokens = 0;          // of one half of the texts
  std::string method;
  int permutations = 0, max_trials = 0;  // besides the look at the unseen text
  int generations = 0;                   // of evolution; 0: there is none
  int ranks = 1;                         // that share candidates and sensitivities
  int64_t answering_tokens = 0;          // room for the questions answered side by side; 0: none are asked
  bool on_gpu = false;                   // models live there; the host's memory holds what is stored
};

struct MemoryNeed {
  std::string what;
  int64_t bytes = 0;
};
// Everything of size that the host holds at the same time at the worst moment. A GPU's own memory is not foreseen: what
// does not fit there says so when it is asked for.
std::vector<MemoryNeed> memory_needs(const CompressSize& size);
int64_t total(const std::vector<MemoryNeed>& needs);
// What this process may still take: what the system has available, or less if its control group says so. Throws Error
// if the system does not say.
int64_t available_memory();
// Throws Error naming what is needed, what there is, and what would make it smaller.
void check_memory(const std::vector<MemoryNeed>& needs, int64_t available);

// Seconds of each phase, at most: every format is counted in the sensitivities, every trial in the search. Answering
// questions is not counted: how long answers become is not known.
struct TimeNeed {
  double candidates = 0, sensitivities = 0, search = 0;
  double total() const { return candidates + sensitivities + search; }
};
// From one batch of `sample` through the reference, and pieces of two linears and of the embedding in every format.
TimeNeed time_need(const CompressSize& size, Runner& reference, const Dataset& sample, ThreadPool& pool);

}  // namespace fidelio::app
