// The tuner (train/tune/tuner.h) where a model is served, with a bar of its progress.
#pragma once
#include "runtime/runner.h"
#include "train/tune/tuner.h"

namespace fidelio {

// `where`: the GPU, or the threads of the CPU. `say`, if any, hears what was measured.
train::TuneResult run_tuner(const Checkpoint& model, const Checkpoint& source, const train::TuneData& data,
                            const train::TuneOptions& how, bool on_gpu, const RunnerOptions& where,
                            const Ranks& ranks = Ranks(), const std::function<void(const std::string&)>& say = {});

// A checkpoint that a run left for itself to go on with. Throws Error where it was damaged since it was written.
Checkpoint open_whole(const std::string& folder);

}  // namespace fidelio
