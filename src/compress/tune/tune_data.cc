#include "compress/tune/tune_data.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compress/inputs/sets.h"
#include "compress/self_samples.h"
#include "core/foreign/json.h"
#include "core/hash.h"
#include "io/identity/weights_hash.h"
#include "io/safetensors.h"

namespace fidelio {
namespace {

using Windows = std::vector<std::vector<int32_t>>;

// Returns the samples of a file, or nothing if there is no file. Throws Error if it holds those of another job.
std::optional<Windows> read_samples(const std::string& path, const nlohmann::json& job, int32_t vocabulary) {
  if (path.empty() || !std::filesystem::exists(path)) return std::nullopt;
  const Safetensors file = Safetensors::open(path);
  const auto found = file.metadata().find("samples_of");
  check(found != file.metadata().end() && file.contains("tokens") && file.contains("ends"),
        "{} holds no samples; remove it or name another file", path);
  const nlohmann::json of = parse_json(found->second, path);
  check(of == job, "{} holds samples of another model, text or seed: {}; this run asks for {}", path, of.dump(),
        job.dump());
  const OwnedTensor tokens = file.get("tokens"), ends = file.get("ends");
  check(tokens.view.dtype == DType::i32 && ends.view.dtype == DType::i64,
        "{}: tokens of {} and ends of {}, where I32 and I64 are expected; remove it", path, name_of(tokens.view.dtype),
        name_of(ends.view.dtype));
  const auto ids = tokens.as<const int32_t>();
  for (const int32_t id : ids) check(id >= 0 && id < vocabulary, "{}: token {} of {}", path, id, vocabulary);
  Windows windows;
  int64_t begin = 0;
  for (const int64_t end : ends.as<const int64_t>()) {
    check(end >= begin && end <= std::ssize(ids), "{}: a sample ends at {} of {} tokens; remove the file", path, end,
          ids.size());
    windows.emplace_back(ids.begin() + begin, ids.begin() + end);
    begin = end;
  }
  // A file of an earlier fidelio has no hash.
  const auto sha256 = file.metadata().find("sha256");
  check(sha256 == file.metadata().end() || sha256->second == file.weights_sha256(),
        "{} is damaged (its SHA-256 differs); remove it, and it is written again", path);
  check(begin == std::ssize(ids), "{}: samples end at {} of {} tokens; remove the file", path, begin, ids.size());
  return windows;
}

void write_samples(const std::string& path, const nlohmann::json& job, const Windows& windows) {
  std::vector<int64_t> ends;
  for (const auto& w : windows) ends.push_back((ends.empty() ? 0 : ends.back()) + std::ssize(w));
  const auto write_ends = [&](const ByteSink& sink) { sink(std::as_bytes(std::span(ends))); };
  const auto write_tokens = [&](const ByteSink& sink) {
    for (const auto& w : windows) sink(std::as_bytes(std::span(w)));
  };
  const std::vector<TensorToWrite> tensors = {
      {"ends", DType::i64, Shape{std::ssize(ends)}, write_ends},
      {"tokens", DType::i32, Shape{ends.empty() ? 0 : ends.back()}, write_tokens}};
  WeightsHash hash;
  for (const TensorToWrite& t : tensors) hash.add(t);
  write_safetensors(path, tensors, {{"samples_of", job.dump()}, {"sha256", hash.hex()}});
}

Windows samples_of(const TuneText& text, const TuneSource& from, const RunnerOptions& serving, bool on_gpu,
                   const Dataset& read, int64_t context, uint64_t seed, const Ranks& ranks) {
  const Checkpoint& source = from.source;
  const nlohmann::json job = {{"source", source.weights_sha256()}, {"text", read.sha256}, {"tokens", text.tokens},
                              {"samples", text.samples},           {"context", context},  {"seed", seed}};
  // All ranks write the samples anew unless every rank has found them.
  std::optional<Windows> kept;
  try {
    kept = read_samples(text.samples_file, job, source.config().v);
  } catch (const Error& error) {
    if (!text.about_damaged) throw;
    text.about_damaged(fmt::format("{}: it is made anew", error.what()));
  }
  const auto found = ranks.gather({kept ? 1.0 : 0.0});
  if (std::all_of(found.begin(), found.end(), [](const auto& of_rank) { return of_rank[0] != 0; })) return *kept;
  const Windows written = sample_sequences(from.make_runner, serving, read.sequences, text.samples, context, seed,
                                           on_gpu ? 256 : 32, ranks);
  if (ranks.first() && !text.samples_file.empty()) write_samples(text.samples_file, job, written);
  return written;
}

}  // namespace

train::TuneData tune_data_of(const std::vector<Document>& documents, const TuneText& text, const TuneSource& from,
                             const RunnerOptions& serving, bool on_gpu, int64_t context, uint64_t seed,
                             const Ranks& ranks) {
  return tune_data_of(dataset_of(documents, context, text.tokens), text, from, serving, on_gpu, context, seed, ranks);
}

train::TuneData tune_data_of(const Dataset& read, const TuneText& text, const TuneSource& from,
                             const RunnerOptions& serving, bool on_gpu, int64_t context, uint64_t seed,
                             const Ranks& ranks) {
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
