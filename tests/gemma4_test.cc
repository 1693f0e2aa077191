// These tests check what Gemma 4 has that no other family has: layers that read the keys and values of earlier ones,
// and rows of their own for each token, also where calibration goes from layer to layer with several batches; its
// files; and what a user does with a model of each kind, from the command line to the certificate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/rng.h"
#include "core/thread_pool.h"
#include "io/export/export.h"
#include "io/gguf/blocks.h"
#include "io/gguf/file.h"
#include "io/hf_config.h"
#include "models.h"
#include "quant/quantize_model.h"
#include "runtime/taps.h"
#include "sensitivity/meter.h"

namespace fidelio {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

// Two texts, of which a small runner has one at a time.
struct SeveralBatches : testing::TestWithParam<std::string> {
  SeveralBatches() : checkpoint(Checkpoint::open(tiny_model(GetParam()))) {
    const Ids ids = golden_json(GetParam())["ids"];
    texts = {Ids(ids.begin(), ids.begin() + 90), Ids(ids.begin() + 90, ids.end())};
  }
  std::unique_ptr<Runner> runner(bool small) const {
    RunnerOptions options = exact_options();
    if (small) options.max_rows = 96, options.cache_tokens = 96;
    return make_cpu_runner(checkpoint, options);
  }
  const Checkpoint checkpoint;
  std::vector<Ids> texts;
};
INSTANTIATE_TEST_SUITE_P(Gemma4, SeveralBatches, testing::ValuesIn(kGemma4Models),
                         [](const auto& info) { return info.param; });

// The meter goes on from the layer that changed, with each batch in turn. Rows of a step have the same bits in any
// batch, so the divergence is that of one batch.
TEST_P(SeveralBatches, AreMeasuredAsOne) {
  ThreadPool pool(1);
  const int last = checkpoint.config().L - 1;
  for (const LinearId id : {LinearId{last, Role::o}, LinearId{0, Role::q}}) {
    const LinearWeight original = checkpoint.linear(id);
    LinearWeight changed =
        quantize_rtn(parse_format("int2g32z"), decode(original), original.out, original.in, {}, pool);
    changed.bias = original.bias;
    std::vector<double> kl;
    for (const bool small : {false, true}) {
      const auto measured = runner(small);
      FidelityMeter meter(*measured, texts, pool, Activations::f32);
      EXPECT_EQ(meter.measure().kl, 0) << "nothing changed, small " << small;
      meter.assign(id, measured->pack(changed));
      kl.push_back(meter.measure().kl);
    }
    EXPECT_GT(kl[0], 1e-6);
    EXPECT_DOUBLE_EQ(kl[0], kl[1]) << to_string(id);
  }
}

// The Hessians are sums over the same rows, in one batch and in two. They may be added in another order, so a few codes
// that lie between two values may differ. Rows of another text's keys would change most of them.
TEST_P(SeveralBatches, AreQuantisedAsOne) {
  ThreadPool pool(1);
  Dataset calibration;
  calibration.sequences = texts;
  for (const Ids& text : texts) calibration.tokens += std::ssize(text);
  std::map<LinearId, std::vector<float>> made[2];
  for (const bool small : {false, true}) {
    ModelQuantizer how;
    for (LinearId id : linears_of(checkpoint.config()))
      if (id.layer >= 0) how.formats[id] = {parse_format("int4g32")};
    const auto quantised = runner(small);
    quantize_model_gptq(*quantised, checkpoint, calibration, how, pool,
                        [&](const QuantizedLinear& q) { made[small ? 1 : 0][q.id] = decode(q.weight); });
  }
  for (const auto& [id, values] : made[0]) {
    const std::vector<float>& other = made[1].at(id);
    int64_t same = 0;
    for (size_t i = 0; i < values.size(); ++i) same += values[i] == other[i] ? 1 : 0;
    EXPECT_GE(static_cast<double>(same), 0.98 * static_cast<double>(values.size())) << to_string(id);
  }
}

// The tiny models have no tokenizer, and a file needs one.
constexpr const char* kTokenizer = R"({"version":"1.0","added_tokens":[],"decoder":{"type":"ByteLevel"},
    "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},
    "model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]}})";

// A GGUF file holds the same numbers, so the model in it gives the same bits.
struct Gemma4Gguf : testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Gemma4Gguf, testing::Values("gemma4", "gemma4_e", "gemma4_moe", "gemma4_moe_image"),
                         [](const auto& info) { return info.param; });

