#include "app/options/tune_text.h"

#include <filesystem>

#include "compress/self_samples.h"
#include "core/file.h"
#include "core/foreign/json.h"
#include "core/hash.h"
#include "runtime/dataset.h"

namespace fidelio::app {
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

Windows samples_of(const TuneText& text, const RunOptions& asked, const Checkpoint& source, const Dataset& read,
                   int64_t context, uint64_t seed) {
  const nlohmann::json job = {{"source", source.weights_sha256()}, {"text", read.sha256}, {"tokens", text.tokens},
                              {"samples", text.samples},           {"context", context},  {"seed", seed}};
  if (auto kept = read_samples(text.samples_file, job, source.config().v)) return *kept;
  RunOptions run = asked;
  run.activations = "a16";
  const Windows written =
      sample_sequences([&](const RunnerOptions& options) { return make_runner(run, source, options); },
                       runner_options(run), read.sequences, text.samples, context, seed, on_gpu(run) ? 256 : 32);
  if (!text.samples_file.empty())
    write_file_atomically(text.samples_file, nlohmann::json{{"samples_of", job}, {"sequences", written}}.dump());
  return written;
}

}  // namespace

train::TuneData read_tune_data(const TuneText& text, const RunOptions& run, const Checkpoint& source, int64_t context,
                               uint64_t seed) {
  const Tokenizer tokenizer = Tokenizer::load(source.texts());
  const auto chat = ChatTemplate::load(source.texts());
  Dataset read = read_dataset(text.files, tokenizer, chat ? &*chat : nullptr, {context, text.tokens});
  Windows all = read.sequences;
  if (text.samples > 0) {
    const Windows written = samples_of(text, run, source, read, context, seed);
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

train::Products parse_products(const std::string& name, bool gpu) {
  check(gpu || name.empty() || name == "f32", "--products {}: a CPU tunes in FP32; give it with --device cuda", name);
  if (name.empty()) return gpu ? train::Products::tf32 : train::Products::f32;
  if (name == "f32") return train::Products::f32;
  if (name == "tf32") return train::Products::tf32;
  if (name == "bf16") return train::Products::bf16;
  throw Error("--products {}: expected f32, tf32 or bf16", name);
}

}  // namespace fidelio::app
