// app: the command line. One file per verb; this page is what they share.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "runtime/runner.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio::app {

// Options of every verb that runs a model.
struct RunOptions {
  std::string model;
  std::string device = "cpu";
  int threads = 0;
  std::string isa;
  std::string activations = "a16";
  std::string kv;  // "" = f16, or f32 with f32 activations
};
CLI::Validator model_folder();  // says how to download what looks like a name on the hub and is no folder here
void add_model(CLI::App& verb, RunOptions& options);        // MODEL, a folder
void add_device(CLI::App& verb, RunOptions& options);       // --device --threads --isa
void add_run_options(CLI::App& verb, RunOptions& options);  // those, --activations --kv
void add_json(CLI::App& verb, std::string& path);           // --json FILE, - = standard output
void add_report(CLI::App& verb, std::string& path);         // --report FILE, a page

// Checks of numbers on the command line. CLI11's own let "nan" through, and where there is no upper limit they print
// the largest double with all its digits.
CLI::Validator above_zero();
CLI::Validator zero_or_more();
CLI::Validator from_to(double low, double high);
// The most of sequences side by side, and of tokens in a cache, that are no slip: products of them fit 64 bits.
constexpr int64_t kMostSideBySide = int64_t{1} << 20, kMostCacheTokens = int64_t{1} << 40;

// Outputs that cannot be written are found out before the work: a new folder whose name is free, in one that is there,
// and files that come at the end ("" and "-" are none).
void check_output_name(const std::string& name);  // of -o, where "-" is no name
void check_new_folder(const std::string& folder);
std::string without_slash(std::string folder);  // at its end, so that names beside it can be made of it
void check_can_write(const std::vector<std::string>& files);

// Length of the windows of texts: what `option` asks for, which the model's context must hold; asked for 0, it is 512
// or that context if it is shorter.
int64_t window_length(const std::string& option, int64_t asked, const ModelConfig& config);

Activations parse_activations(const std::string& name);
KvFormat parse_kv(const std::string& name);
// With f32 activations the cache is FP32 too, unless --kv says otherwise: the mode is for oracles.
RunnerOptions runner_options(const RunOptions& options);
// Whether --device asks for a GPU; throws Error for a device that is none, and for CPU options beside a GPU.
bool on_gpu(const RunOptions& options);
// The checkpoint on the device that was asked for.
std::unique_ptr<Runner> make_runner(const RunOptions& run, const Checkpoint& checkpoint, const RunnerOptions& options);

// A folder opened with what text needs: checkpoint, tokenizer, chat template, stop tokens.
struct TextModel {
  Checkpoint checkpoint;
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat;
  std::vector<int32_t> stop_ids;
};
TextModel open_model(const std::string& folder);

inline constexpr int kJsonSchema = 1;  // docs/json.md; raised when a key changes its meaning or goes
// Writes to a file atomically, or to standard output for "-", with "schema" and "fidelio" (the version) beside what the
// verb reports. Nothing for "".
void write_json(const std::string& path, const nlohmann::json& value);
// What was printed has arrived, or an error says that it has not: a closed pipe as std::errc::broken_pipe.
void flush_output();
// True if the report goes to standard output as JSON, so that human text must not.
inline bool quiet(const std::string& json_path) { return json_path == "-"; }

std::string folder_name(const std::string& folder);  // the last part of a path: "models/quill-26m/" -> "quill-26m"

void add_bench(CLI::App& app);
void add_certify(CLI::App& app);
void add_chat(CLI::App& app);
void add_compare(CLI::App& app);
void add_compress(CLI::App& app);
void add_eval(CLI::App& app);
void add_export(CLI::App& app);
void add_gamma(CLI::App& app);
void add_generate(CLI::App& app);
void add_inspect(CLI::App& app);
void add_logits(CLI::App& app);
void add_noise(CLI::App& app);
void add_quantize(CLI::App& app);
void add_recovery(CLI::App& app);
void add_samples(CLI::App& app);
void add_synth(CLI::App& app);
void add_tokenize(CLI::App& app);

}  // namespace fidelio::app
