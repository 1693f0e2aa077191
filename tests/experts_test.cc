// These tests check mixtures of experts (ModelConfig::experts): that a mixture computes what its definition says, and
// that every law of rows holds. golden_test.cc compares the four families with transformers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "core/rng.h"
#include "core/thread_pool.h"
#include "io/checkpoint_write.h"
#include "io/hf_config.h"
#include "models.h"
#include "quant/quantize_model.h"

namespace fidelio {
namespace {

using testing::HasSubstr;

// Writes quill-1m as a Mixtral: every MLP occurs E times, each copy with noise of its own (0 means none), and the
// router is random. The files are those of a Hugging Face folder.
void write_mixture(const std::string& folder, int experts, int per_row, float noise) {
  const Checkpoint quill = Checkpoint::open(source_path("models/quill-1m"));
  std::filesystem::create_directories(folder);
  auto config = nlohmann::json::parse(read_text_file(source_path("models/quill-1m/config.json")));
  config["architectures"] = {"MixtralForCausalLM"};
  config["model_type"] = "mixtral";
  config["num_local_experts"] = experts;
  config["num_experts_per_tok"] = per_row;
  write_file_atomically(folder + "/config.json", config.dump());
  copy_companions(quill.texts(), folder);
  const ModelConfig mixture = parse_config(config.dump(), "config.json");
  Rng rng(7);
  const auto as_bf16 = [&](const std::vector<float>& values, const Shape& shape, float changed) {
    OwnedTensor t = OwnedTensor::allocate(DType::bf16, shape);
    auto to = t.as<bf16>();
    for (size_t i = 0; i < values.size(); ++i)
      to[i] = to_bf16(values[i] * (1 + (changed > 0 ? changed * static_cast<float>(rng.normal()) : 0)));
    return t;
  };
  std::vector<TensorToWrite> tensors;
  for (LinearId id : linears_of(mixture)) {
    const std::vector<float> values = decode(quill.linear({id.layer, id.role}));
    const FusedName name = fused_name(mixture, id);
    tensors.push_back(to_write(name.weight.empty() ? weight_name(id) : name.weight,
                               as_bf16(values, shape_of(mixture, id), id.expert < 0 ? 0 : noise)));
  }
  for (const auto& [layer, norm] : norms_of(mixture))
    tensors.push_back(to_write(norm_name(mixture, layer, norm), quill.tensor(norm_name(quill.config(), layer, norm))));
  for (const std::string& router : router_names(mixture)) {
    std::vector<float> values(static_cast<size_t>(experts * mixture.d));
    for (float& x : values) x = static_cast<float>(rng.normal()) * 0.1f;
    tensors.push_back(to_write(router, as_bf16(values, {experts, mixture.d}, 0)));
  }
  write_sharded_safetensors(folder, tensors, 1'000'000'000, {{"format", "pt"}});
}

std::vector<int32_t> some_ids(int64_t n) {
  std::vector<int32_t> ids;
  Rng rng(3);
  for (int64_t i = 0; i < n; ++i) ids.push_back(3 + static_cast<int32_t>(rng.uniform() * 2000));
  return ids;
}

// Equal experts make the model that they were copied from, whichever are chosen. The shares sum to 1 up to k roundings,
// and a sum of k equal terms under them differs from the term by k + 1 roundings of its size. These pass four layers,
// each of which may make them larger; 2^-24 (k + 1) of every MLP's output is 3e-7.
TEST(Experts, ThatAreAlikeAreOneMlp) {
  const TestFolder folder;
  write_mixture(folder / "m", 5, 3, 0);
  const auto mixture = make_cpu_runner(Checkpoint::open(folder / "m"), exact_options());
  const auto quill = make_cpu_runner(Checkpoint::open(source_path("models/quill-1m")), exact_options());
  const std::vector<int32_t> ids = some_ids(70);
  EXPECT_LT(relative_distance(run_whole(*mixture, ids, Activations::f32), run_whole(*quill, ids, Activations::f32)),
            3e-6);
}

// Every expert has a format of its own. The same weights, decoded to FP32, give the same logits where activations are
// exact, up to the order of sums (1e-5 as for any model of codes).
TEST(Experts, MayHaveAFormatEach) {
  const TestFolder folder;
  write_mixture(folder / "m", 6, 2, 0.2f);
  const Checkpoint source = Checkpoint::open(folder / "m");
  const char* formats[] = {"int4g32", "int8g32z", "lut4g32", "bf16", "int3g32z", "f32"};
  std::map<LinearId, FormatSpec> coded, dense;
  std::map<LinearId, LinearWeight> weights, decoded;
  ThreadPool pool(2);
  int next = 0;
  for (LinearId id : linears_of(source.config())) {
    if (id.expert < 0) continue;
    const FormatSpec format = parse_format(formats[(next++ + id.expert) % 6]);
    const LinearWeight original = source.linear(id);
    coded[id] = format, dense[id] = parse_format("f32");
    weights[id] = quantize_rtn(format, decode(original), original.out, original.in, {}, pool);
    OwnedTensor values = OwnedTensor::allocate(DType::f32, {original.out, original.in});
    std::ranges::copy(decode(weights[id]), values.as<float>().begin());
    decoded[id] = make_dense(std::move(values));
  }
  write_checkpoint(folder / "coded", source, coded, [&](LinearId id) { return weights.at(id); }, {});
  write_checkpoint(folder / "dense", source, dense, [&](LinearId id) { return decoded.at(id); }, {});
  const std::vector<int32_t> ids = some_ids(90);
  const auto a = make_cpu_runner(Checkpoint::open(folder / "coded"), exact_options());
  const auto b = make_cpu_runner(Checkpoint::open(folder / "dense"), exact_options());
  EXPECT_LT(relative_distance(run_whole(*a, ids, Activations::f32), run_whole(*b, ids, Activations::f32)), 1e-5);
}

struct ExpertRowsLaw : testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Isa, ExpertRowsLaw, testing::ValuesIn(isa_names()), [](const auto& i) { return i.param; });

// The logits of a row have the same bits alone, in chunks, in one batch with other sequences, and with any number of
// threads.
TEST_P(ExpertRowsLaw, ARowDoesNotDependOnTheBatch) {
  const TestFolder folder;
  write_mixture(folder / "m", 7, 3, 0.3f);
  const Checkpoint source = Checkpoint::open(folder / "m");
  ThreadPool pool(2);
  std::map<LinearId, FormatSpec> formats;
  for (LinearId id : linears_of(source.config()))
    formats[id] = parse_format(id.role == Role::down ? "lut4g32" : id.role == Role::up ? "int5g32zs8" : "int4g32");
  const auto made = [&](LinearId id) {
    const LinearWeight w = source.linear(id);
    return quantize_rtn(formats.at(id), decode(w), w.out, w.in, {}, pool);
  };
  write_checkpoint(folder / "q", source, formats, made, {});
  const Checkpoint quantised = Checkpoint::open(folder / "q");
  const std::vector<int32_t> ids = some_ids(100);
  for (const Activations mode : {Activations::a16, Activations::a8}) {
    const RunnerOptions options{.threads = 2, .isa = GetParam(), .kv = KvFormat::f16};
    const auto runner = make_cpu_runner(quantised, options);
    const std::vector<float> whole = run_whole(*runner, ids, mode);
    EXPECT_EQ(run_chunks(*runner, ids, {1, 2, 40, 17, 1, 1, 38}, first_pages(100), mode), whole);
    RunnerOptions other = options;
    other.threads = 1;
    EXPECT_EQ(run_whole(*make_cpu_runner(quantised, other), ids, mode), whole);
    // The last row runs beside those of two other sequences, which have experts of their own.
    Batch batch;
    const std::vector<int32_t> pages = first_pages(100), others = {8, 9}, third = {10, 11};
    const std::vector<int32_t> strange = some_ids(40);
    batch.append(std::span(strange).first(33), 0, others, 1, RowKind::prompt);
    batch.append(std::span(ids).last(1), 99, pages, 1, RowKind::output);
    batch.append(std::span(strange).last(5), 0, third, 2, RowKind::output);
    const auto logits = runner->step(batch, mode);
    const auto v = static_cast<size_t>(source.config().v);
    EXPECT_TRUE(std::ranges::equal(logits.subspan(v, v), std::span(whole).last(v)));
  }
}

// GPTQ gives an expert only its own rows. An expert that no row of the calibration text passes is rounded to nearest
// and has no report; all others have one.
TEST(Experts, ThatNoRowPassesAreRounded) {
  const TestFolder folder;
  write_mixture(folder / "m", 16, 1, 0.2f);
  const Checkpoint source = Checkpoint::open(folder / "m");
  Dataset calibration;
  calibration.sequences = {some_ids(6)};
  calibration.tokens = 6;
  ModelQuantizer how;
  for (LinearId id : linears_of(source.config()))
    if (id.expert >= 0) how.formats[id] = {parse_format("int4g32")};
  const auto runner = make_cpu_runner(source, exact_options());
  ThreadPool pool(2);
  std::map<int, int> rounded, all;  // The key is the layer.
  quantize_model_gptq(*runner, source, calibration, how, pool, [&](const QuantizedLinear& q) {
    ++all[q.id.layer];
    rounded[q.id.layer] += !q.report;
    if (q.report) return;
    const LinearWeight w = source.linear(q.id);
    EXPECT_EQ(decode(q.weight),
              decode(quantize_rtn(q.weight.spec, decode(w), w.out, w.in,
                                  {.range_search = how.options.range_search, .importance = {}}, pool)));
  });
  for (const auto& [layer, count] : all) {
    EXPECT_EQ(count, 48);
    EXPECT_GE(rounded[layer], 3 * 10) << "six rows pass six of sixteen experts at most";
    EXPECT_LT(rounded[layer], 48);
    EXPECT_EQ(rounded[layer] % 3, 0);
  }
}

// One target leads from a stranger's folder to a certified model that answers, and to a draft by its own high bits that
// changes no token.
TEST(Experts, AreCompressedCertifiedAndDrafted) {
  const TestFolder folder;
  write_mixture(folder / "m", 4, 2, 0.1f);
  const auto run = [&](const std::string& command) {
    const CommandResult result = run_command(folder.path(), command);
    EXPECT_EQ(result.code, 0) << command << "\n" << result.err;
    return result;
  };
  const std::string data = source_path("models/data");
  run("fidelio compress m --ear 0.97 -o out --threads 2 --calibration-tokens 4096 --search-tokens 1024 "
      "--certificate-windows 10 --formats int4g64zs8,int6g64zs8,int8g64zs8 --json c.json");
  const auto report = nlohmann::json::parse(read_text_file(folder / "c.json"));
  EXPECT_GE(report["certificate"]["domains"][0]["ear"]["value"], 0.97);
  EXPECT_LT(report["bits_per_parameter"], 8);
  const CommandResult inspected = run("fidelio inspect out --all");
  EXPECT_THAT(inspected.out, HasSubstr("in 4 experts"));
  const std::string generate = "fidelio generate out -p 'The name of the file' --max-tokens 40 ";
  const std::string plain = run(generate + "--draft off").out;
  EXPECT_EQ(run(generate + "--draft 4").out, plain);
  EXPECT_EQ(run(generate + "--draft lookup").out, plain);
}

// A plan for another program has the formats that it accepts for experts, so the export is not refused after the work.
TEST(Experts, ArePlannedForOtherPrograms) {
  const TestFolder folder;
  write_mixture(folder / "m", 4, 2, 0.1f);
  const auto run = [&](const std::string& command) {
    const CommandResult result = run_command(folder.path(), command);
    EXPECT_EQ(result.code, 0) << command << "\n" << result.err;
  };
  const std::string short_ones = " --threads 2 --calibration-tokens 4096 --search-tokens 1024 --certificate-windows 4";
  for (const auto& [consumer, bits, to, made] : {std::tuple("vllm", "7", "compressed-tensors --profile vllm", "ct"),
                                                 std::tuple("llama.cpp", "6", "gguf", "out.gguf")}) {
    SCOPED_TRACE(consumer);
    run(fmt::format("fidelio compress m --bits {} --for {} -o {}-plan{}", bits, consumer, consumer, short_ones));
    run(fmt::format("fidelio export {}-plan --to {} -o {}", consumer, to, made));
    const auto runner = make_cpu_runner(Checkpoint::open(folder / (std::string(consumer) + "-plan")), exact_options()),
               read = make_cpu_runner(Checkpoint::open(folder / made), exact_options());
    const std::vector<int32_t> ids = some_ids(40);
    EXPECT_EQ(run_whole(*read, ids, Activations::f32), run_whole(*runner, ids, Activations::f32));
  }
  const CommandResult refused = run_command(folder.path(), "fidelio compress m --ear 0.9 --for gptq -o no");
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("how the experts"));
  const CommandResult narrow =
      run_command(folder.path(), "fidelio compress m --ear 0.9 --for vllm --formats int3g32 -o no");
  EXPECT_EQ(narrow.code, 1);
  EXPECT_THAT(narrow.err, HasSubstr("int3g32 is not held by its kernels for experts"));
}

TEST(Experts, WhatIsNotBuiltForThemIsRefused) {
  const TestFolder folder;
  write_mixture(folder / "m", 2, 1, 0.1f);
  const auto refused = [&](const std::string& command, const std::string& words) {
    const CommandResult result = run_command(folder.path(), command);
    EXPECT_EQ(result.code, 1) << command;
    EXPECT_THAT(result.err, HasSubstr(words));
  };
  refused("fidelio quantize m --format int4g128 --rotate -o x", "mixture of experts");
  refused("fidelio quantize m --format int4g128 --atom -o x", "mixture of experts");
  refused("fidelio compress m --ear 0.98 --tune -o x", "mixture of experts");
  refused("fidelio tune m --reference m --calibration " + source_path("models/data/chat.txt") + " -o x",
          "mixture of experts");
  EXPECT_FALSE(std::filesystem::exists(folder / "x"));
}

}  // namespace
}  // namespace fidelio
