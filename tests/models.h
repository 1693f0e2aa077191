// This file has the parts that tests over whole models share: the tiny checkpoints of tests/models, their goldens, and
// logits in any batching.
#pragma once
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "core/file.h"
#include "kernels/cpu/linear/linear.h"
#include "runtime/page_table.h"
#include "runtime/runner.h"

namespace fidelio {

// There is one of each family and each rope; see tools/make_model_goldens.py.
inline const std::vector<std::string> kTinyModels = {"llama2",      "llama32",      "mistral", "qwen2", "qwen3",
                                                     "linear_rope", "dynamic_rope", "yarn",    "keys5"};

// These are the families whose layers differ from Llama's, two models each.
inline const std::vector<std::string> kFamilyModels = {"smollm3",       "smollm3_window", "ministral",    "ministral3",
                                                       "mistral_small", "phi3",           "phi4",         "granite",
                                                       "granite_bias",  "olmo2",          "olmo2_bias",   "olmo3",
                                                       "olmo3_keys5",   "gemma3",         "gemma3_image", "qwen3_vl"};

// These are mixtures of experts, for each way in which files store them.
inline const std::vector<std::string> kExpertModels = {"mixtral", "olmoe", "qwen3_moe", "granitemoe"};

// These have delta nets beside attention or alone, two models for each class.
inline const std::vector<std::string> kDeltaModels = {
    "qwen3_5",         "qwen3_5_linear", "qwen3_5_moe",        "qwen3_5_moe_plain", "qwen3_next",
    "qwen3_next_full", "qwen3_5_image",  "qwen3_5_image_tied", "qwen3_5_moe_image", "qwen3_5_moe_image_each"};

// These are mixtures of experts with other routers, with shared experts or with layers that have none.
inline const std::vector<std::string> kRoutedModels = {"qwen2_moe",       "qwen2_moe_step", "glm4_moe",
                                                       "glm4_moe_groups", "minimax_m2",     "minimax_m2_whole"};

// These have sinks in attention and clamped gates in experts, whose files hold them by columns or in MXFP4.
inline const std::vector<std::string> kSinkModels = {"gpt_oss", "gpt_oss_keys5", "gpt_oss_mxfp4"};

// These are Gemma 4's kinds, two models each: dense, with embeddings for each layer, and mixtures.
inline const std::vector<std::string> kGemma4Models = {"gemma4",         "gemma4_unified", "gemma4_e",
                                                       "gemma4_e_image", "gemma4_moe",     "gemma4_moe_image"};

inline std::string source_path(const std::string& path) { return FIDELIO_SOURCE_DIR "/" + path; }
inline std::string tiny_model(const std::string& name) { return source_path("tests/models/" + name); }

inline nlohmann::json golden_json(const std::string& name) {
  return nlohmann::json::parse(read_text_file(source_path("tests/golden/" + name + ".json")));
}
// Returns tests/golden/NAME.logits as (ids, columns). The machine must be little-endian, as the file is.
inline std::vector<float> golden_logits(const std::string& name) {
  const std::string bytes = read_text_file(source_path("tests/golden/" + name + ".logits"));
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

inline std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (cpu::Isa isa : cpu::supported_isas()) names.emplace_back(cpu::name_of(isa));
  return names;
}

// Returns options for FP32 activations and cache, the exact mode for oracles.
inline RunnerOptions exact_options(const std::string& isa = "", int threads = 2) {
  return {.threads = threads, .isa = isa, .kv = KvFormat::f32, .max_logit_rows = 256, .mode = Activations::f32};
}

// Returns the logits (n, v) of every position of one sequence, fed in chunks of these sizes over these cache pages. The
// cache is kept, and so is the state where the model has one, so a test may continue after it. `first` is the position
// of ids[0].
inline std::vector<float> run_chunks(Runner& runner, std::span<const int32_t> ids, const std::vector<int64_t>& chunks,
                                     const std::vector<int32_t>& pages, Activations mode, int64_t first = 0) {
  std::vector<float> all;
  int64_t begin = 0;
  const bool has_state = runner.program().state.floats() > 0;
  if (has_state) runner.reserve_states(1);
  for (int64_t count : chunks) {
    Batch batch;
    batch.append(ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), first + begin, pages, count,
                 RowKind::output);
    if (has_state && first + begin > 0) batch.begin_from(0);
    if (has_state) batch.keep_state(count - 1, 0);
    const auto logits = runner.step(batch, mode);
    all.insert(all.end(), logits.begin(), logits.end());
    begin += count;
  }
  return all;
}

inline std::vector<int32_t> first_pages(int64_t tokens) {
  std::vector<int32_t> pages(static_cast<size_t>(PageTable::pages_for(tokens)));
  std::iota(pages.begin(), pages.end(), 0);
  return pages;
}

inline std::vector<float> run_whole(Runner& runner, std::span<const int32_t> ids, Activations mode) {
  const auto n = static_cast<int64_t>(ids.size());
  return run_chunks(runner, ids, {n}, first_pages(n), mode);
}

// Returns ||a - b|| / ||b||.
inline double relative_distance(std::span<const float> a, std::span<const float> b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

// This is a folder that exists during one test.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Copies a model's folder so that it can be changed: links become files, which are writable whoever owns the original.
void copy_model(const std::string& from, const std::string& to);

// Returns the names of everything in a folder and below, sorted.
std::vector<std::string> entries(const std::string& folder);

// This is the result of a shell command, which ran with the program of this build as `fidelio`.
struct CommandResult {
  int code = 0;  // It is 128 + signal if a signal ended the command.
  std::string out, err;
};
CommandResult run_command(const std::string& folder, const std::string& command);

}  // namespace fidelio