TEST_P(Gemma4Gguf, IsTheSameModel) {
  const TestFolder folder;
  copy_model(tiny_model(GetParam()), folder / "source");
  std::ofstream(folder / "source/tokenizer.json") << kTokenizer;
  const Checkpoint source = Checkpoint::open(folder / "source");
  export_gguf(source, folder / "model.gguf", true);
  const Checkpoint read = Checkpoint::open(folder / "model.gguf");
  EXPECT_EQ(read.parameters(), source.parameters());
  EXPECT_EQ(read.config().kinds, source.config().kinds);
  const Ids ids = golden_json(GetParam())["ids"];
  const auto mine = make_cpu_runner(read, exact_options()), theirs = make_cpu_runner(source, exact_options());
  EXPECT_EQ(run_whole(*mine, ids, Activations::f32), run_whole(*theirs, ids, Activations::f32));
}

// What llama.cpp's converter makes of the folders (tools/make_gguf_goldens.py).
struct Gemma4Converted : testing::TestWithParam<std::string> {
  std::string golden() const { return source_path("tests/golden/gguf/" + GetParam() + ".gguf"); }
};
INSTANTIATE_TEST_SUITE_P(All, Gemma4Converted, testing::Values("gemma4", "gemma4_e", "gemma4_moe"),
                         [](const auto& info) { return info.param; });

// The weights are those of the folder, bit for bit, and the logits are transformers'.
TEST_P(Gemma4Converted, IsTheModelOfTheFolder) {
  const Checkpoint ours = Checkpoint::open(tiny_model(GetParam())), read = Checkpoint::open(golden());
  EXPECT_EQ(read.config().kinds, ours.config().kinds);
  for (const auto& ids : {linears_of(ours.config()), fixed_linears_of(ours.config())})
    for (LinearId id : ids) EXPECT_EQ(decode(read.linear(id)), decode(ours.linear(id))) << to_string(id);
  for (const auto& [layer, norm] : norms_of(ours.config()))
    EXPECT_EQ(read.norm(layer, norm), ours.norm(layer, norm)) << norm_name(ours.config(), layer, norm);
  EXPECT_THAT(read.notes(), testing::IsEmpty());
  const std::vector<float> expected = golden_logits(GetParam());
  const auto runner = make_cpu_runner(read, exact_options());
  const std::vector<float> logits = run_whole(*runner, golden_json(GetParam())["ids"].get<Ids>(), Activations::f32);
  ASSERT_EQ(logits.size(), expected.size());
  const auto v = static_cast<size_t>(read.config().v);
  for (size_t row = 0; row < logits.size() / v; ++row)
    EXPECT_LE(relative_distance(std::span(logits).subspan(row * v, v), std::span(expected).subspan(row * v, v)), 1e-5);
}

// Our export has every tensor and every key of the architecture that the converter writes; but it writes the gates and
// ups of experts apart, which llama.cpp reads too.
TEST_P(Gemma4Converted, ExportsHoldWhatTheConverterWrites) {
  const TestFolder folder;
  copy_model(tiny_model(GetParam()), folder / "model");
  std::ofstream(folder / "model/tokenizer.json") << kTokenizer;
  export_gguf(Checkpoint::open(folder / "model"), folder / "out.gguf", true);
  const auto converted = gguf::File::open(golden()), ours = gguf::File::open(folder / "out.gguf");
  size_t compared = 0;
  for (const auto& [name, theirs] : converted->tensors()) {
    if (name.ends_with("ffn_gate_up_exps.weight")) {
      compared += 2;
      continue;
    }
    SCOPED_TRACE(name);
    ASSERT_TRUE(ours->tensors().contains(name));
    const gguf::StoredMatrix& mine = ours->tensors().find(name)->second;
    EXPECT_EQ(std::tie(mine.dimensions, mine.rows, mine.columns, mine.rows_each),
              std::tie(theirs.dimensions, theirs.rows, theirs.columns, theirs.rows_each));
    std::vector<float> a(static_cast<size_t>(mine.columns)), b(a.size());
    for (int64_t row = 0; row < mine.rows; ++row) {
      decode_row(*mine.type, mine.row(row), a);
      decode_row(*theirs.type, theirs.row(row), b);
      EXPECT_EQ(a, b);
    }
    ++compared;
  }
  EXPECT_EQ(compared, ours->tensors().size());
  for (const std::string& key : converted->keys_under("gemma4.")) EXPECT_TRUE(ours->has(key)) << key;
}

