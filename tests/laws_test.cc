// These tests check over whole models those laws of docs/design.md section 3 that hold on one machine.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/rng.h"
#include "core/thread_pool.h"
#include "eval/studies/compare.h"
#include "io/safetensors.h"
#include "models.h"
#include "quant/quantize_model.h"
#include "quant/vectors/shared_codebooks.h"

namespace fidelio {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;
using testing::AllOf;
using testing::HasSubstr;

const std::vector<Activations> kModes = {Activations::f32, Activations::a16, Activations::a8};
const std::vector<KvFormat> kCaches = {KvFormat::f32, KvFormat::f16, KvFormat::bf16, KvFormat::i8, KvFormat::i4x2};
// These are formats of every kind, with whole, ragged (48 and 80 columns) and single groups.
const std::vector<std::string> kFormats = {
    "bf16",     "f16",     "f32",     "int2g32z", "int3g64z", "int4g128z",     "int4g32",   "int5g64zs8",    "int6g64",
    "int7g32z", "int8c",   "int8g64", "int4cz",   "lut2g32",  "lut3g64",       "lut4g64",   "lut5g128",      "lut6g64",
    "fp4g16",   "fp4g16z", "mxfp4",   "fp8",      "vq8k16s8", "vq8k12s4+r2.2", "vq8k12s4m", "vq8k16s8m+r2.2"};

Ids random_ids(size_t count, uint64_t seed, int vocabulary) {
  Rng rng(seed);
  Ids ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocabulary)));
  return ids;
}

LinearWeight rounded(const Checkpoint& source, LinearId id, const std::string& format, ThreadPool& pool,
                     const SharedCodebooks& codebooks = {}) {
  const LinearWeight weight = source.linear(id);
  LinearWeight q = quantize_rtn(parse_format(format), decode(weight), weight.out, weight.in,
                                {.importance = {}, .codebooks = &codebooks}, pool);
  q.bias = weight.bias;
  return q;
}

// The tests below check row invariance: batched = single, chunked = whole, step by step = prefill, any thread count,
// any pages; bit for bit.

// These are held constant: model, instruction set, activations, cache format, weights. If `quantised`, each linear has
// another format.
struct Kernels {
  std::string model, isa;
  KvFormat cache;
  bool quantised;
};

std::unique_ptr<Runner> make_runner(const Checkpoint& checkpoint, const Kernels& k, int threads) {
  auto runner = make_cpu_runner(checkpoint, {.threads = threads,
                                             .isa = k.isa,
                                             .kv = k.cache,
                                             .max_logit_rows = 256,
                                             .cache_tokens = 32 * kPageTokens,
                                             .mode = Activations::f32});
  if (!k.quantised) return runner;
  ThreadPool pool(1);
  size_t next = 0;
  for (LinearId id : linears_of(checkpoint.config()))
    runner->set_linear(id, runner->pack(rounded(checkpoint, id, kFormats[next++ % kFormats.size()], pool)));
  return runner;
}

// Runs five sequences side by side, of which `ids` is the middle one, each in its own scattered pages. Returns the
// logits of the middle one. An earlier step fills the cache with everything before position `fed`, so the tested step
// has rows at many depths.
std::vector<float> run_among_others(Runner& runner, const Ids& ids, Activations mode) {
  const std::vector<std::vector<int32_t>> pages = {{7, 3}, {1}, {11, 4}, {9}, {2, 0}};
  const std::vector<int64_t> length = {37, 1, static_cast<int64_t>(ids.size()), 5, 64}, fed = {0, 0, 9, 4, 50};
  std::vector<Ids> all;
  for (size_t s = 0; s < pages.size(); ++s)
    all.push_back(s == 2 ? ids : random_ids(static_cast<size_t>(length[s]), 50 + s, runner.config().v));
  std::vector<float> result;
  for (const bool second : {false, true}) {
    Batch batch;
    size_t first_row = 0, rows = 0;
    for (size_t s = 0; s < pages.size(); ++s) {
      const int64_t begin = second ? fed[s] : 0, end = second ? length[s] : fed[s];
      if (begin == end) continue;
      if (s < 2) first_row += static_cast<size_t>(end - begin);
      if (s == 2) rows = static_cast<size_t>(end - begin);
      batch.append(std::span(all[s]).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), begin,
                   pages[s], end - begin, RowKind::output);
    }
    const auto logits = runner.step(batch, mode);
    const auto v = static_cast<size_t>(runner.config().v);
    const auto mine = logits.subspan(first_row * v, rows * v);
    result.insert(result.end(), mine.begin(), mine.end());
  }
  return result;
}

