#include "compress/tune/tune_data.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compress/inputs/sets.h"
#include "compress/self_samples.h"
#include "core/file.h"
#include "core/foreign/json.h"
#include "core/hash.h"

namespace fidelio {
namespace {

using Windows = std::vector<std::vector<int32_t>>;

// Samples of a file, where it holds those of this job; none if it is not there.
std::optional<Windows> read_samples(const std::string& path, const nlohmann::json& job, int32_t vocabulary) {
  if (path.empty() || !std::filesystem::exists(path)) return std::nullopt;
  const nlohmann::json file = parse_json(read_text_file(path), path);
  check(file.is_object() && file.contains("samples_of") && file.contains("sequences"),
        "{} holds no samples; remove it or name another file", path);
  check(file["samples_of"] == job, "{} holds samples of another model, text or seed: {}; this run asks for {}", path,
        file["samples_of"].dump(), job.dump());
  Windows windows = file["sequences"].get<Windows>();
  for (const auto& w : windows)
    for (const int32_t id : w) check(id >= 0 && id < vocabulary, "{}: token {} of {}", path, id, vocabulary);
  return windows;
}

Windows samples_of(const TuneText& text, const TuneSource& from, const RunnerOptions& serving, bool on_gpu,
                   const Dataset& read, int64_t context, uint64_t seed, const Ranks& ranks) {
  const Checkpoint& source = from.source;
  const nlohmann::json job = {{"source", source.weights_sha256()}, {"text", read.sha256}, {"tokens", text.tokens},
                              {"samples", text.samples},           {"context", context},  {"seed", seed}};
  // What one rank finds and another does not, all write anew.
  const auto kept = read_samples(text.samples_file, job, source.config().v);
  const auto found = ranks.gather({kept ? 1.0 : 0.0});
  if (std::all_of(found.begin(), found.end(), [](const auto& of_rank) { return of_rank[0] != 0; })) return *kept;
  const Windows written = sample_sequences(from.make_runner, serving, read.sequences, text.samples, context, seed,
                                           on_gpu ? 256 : 32, ranks);
  if (ranks.first() && !text.samples_file.empty())
    write_file_atomically(text.samples_file, nlohmann::json{{"samples_of", job}, {"sequences", written}}.dump());
  return written;
}

}  // namespace

train::TuneData tune_data_of(const std::vector<Document>& documents, const TuneText& text, const TuneSource& from,
                             const RunnerOptions& serving, bool on_gpu, int64_t context, uint64_t seed,
                             const Ranks& ranks) {
  const Dataset read = dataset_of(documents, context, text.tokens);
  Windows all = read.sequences;
  if (text.samples > 0) {
    const Windows written = samples_of(text, from, serving, on_gpu, read, context, seed, ranks);
    all.insert(all.end(), written.begin(), written.end());
  }
  std::erase_if(all, [](const std::vector<int32_t>& s) { return s.size() < 2; });
  int64_t tokens = 0;
  for (const auto& s : all) tokens += static_cast<int64_t>(s.size());
  check(text.held * 2 <= tokens, "--held-tokens {} of a text of {} tokens: at most half may be kept aside", text.held,
        tokens);
  const int64_t every = tokens / text.held;
  train::TuneData data;
  Sha256 hash;
  for (size_t i = 0; i < all.size(); ++i) {
    hash.update(std::as_bytes(std::span(all[i])));
    (static_cast<int64_t>(i) % every == every - 1 ? data.held : data.windows).push_back(std::move(all[i]));
  }
  check(!data.held.empty(),
        "a text of {} windows is too short to keep some of them aside: give more, or a smaller "
        "--context",
        all.size());
  data.sha256 = hash.hex();
  return data;
}

}  // namespace fidelio