TEST(Gemma4Exports, RefuseByNameWhatReadersCannotOpen) {
  const TestFolder folder;
  const auto refused = [](auto&& exporting) {
    try {
      exporting();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("exported");
  };
  const auto gguf = [&](const std::string& model) {
    return refused([&] { export_gguf(Checkpoint::open(tiny_model(model)), folder / "x.gguf", true); });
  };
  EXPECT_THAT(gguf("gemma4_unified"), HasSubstr("biases on q, k, v and o"));
  EXPECT_THAT(gguf("gemma4_e_image"), HasSubstr("keys and values of other layers"));
  EXPECT_THAT(refused([&] {
                export_compressed_tensors(Checkpoint::open(tiny_model("gemma4_moe")), folder / "x",
                                          ServingProfile::any);
              }),
              HasSubstr("all experts of a layer in one tensor"));
}

// Models of the three kinds with random weights and the tokenizer of quill-1m.
json config_of(const std::string& kind) {
  json config = {{"architectures", {"Gemma4ForCausalLM"}},
                 {"model_type", "gemma4_text"},
                 {"hidden_size", 64},
                 {"intermediate_size", 96},
                 {"num_hidden_layers", 4},
                 {"layer_types", {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"head_dim", 16},
                 {"global_head_dim", 32},
                 {"sliding_window", 40},
                 {"vocab_size", 2048},
                 {"vocab_size_per_layer_input", 2048},
                 {"hidden_size_per_layer_input", 0},
                 {"max_position_embeddings", 512},
                 {"final_logit_softcapping", 30.0},
                 {"hidden_activation", "gelu_pytorch_tanh"},
                 {"torch_dtype", "bfloat16"}};
  if (kind == "Dense") config.update({{"attention_k_eq_v", true}, {"num_global_key_value_heads", 1}});
  if (kind == "PerLayer") config.update({{"hidden_size_per_layer_input", 32}, {"num_kv_shared_layers", 2}});
  if (kind == "Mixture")
    config.update(
        {{"enable_moe_block", true}, {"num_experts", 3}, {"top_k_experts", 2}, {"moe_intermediate_size", 32}});
  return config;
}

// Linears keep the size of their input; norms are near 1.
void write_model(const std::string& folder, const std::string& kind) {
  std::filesystem::create_directories(folder);
  const std::string text = config_of(kind).dump();
  write_file_atomically(folder + "/config.json", text);
  copy_companions(Checkpoint::open(source_path("models/quill-1m")).texts(), folder);
  const ModelConfig c = parse_config(text, "config.json");
  Rng rng(12);
  std::vector<TensorToWrite> tensors;
  const auto add = [&](const std::string& name, const Shape& shape, double mean, double spread) {
    OwnedTensor t = OwnedTensor::allocate(DType::bf16, shape);
    for (bf16& x : t.as<bf16>()) x = to_bf16(static_cast<float>(mean + spread * rng.normal()));
    tensors.push_back(to_write(name, std::move(t)));
  };
  for (const auto& ids : {linears_of(c), fixed_linears_of(c)})
    for (LinearId id : ids)
      add(weight_name(id), shape_of(c, id), 0, 1 / std::sqrt(static_cast<double>(shape_of(c, id)[1])));
  for (const auto& [layer, norm] : norms_of(c)) add(norm_name(c, layer, norm), {norm_size(c, layer, norm)}, 1, 0.2);
  for (const auto& [name, shape] : tensors_of_routers(c)) add(name, shape, shape.rank == 1 ? 1 : 0, 0.1);
  write_sharded_safetensors(folder, tensors, 1'000'000'000, {{"format", "pt"}});
}

struct Gemma4Kinds : testing::TestWithParam<std::string> {
  Gemma4Kinds() {
    write_model(folder / "source", GetParam());
    write_file_atomically(folder / "short.txt",
                          read_text_file(source_path("models/data/docs-heldout.txt")).substr(0, 16000));
  }
  CommandResult run(const std::string& command) const {
    CommandResult result = run_command(folder.path(), command);
    EXPECT_EQ(result.code, 0) << command << "\n" << result.err;
    return result;
  }
  std::string refused(const std::string& command) const {
    const CommandResult result = run_command(folder.path(), command);
    EXPECT_EQ(result.code, 1) << command;
    EXPECT_FALSE(std::filesystem::exists(folder / "no")) << command;
    return result.err;
  }
  TestFolder folder;
};
INSTANTIATE_TEST_SUITE_P(All, Gemma4Kinds, testing::Values("Dense", "PerLayer", "Mixture"),
                         [](const auto& info) { return info.param; });

TEST_P(Gemma4Kinds, AreQuantisedOnTextAndEvaluated) {
  run("fidelio quantize source --method gptq --format int4g32z --embedding int8g64zs8 --calibration short.txt "
      "--calibration-tokens 2048 "
      "--calibration-context 128 -o made --threads 2");
  const Checkpoint source = Checkpoint::open(folder / "source"), made = Checkpoint::open(folder / "made");
  EXPECT_EQ(made.parameters(), source.parameters());
  for (LinearId id : linears_of(source.config()))
    EXPECT_EQ(to_string(made.format(id)), id.layer < 0 ? "int8g64zs8" : "int4g32z") << to_string(id);
  for (LinearId id : fixed_linears_of(source.config()))
    EXPECT_EQ(decode(made.linear(id)), decode(source.linear(id))) << to_string(id);
  for (const auto& [layer, norm] : norms_of(source.config()))
    EXPECT_EQ(made.norm(layer, norm), source.norm(layer, norm));
  const json facts = json::parse(run("fidelio inspect made --json -").out);
  EXPECT_EQ(facts["per_layer_table"]["parameters"], GetParam() == "PerLayer" ? 2048 * 4 * 32 : 0);
  EXPECT_THAT(run("fidelio eval made --text short.txt --context 128 --threads 2").out, HasSubstr("perplexity"));
}

TEST_P(Gemma4Kinds, AreCompressedAndCertified) {
  run("fidelio compress source --bits 7 --formats int4g32z,int8g32z --calibration-tokens 2048 --search-tokens 512 "
      "--context 128 --text short.txt -o plan --table table.json --json made.json --threads 2");
  const json table = json::parse(read_text_file(folder / "table.json")),
             made = json::parse(read_text_file(folder / "made.json"));
  std::vector<std::string> names;
  for (const json& group : table["groups"]) names.push_back(group["name"]);
  std::vector<std::string> want = {"embedding"};
  if (GetParam() == "PerLayer") want.emplace_back("per_layer_table");
  for (int layer = 0; layer < 4; ++layer) {
    const auto add = [&](const char* stop) { want.push_back(fmt::format("layers.{}.{}", layer, stop)); };
    for (const char* stop : {"qkv", "o"}) add(stop);
    if (GetParam() == "Mixture")
      for (const char* stop : {"shared_gate_up", "shared_down"}) add(stop);
    for (const char* stop : {"gate_up", "down"}) add(stop);
    if (GetParam() == "PerLayer")
      for (const char* stop : {"per_layer_gate", "per_layer_out"}) add(stop);
  }
  EXPECT_EQ(names, want);
  EXPECT_LE(made["bits_per_parameter"], 7);
  EXPECT_THAT(run("fidelio certify plan --reference source --text short.txt --threads 2").out,
              HasSubstr("The certificate holds"));
}

// What these models cannot have is refused before any work, in a sentence that says why.
TEST_P(Gemma4Kinds, RefuseWhatIsNotForThem) {
  EXPECT_THAT(refused("fidelio quantize source --rotate --format int4g32 -o no"), HasSubstr("cannot be rotated"));
  EXPECT_THAT(refused("fidelio quantize source --atom --format int4g32 --calibration short.txt -o no"),
              HasSubstr("--atom does not know"));
  EXPECT_THAT(refused("fidelio compress source --bits 7 --tune --text short.txt -o no"),
              HasSubstr("tuning does not know"));
}

}  // namespace
}  // namespace fidelio