// Names every way of computing whose logits differ from those of the whole prefill on one thread.
void expect_row_invariance(const Kernels& k, const std::vector<int>& thread_counts) {
  SCOPED_TRACE(fmt::format("{} {} {} {}", k.model, k.isa, name_of(k.cache), k.quantised ? "quantised" : "dense"));
  const Checkpoint checkpoint = Checkpoint::open(tiny_model(k.model));
  Ids ids = golden_json(k.model)["ids"];
  ids.resize(48);
  const std::vector<int32_t> pages = first_pages(48), scattered = {21, 5};
  const std::vector<int64_t> steps(ids.size(), 1), halves = {24, 24}, ragged = {1, 7, 13, 2, 25};
  const auto reference_runner = make_runner(checkpoint, k, 1);
  for (const Activations mode : kModes) {
    SCOPED_TRACE(name_of(mode));
    const std::vector<float> whole = run_whole(*reference_runner, ids, mode);
    ASSERT_TRUE(std::all_of(whole.begin(), whole.end(), [](float x) { return std::isfinite(x); }));
    for (const int threads : thread_counts) {
      SCOPED_TRACE(fmt::format("{} threads", threads));
      const auto runner = make_runner(checkpoint, k, threads);
      EXPECT_TRUE(run_whole(*runner, ids, mode) == whole) << "the whole prefill";
      EXPECT_TRUE(run_chunks(*runner, ids, halves, scattered, mode) == whole) << "halves, scattered pages";
      EXPECT_TRUE(run_chunks(*runner, ids, ragged, pages, mode) == whole) << "ragged chunks";
      EXPECT_TRUE(run_chunks(*runner, ids, steps, scattered, mode) == whole) << "step by step";
      EXPECT_TRUE(run_among_others(*runner, ids, mode) == whole) << "among other sequences";
    }
  }
}

struct RowInvariance : testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Isa, RowInvariance, testing::ValuesIn(isa_names()),
                         [](const auto& info) { return info.param; });

TEST_P(RowInvariance, OfDenseModels) {
  for (const auto* models : {&kFamilyModels, &kSinkModels})
    for (const std::string& model : *models) expect_row_invariance({model, GetParam(), KvFormat::f16, false}, {3});
  for (const std::string& model : kTinyModels) expect_row_invariance({model, GetParam(), KvFormat::f16, false}, {3});
  for (const std::string& model : kGemma4Models) expect_row_invariance({model, GetParam(), KvFormat::f16, false}, {3});
}
TEST_P(RowInvariance, OfMixturesWithOtherRouters) {
  for (const std::string& model : kRoutedModels) {
    expect_row_invariance({model, GetParam(), KvFormat::f16, false}, {3});
    expect_row_invariance({model, GetParam(), KvFormat::f16, true}, {3});
  }
}
TEST_P(RowInvariance, OfQuantisedModels) {
  for (const char* model : {"llama2", "mistral", "qwen2", "yarn"})
    expect_row_invariance({model, GetParam(), KvFormat::f16, true}, {3});
}
TEST_P(RowInvariance, OfEveryCacheFormat) {
  for (const KvFormat cache : kCaches) expect_row_invariance({"mistral", GetParam(), cache, true}, {2});
}
TEST_P(RowInvariance, OfEveryThreadCount) {
  for (const bool quantised : {false, true})
    expect_row_invariance({"qwen3", GetParam(), KvFormat::f16, quantised}, {1, 2, 3, 4});
}

// The tests below check formats end to end.

