// This file has the parts of the command line that verbs share. There is one source file per verb.
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

// These are options of every verb that runs a model.
struct RunOptions {
  std::string model;
  std::string device = "cpu";
  int threads = 0;
  std::string isa;
  std::string activations = "a16";
  std::string kv;  // "" means f16, or f32 with f32 activations.
};
// Returns a check for a model's folder. Its message tells how to download a model if the argument looks like a name on
// the hub and is no folder here.
CLI::Validator model_folder();
void add_model(CLI::App& verb, RunOptions& options);        // It adds MODEL, a folder.
void add_device(CLI::App& verb, RunOptions& options);       // It adds --device --threads --isa.
void add_run_options(CLI::App& verb, RunOptions& options);  // It adds those and --activations --kv.
void add_json(CLI::App& verb, std::string& path);           // It adds --json FILE, where - means standard output.
void add_report(CLI::App& verb, std::string& path);         // It adds --report FILE, a page.

// These check numbers on the command line. CLI11's own checks accept "nan", and where there is no upper limit they
// print the largest double with all its digits.
CLI::Validator above_zero();
CLI::Validator zero_or_more();
CLI::Validator from_to(double low, double high);
// Larger numbers of sequences side by side, or of tokens in a cache, are taken for mistakes. The products of these two
// fit 64 bits.
constexpr int64_t kMostSideBySide = int64_t{1} << 20, kMostCacheTokens = int64_t{1} << 40;

// These find out before the work whether outputs can be written: a new folder, whose name must be free in an existing
// folder, and files that are written at the end ("" and "-" are ignored).
void check_output_name(const std::string& name);  // It checks the name given by -o, where "-" is no name.
void check_new_folder(const std::string& folder);
std::string without_slash(std::string folder);  // It removes a slash at the end, so names beside it can be made.
void check_can_write(const std::vector<std::string>& files);

// Returns the length of windows of texts. `asked` is the value of `option`, which the model's context must hold; 0
// means 512, or the context if that is shorter.
int64_t window_length(const std::string& option, int64_t asked, const ModelConfig& config);

Activations parse_activations(const std::string& name);
KvFormat parse_kv(const std::string& name);
// Returns the runner's options. With f32 activations the cache is FP32 too, unless --kv says otherwise, as that mode is
// for oracles.
RunnerOptions runner_options(const RunOptions& options);
// Tells whether --device asks for a GPU. Throws Error for an unknown device, and for CPU options beside a GPU.
bool on_gpu(const RunOptions& options);
// Opens the checkpoint on the device that was asked for.
std::unique_ptr<Runner> make_runner(const RunOptions& run, const Checkpoint& checkpoint, const RunnerOptions& options);

// This is a model opened with everything that text needs: checkpoint, tokenizer, chat template, stop tokens.
struct TextModel {
  Checkpoint checkpoint;
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat;
  std::vector<int32_t> stop_ids;
};
TextModel open_model(const std::string& folder);

inline constexpr int kJsonSchema = 1;  // It is raised when a key changes its meaning or is removed (docs/json.md).
// Writes to a file atomically, or to standard output for "-", and adds "schema" and "fidelio" (the version) to the
// verb's report. Does nothing for "".
void write_json(const std::string& path, const nlohmann::json& value);
// Makes sure that printed text has arrived, or throws an error; a closed pipe is std::errc::broken_pipe.
void flush_output();
// Returns true if the report goes to standard output as JSON, so no other text may.
inline bool quiet(const std::string& json_path) { return json_path == "-"; }

// This is the last part of a path: "models/quill-26m/" becomes "quill-26m".
std::string folder_name(const std::string& folder);

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
