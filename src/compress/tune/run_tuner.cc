#include "compress/tune/run_tuner.h"

#include "core/progress.h"

namespace fidelio {

train::TuneResult run_tuner(const Checkpoint& model, const Checkpoint& source, const train::TuneData& data,
                            const train::TuneOptions& how, bool on_gpu, const RunnerOptions& where, const Ranks& ranks,
                            const std::function<void(const std::string&)>& say) {
  std::optional<Progress> progress;
  int64_t before = 0;
  const auto advance = [&](const train::TuneProgress& p) {
    if (!progress) progress.emplace("tuning", p.total);
    progress->advance(p.done - std::exchange(before, p.done));
    if (say && !p.note.empty()) say(p.note);
  };
  return on_gpu ? train::tune_on_gpu(model, source, data, how, where.gpu, advance, ranks)
                : train::tune_on_host(model, source, data, how, where.threads, advance, ranks);
}

Checkpoint open_whole(const std::string& folder) {
  try {
    Checkpoint checkpoint = Checkpoint::open(folder);
    check(checkpoint.weights_sha256() == checkpoint.written_weights_sha256(), "the SHA-256 of its weights differs");
    return checkpoint;
  } catch (const std::exception& e) {
    throw Error("{} is damaged ({}): remove it, and it is made again", folder, e.what());
  }
}

}  // namespace fidelio