// The file holds what its formats say: tensors of a checkpoint add up to stored_bytes of its linears plus biases, norms
// and each shared codebook once.
int64_t predicted_bytes(const Checkpoint& c) {
  int64_t bytes = 0;
  std::map<std::string, int64_t> codebooks;
  for (LinearId id : linears_of(c.config())) codebooks[shared_name(c.format(id))] = shared_bytes(c.format(id));
  for (const auto& [name, shared] : codebooks) bytes += shared;
  for (LinearId id : linears_of(c.config())) {
    const Shape shape = shape_of(c.config(), id);
    bytes += stored_bytes(c.format(id), shape[0], shape[1]);
    if (c.linear(id).bias) bytes += c.bias_tensor(id).view.bytes();
  }
  for (const auto& [layer, norm] : norms_of(c.config()))
    bytes += c.tensor(norm_name(c.config(), layer, norm)).view.bytes();
  return bytes;
}

// Returns the bytes of tensors in a safetensors file, which are all but the length and the header it announces.
int64_t tensor_bytes(const std::string& file) {
  const std::string bytes = read_text_file(file);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  return static_cast<int64_t>(bytes.size() - sizeof header - header);
}

void write_rounded(const std::string& folder, const Checkpoint& source, const std::string& format, ThreadPool& pool) {
  ModelQuantizer how;
  how.method = Method::rtn;
  std::map<LinearId, FormatSpec> formats;
  for (LinearId id : linears_of(source.config())) formats[id] = parse_format(format);
  how.formats = one_format_each(formats);
  std::map<LinearId, LinearWeight> weights;
  quantize_model_rtn(source, how, pool, [&](QuantizedLinear q) { weights.emplace(q.id, std::move(q.weight)); });
  write_checkpoint(folder, source, formats, [&](LinearId id) { return weights.at(id); },
                   {{"method", "rtn"}, {"format", format}});
}

std::vector<float> values_of(const OwnedTensor& tensor) {
  if (!tensor) return {};
  std::vector<float> values(static_cast<size_t>(tensor.view.elements()));
  convert_to_float(tensor.view, values);
  return values;
}

struct EveryFormat : testing::TestWithParam<std::string> {};
// The name of a test consists of letters and digits.
INSTANTIATE_TEST_SUITE_P(All, EveryFormat, testing::ValuesIn(kFormats), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
});

// Measures how far the logits move if every input of every linear moves by a relative error of this size. As W (x (1 +
// e)) is (W (1 + e)) x, the columns of the weights are moved by uniform errors instead, and the exact kernels run. The
// runner is left as it was.
double effect_of_rounding_inputs(Runner& runner, const std::map<LinearId, LinearWeight>& weights, const Ids& ids,
                                 double size) {
  const std::vector<float> expected = run_whole(runner, ids, Activations::f32);
  Rng rng(7);
  for (const auto& [id, weight] : weights) {
    if (id.role == Role::embedding) continue;
    OwnedTensor moved = OwnedTensor::allocate(DType::f32, {weight.out, weight.in});
    std::vector<float> values = decode(weight), factor(static_cast<size_t>(weight.in));
    for (float& f : factor) f = static_cast<float>(1 + size * (2 * rng.uniform() - 1));
    for (size_t i = 0; i < values.size(); ++i) moved.as<float>()[i] = values[i] * factor[i % factor.size()];
    runner.set_linear(id, runner.pack(make_dense(moved, weight.bias)));
  }
  const double distance = relative_distance(run_whole(runner, ids, Activations::f32), expected);
  for (const auto& [id, weight] : weights) runner.set_linear(id, runner.pack(weight));
  return distance;
}

