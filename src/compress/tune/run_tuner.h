// This file runs the tuner (train/tune/tuner.h) on the device where a model is served, with a progress bar.
#pragma once
#include "runtime/runner.h"
#include "train/tune/tuner.h"

namespace fidelio {

// Tunes `model`. `where` names the GPU, or the threads of the CPU. `say`, if there is one, is told what was measured.
train::TuneResult run_tuner(const Checkpoint& model, const Checkpoint& source, const train::TuneData& data,
                            const train::TuneOptions& how, bool on_gpu, const RunnerOptions& where,
                            const Ranks& ranks = Ranks(), const std::function<void(const std::string&)>& say = {});

// Opens a checkpoint that a run left for itself to go on with. Throws Error if it was damaged since it was written.
Checkpoint open_whole(const std::string& folder);

// Renames a damaged state of a tuner, whose name fidelio chose, and tells `say`, so that tuning begins again. A file
// that is whole, that does not exist or that never was a state is left alone.
void put_aside_damaged_state(const std::string& state, const std::function<void(const std::string&)>& say);
// Renames a folder or file that is damaged as `why` says. Throws Error if the other name is taken.
void put_aside(const std::string& path, const std::string& why, const std::function<void(const std::string&)>& say);

}  // namespace fidelio
