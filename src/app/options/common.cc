#include "app/options/common.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "app/options/suggest.h"
#include "core/file.h"
#include "core/foreign/units.h"

namespace fidelio::app {

CLI::Validator model_folder() { return CLI::Validator(about_model, ""); }

void add_model(CLI::App& verb, RunOptions& o) {
  verb.add_option(
          "MODEL", o.model,
          "Model: a Hugging Face folder (quantised by GPTQ, AWQ or compressed-tensors too), one made by fidelio, or a "
          ".gguf file")
      ->required()
      ->check(model_folder());
}

void add_device(CLI::App& verb, RunOptions& o) {
  verb.add_option("--device", o.device, "Where the model runs: cpu, cuda, or cuda:1 for the second GPU");
  verb.add_option("--threads", o.threads, "Worker threads; 0 = all there are")->check(CLI::Range(0, 1024));
  verb.add_option("--isa", o.isa, "Kernels to use instead of the best ones: portable, avx2, avx512, amx");
}

void add_run_options(CLI::App& verb, RunOptions& o) {
  add_device(verb, o);
  verb.add_option(
      "--activations", o.activations,
      "Precision of activations: f32 (exact), a16 (the default, what serves), a8; for studies a6, a4, and aw, as many "
      "bits as the weight's codes");
  verb.add_option("--kv", o.kv,
                  "Key and value cache: f32, f16, bf16, i8, i4x2 (default f16; f32 with --activations f32)");
}

void add_json(CLI::App& verb, std::string& path) {
  verb.add_option("--json", path, "Write the report as JSON to this file, - = standard output");
}

void add_report(CLI::App& verb, std::string& path) {
  verb.add_option("--report", path, "Write a page with tables and charts to this HTML file");
}

namespace {

// Accepts a number that `fits`; otherwise the message says what was `expected`.
CLI::Validator number_that(const std::function<bool(double)>& fits, const std::string& expected,
                           const std::string& description) {
  return CLI::Validator(
      [=](const std::string& text) {
        char* end = nullptr;
        const double x = std::strtod(text.c_str(), &end);
        const bool number = !text.empty() && *end == '\0' && std::isfinite(x);
        return number && fits(x) ? std::string() : fmt::format("\"{}\" is not {}", text, expected);
      },
      description);
}

}  // namespace

CLI::Validator above_zero() {
  return number_that([](double x) { return x > 0; }, "a number above 0", "POSITIVE");
}

CLI::Validator zero_or_more() {
  return number_that([](double x) { return x >= 0; }, "a number from 0", "NONNEGATIVE");
}

CLI::Validator from_to(double low, double high) {
  const CLI::Validator within =
      number_that([=](double x) { return x >= low && x <= high; }, fmt::format("a number from {} to {}", low, high),
                  fmt::format("in [{} - {}]", low, high));
  if (low != 0 || high != 1) return within;
  return CLI::Validator(  // The number is a share, for which people may write percent.
      [within](std::string& text) {
        const std::string message = within(text);
        const double x = std::strtod(text.c_str(), nullptr);
        return message.empty() || !(x >= 50 && x <= 100) ? message
                                                         : fmt::format("{}; did you mean {}?", message, x / 100);
      },
      within.get_description());
}

void check_output_name(const std::string& name) {
  check(!name.empty(), "-o: expected the name of what to write, got nothing");
  check(
      name != "-",
      "-o -: expected the name of what to write, got standard output, where nothing can appear complete or not at all");
}

void check_new_folder(const std::string& folder) {
  check(!folder.empty(), "-o: expected the name of a folder to write, got nothing");
  check_output_name(folder);
  check(!std::filesystem::exists(std::filesystem::symlink_status(folder)),
        "{} exists already; choose another output folder or remove it", folder);
  TemporaryFolder{folder};
}

std::string without_slash(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

void check_can_write(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    if (file.empty() || quiet(file)) continue;
    check(!std::filesystem::is_directory(file), "cannot write {}: it is a folder", file);
    AtomicFile{file};
  }
}

int64_t window_length(const std::string& option, int64_t asked, const ModelConfig& config) {
  check(asked <= config.max_positions, "{} {} is longer than the model's {}", option, asked, config.max_positions);
  return asked > 0 ? asked : std::min(512, config.max_positions);
}

Activations parse_activations(const std::string& name) {
  for (Activations mode : kAllActivations)
    if (name == name_of(mode)) return mode;
  throw Error("--activations {}: expected f32, a16, a8, a6, a4 or aw", name);
}

KvFormat parse_kv(const std::string& name) {
  for (KvFormat format : {KvFormat::f32, KvFormat::f16, KvFormat::bf16, KvFormat::i8, KvFormat::i4x2})
    if (name == name_of(format)) return format;
  throw Error("--kv {}: expected f32, f16, bf16, i8 or i4x2", name);
}

bool on_gpu(const RunOptions& o) {
  if (o.device == "cpu") return false;
  const bool numbered = o.device.rfind("cuda:", 0) == 0 && o.device.size() > 5 && o.device.size() < 9 &&
                        std::all_of(o.device.begin() + 5, o.device.end(), [](char c) { return c >= '0' && c <= '9'; });
  check(o.device == "cuda" || numbered, "--device {}: expected cpu, cuda or cuda:N", o.device);
  check(o.isa.empty(), "--isa {} chooses kernels of the CPU; leave it out with --device {}", o.isa, o.device);
  return true;
}

std::unique_ptr<Runner> make_runner(const RunOptions& run, const Checkpoint& checkpoint, const RunnerOptions& options) {
  return on_gpu(run) ? make_cuda_runner(checkpoint, options) : make_cpu_runner(checkpoint, options);
}

RunnerOptions runner_options(const RunOptions& o) {
  RunnerOptions r;
  if (on_gpu(o) && o.device.size() > 5) r.gpu = std::stoi(o.device.substr(5));
  r.threads = o.threads;
  r.isa = o.isa;
  r.mode = parse_activations(o.activations);
  r.kv = o.kv.empty() ? (r.mode == Activations::f32 ? KvFormat::f32 : KvFormat::f16) : parse_kv(o.kv);
  return r;
}

TextModel open_model(const std::string& folder) {
  Checkpoint checkpoint = Checkpoint::open(folder);
  Tokenizer tokenizer = Tokenizer::load(checkpoint.texts());
  auto chat = ChatTemplate::load(checkpoint.texts());
  auto stop = stop_token_ids(checkpoint.texts(), [&](std::string_view token) { return tokenizer.id_of(token); });
  return {std::move(checkpoint), std::move(tokenizer), std::move(chat), std::move(stop)};
}

void write_json(const std::string& path, const nlohmann::json& value) {
  if (path.empty()) return;
  nlohmann::json report = value;
  if (report.is_object()) report.update({{"schema", kJsonSchema}, {"fidelio", FIDELIO_VERSION}});
  // Text of models may hold bytes that are not UTF-8. They are replaced and never cause an exception.
  const std::string text = report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (path != "-") return write_file_atomically(path, text);
  std::fwrite(text.data(), 1, text.size(), stdout);
  flush_output();
}

void flush_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  // The first failure may have been an earlier write, whose errno is gone; a pipe still shows that nobody reads it.
  pollfd output = {STDOUT_FILENO, POLLOUT, 0};
  const bool nobody_reads = ::poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
  throw std::system_error(nobody_reads ? EPIPE : EIO, std::generic_category());
}

std::string folder_name(const std::string& folder) {
  return std::filesystem::path(folder + "/").parent_path().filename().string();
}

}  // namespace fidelio::app