// After writing and opening again, every linear, bias and norm is the same, the file is as large as predicted, and the
// logits are those of the decoded weights. The models are tied without and with biases (llama32, qwen2), and untied
// with and without (linear_rope, llama2).
TEST_P(EveryFormat, SurvivesTheFileAndComputesWhatItDecodesTo) {
  ThreadPool pool(2);
  for (const char* model : {"llama2", "llama32", "qwen2", "linear_rope"}) {
    SCOPED_TRACE(model);
    const Checkpoint source = Checkpoint::open(tiny_model(model));
    const TestFolder folder;
    write_rounded(folder / "out", source, GetParam(), pool);
    const Checkpoint made = Checkpoint::open(folder / "out");
    EXPECT_EQ(tensor_bytes(folder / "out/model.safetensors"), predicted_bytes(made));
    EXPECT_EQ(made.config().tie_embeddings, source.config().tie_embeddings);
    EXPECT_EQ(made.parameters(), source.parameters());

    RunnerOptions options = exact_options();
    const auto runner = make_cpu_runner(made, options), decoded = make_cpu_runner(source, options);
    const SharedCodebooks codebooks = shared_codebooks(source, {parse_format(GetParam())}, pool);
    std::map<LinearId, LinearWeight> weights;
    for (LinearId id : linears_of(source.config())) {
      SCOPED_TRACE(to_string(id));
      const LinearWeight in_memory = rounded(source, id, GetParam(), pool, codebooks), from_file = made.linear(id);
      EXPECT_EQ(to_string(made.format(id)), GetParam());
      const std::vector<float> values = decode(in_memory);
      EXPECT_TRUE(decode(from_file) == values);
      EXPECT_EQ(values_of(from_file.bias), values_of(source.linear(id).bias));
      OwnedTensor dense = OwnedTensor::allocate(DType::f32, {from_file.out, from_file.in});
      std::copy(values.begin(), values.end(), dense.as<float>().begin());
      weights[id] = make_dense(dense, from_file.bias);
      decoded->set_linear(id, decoded->pack(weights[id]));
    }
    for (const auto& [layer, norm] : norms_of(source.config()))
      EXPECT_EQ(made.norm(layer, norm), source.norm(layer, norm));

    const Ids ids = golden_json(model)["ids"];
    const std::vector<float> expected = run_whole(*decoded, ids, Activations::f32);
    // Weights and inputs are the same and FP32 sums are in another order, so the tolerance and its reason are those of
    // golden_test.cc.
    EXPECT_LE(relative_distance(run_whole(*runner, ids, Activations::f32), expected), 1e-5);
    // A16 rounds the inputs of linears. If the weights are BF16, it rounds to BF16, a relative error of up to 2^-8. For
    // codes it rounds to steps of 1/16319 of the largest of a group, an error of up to 2^-15 of that largest, i.e. up
    // to 2^-12 of a typical input as long as the largest is below 8 times that. (Other dense weights keep FP32.)
    // Uniform errors of up to these sizes are larger than the rounding's own, whose size depends on the mantissa: by
    // 1.4 for BF16, by 8 / (largest / typical) for codes.
    const double size = GetParam() == "bf16" ? 0x1p-8 : 0x1p-12;
    EXPECT_LE(relative_distance(run_whole(*runner, ids, Activations::a16), expected),
              effect_of_rounding_inputs(*decoded, weights, ids, size));
  }
}

// The tests below are about a codebook that linears share. A file without it, with one of another size, or with an
// entry that has no negative is refused. Weights of two models are not put into one file. Weights quantised again keep
// the existing codebook.

