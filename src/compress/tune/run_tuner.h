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

// A tuner's state of a name that we chose is kept under another one where it is damaged, which `say` is told, so that
// tuning begins again; nothing where it is whole, not there, or never was one.
void put_aside_damaged_state(const std::string& state, const std::function<void(const std::string&)>& say);
// The same of a folder or file that is damaged as `why` says. Throws Error where that name is taken.
void put_aside(const std::string& path, const std::string& why, const std::function<void(const std::string&)>& say);

}  // namespace fidelio
