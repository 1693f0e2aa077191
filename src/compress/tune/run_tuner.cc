#include "compress/tune/run_tuner.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "core/file.h"
#include "core/progress.h"
#include "train/state.h"

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

void put_aside(const std::string& path, const std::string& why, const std::function<void(const std::string&)>& say) {
  const std::string aside = path + ".damaged";
  check(!std::filesystem::exists(aside), "{} is damaged ({}), and {} is there already: remove both to begin again",
        path, why, aside);
  std::filesystem::rename(path, aside);
  say(fmt::format("{} is damaged ({}): it is now {}, and is made anew", path, why, aside));
}

void put_aside_damaged_state(const std::string& state, const std::function<void(const std::string&)>& say) {
  const std::string damage = train::damage_of_state(state);
  if (damage.empty()) return;
  // A file that never was a state is somebody else's. It is refused where it is read.
  const auto file = MappedFile::open(state);
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()),
                              std::min<size_t>(file->bytes().size(), 64));
  if (text.empty() || text.find("\"__metadata__\"") != text.npos) put_aside(state, damage, say);
}

}  // namespace fidelio