class SharedCodebook : public testing::Test {
 protected:
  SharedCodebook() : source_(Checkpoint::open(tiny_model("llama2"))) {
    write_rounded(folder_ / "out", source_, kFormat, pool_);
    file_ = read_text_file(folder_ / "out/model.safetensors");
  }
  // Returns the error of opening the file when its header says `after` about the codebook, which has the same length.
  std::string error_after(const std::string& before, const std::string& after) {
    std::string changed = file_;
    const size_t at = changed.find(before, changed.find("\"codebooks."));
    EXPECT_TRUE(at != std::string::npos && before.size() == after.size()) << before;
    changed.replace(at, before.size(), after);
    return error_of(changed);
  }
  std::string error_of(const std::string& bytes) {
    std::ofstream(folder_ / "out/model.safetensors", std::ios::binary) << bytes;
    try {
      Checkpoint::open(folder_ / "out");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  static constexpr const char* kFormat = "vq8k12s4m";
  TestFolder folder_;
  ThreadPool pool_{2};
  Checkpoint source_;
  std::string file_;
};

TEST_F(SharedCodebook, WhatAFileMayHaveWrongIsRefused) {
  EXPECT_EQ(error_of(file_), "");
  EXPECT_THAT(error_after("\"codebooks.vq8k12s4m\"", "\"codebooks.vq8k12s4x\""), HasSubstr("codebooks.vq8k12s4m"));
  EXPECT_THAT(error_after("\"shape\":[256,8]", "\"shape\":[512,4]"),
              AllOf(HasSubstr("codebooks.vq8k12s4m"), HasSubstr("[256, 8]")));
  uint64_t header = 0;
  std::memcpy(&header, file_.data(), sizeof header);
  const nlohmann::json about = nlohmann::json::parse(file_.substr(sizeof header, header));
  const auto first = about.at("codebooks.vq8k12s4m").at("data_offsets").at(0).get<size_t>();
  std::string changed = file_;
  changed[sizeof header + header + first + 77] = static_cast<char>(0x80);
  EXPECT_THAT(error_of(changed), HasSubstr("-128"));
}

TEST_F(SharedCodebook, TwoInOneFileAreRefused) {
  const Checkpoint made = Checkpoint::open(folder_ / "out");
  std::map<LinearId, FormatSpec> formats;
  for (LinearId id : linears_of(source_.config())) formats[id] = parse_format(kFormat);
  // Each has a codebook of its own.
  const auto alone = [&](LinearId id) { return rounded(source_, id, kFormat, pool_); };
  EXPECT_THROW(write_checkpoint(folder_ / "two", source_, formats, alone, nlohmann::json::object()), Error);
  EXPECT_FALSE(fs::exists(folder_ / "two"));
  // Some linears of `made` are quantised once more, with the codebook of those that stay.
  const SharedCodebooks there = shared_codebooks(made, {parse_format("vq8k12s4m+r2.2")}, pool_);
  ModelQuantizer how;
  how.method = Method::rtn;
  how.formats[{0, Role::up}] = {parse_format("vq8k12s4m+r2.2")};
  std::map<LinearId, LinearWeight> weights;
  quantize_model_rtn(made, how, pool_, [&](QuantizedLinear q) { weights.emplace(q.id, std::move(q.weight)); });
  write_checkpoint(
      folder_ / "again", made, {{{0, Role::up}, parse_format("vq8k12s4m+r2.2")}},
      [&](LinearId id) { return weights.at(id); }, nlohmann::json::object());
  const Checkpoint again = Checkpoint::open(folder_ / "again");
  const Tensor a = made.tensor("codebooks.vq8k12s4m").view, b = again.tensor("codebooks.vq8k12s4m").view;
  EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())), 0);
  EXPECT_EQ(std::memcmp(a.data, there.at("codebooks.vq8k12s4m").view.data, static_cast<size_t>(a.bytes())), 0);
}

// The tests below check that the same seed gives the same bytes.

TEST(SameSeed, SameBytesOfAGptqCheckpointForAnyThreads) {
  const Checkpoint source = Checkpoint::open(tiny_model("qwen3"));
  const TestFolder folder;
  Dataset calibration;
  for (uint64_t i = 0; i < 12; ++i) calibration.sequences.push_back(random_ids(40 + i, i, source.config().v));
  std::map<LinearId, FormatSpec> formats;
  for (LinearId id : linears_of(source.config()))
    if (id.role != Role::embedding && id.role != Role::head)
      formats[id] = parse_format(id.role == Role::down ? "lut4g32" : "int3g32z");
  ModelQuantizer how;
  how.formats = one_format_each(formats);
  std::vector<std::string> files;
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    RunnerOptions options = exact_options("", threads);
    options.cache_tokens = 1024;  // Every sequence of a batch has pages of its own.
    const auto runner = make_cpu_runner(source, options);
    std::map<LinearId, LinearWeight> weights;
    quantize_model_gptq(*runner, source, calibration, how, pool,
                        [&](QuantizedLinear q) { weights.emplace(q.id, std::move(q.weight)); });
    const std::string out = folder / fmt::format("threads{}", threads);
    write_checkpoint(out, source, formats, [&](LinearId id) { return weights.at(id); }, {{"method", "gptq"}});
    files.push_back(read_text_file(out + "/model.safetensors") + read_text_file(out + "/config.json"));
  }
  EXPECT_TRUE(files[0] == files[1]);
}

TEST(SameSeed, SameBytesFromTheCommandLineTwice) {
  const TestFolder folder;
  fs::create_symlink(source_path("models"), folder / "models");
  const auto quantize = [](const std::string& out) {
    return "fidelio quantize models/quill-1m --format int4g64z --calibration models/data/docs-calibration.txt "
           "--calibration-tokens 4096 -o " +
           out;
  };
  const CommandResult result =
      run_command(folder.path(), quantize("a") + " && " + quantize("b --threads 1") +
                                     " && diff -r -x README.md a b");  // The card names its folder.
  EXPECT_EQ(result.code, 0) << result.out << result.err;
}

// The tests below check EAR(p, p) = 1.

TEST(Ear, OfAModelWithItselfIsOne) {
  const Checkpoint checkpoint = Checkpoint::open(tiny_model("qwen2"));
  const std::vector<EvalText> texts = {{"random", "", random_ids(700, 3, checkpoint.config().v)}};
  ThreadPool pool(2);
  for (const Activations mode : kModes) {
    const RunnerOptions options{
        .threads = 2, .isa = {}, .max_rows = 128, .max_logit_rows = 32, .cache_tokens = 256, .mode = mode};
    RunnerOptions other = options;  // It is batched and threaded otherwise; by row invariance nothing changes.
    other.threads = 1;
    other.max_rows = 96;
    const auto p = make_cpu_runner(checkpoint, options), q = make_cpu_runner(checkpoint, other);
    const FidelityReport report = compare_models(
        *p, *q, texts,
        {.windows = {.context = 64}, .reference_mode = mode, .candidate_mode = mode, .bootstrap = {.resamples = 50}},
        pool);
    EXPECT_EQ(report.ear().value, 1) << name_of(mode);
    EXPECT_EQ(report.kl().value, 0) << name_of(mode);
    EXPECT_EQ(report.mean_of(&FidelitySums::ear_renormalised).value, 1) << name_of(mode);
    EXPECT_EQ(report.mean_of(&FidelitySums::agreements).value, 1) << name_of(mode);
  }
}

// The tests below check that an interrupted run writes nothing.

// Runs the program, asks every 10 ms whether it is time, and then sends the signal. Returns the exit code, or minus the
// signal that ended it.
int interrupt(std::vector<std::string> arguments, const std::function<bool()>& time, int signal) {
  arguments.insert(arguments.begin(), FIDELIO_PROGRAM);
  std::vector<char*> raw;
  for (std::string& argument : arguments) raw.push_back(argument.data());
  raw.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  check(::posix_spawn(&child, FIDELIO_PROGRAM, &actions, nullptr, raw.data(), environ) == 0, "cannot start {}",
        FIDELIO_PROGRAM);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  while (!time() && ::waitpid(child, &status, WNOHANG) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ::kill(child, signal);
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Returns a condition that holds while the folder is being filled under its temporary name and has weights.
std::function<bool()> weights_in(const std::string& folder) {
  return [folder] {
    const auto names = entries(folder);
    return std::any_of(names.begin(), names.end(),
                       [](const std::string& name) { return name.find("safetensors") != std::string::npos; });
  };
}

// Parts finished by then may stand in the journal, from which the next run continues; nothing else is left.
TEST(Interrupted, WhileCalibratingLeavesAtMostTheJournal) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TestFolder folder;
    // Half a second later, most of the calibration is still ahead.
    const auto start = std::chrono::steady_clock::now();
    const int code = interrupt(
        {"quantize", source_path("models/quill-26m"), "--format", "int2g32z", "--calibration",
         source_path("models/data/docs-calibration.txt"), "-o", folder / "out"},
        [start] { return std::chrono::steady_clock::now() - start > std::chrono::milliseconds(500); }, signal);
    EXPECT_EQ(code, 128 + signal);
    for (const std::string& left : entries(folder.path())) EXPECT_EQ(left, "out.journal");
  }
}

TEST(Interrupted, WhileWritingLeavesNothing) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TestFolder folder;
    EXPECT_EQ(interrupt({"synth", "tinyllama-1.1b", "-o", folder / "out"}, weights_in(folder.path()), signal),
              128 + signal);
    EXPECT_EQ(entries(folder.path()), std::vector<std::string>{});
  }
}

// Even SIGKILL, which no program can catch, leaves no folder under the output's own name.
TEST(Interrupted, ByKillLeavesNoOutputFolder) {
  const TestFolder folder;
  EXPECT_EQ(interrupt({"synth", "tinyllama-1.1b", "-o", folder / "out"}, weights_in(folder.path()), SIGKILL), -SIGKILL);
  EXPECT_FALSE(fs::exists(folder / "out"));
}

}  // namespace
}  // namespace fidelio
