// These tests take mixtures with other routers than a softmax over all experts from the command line to the certificate
// and out of the program again. The models have random weights and the tokenizer of quill-1m.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/rng.h"
#include "io/checkpoint.h"
#include "io/hf_config.h"
#include "models.h"

namespace fidelio {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json config_of(const std::string& family) {
  json config = {{"model_type", family},     {"hidden_size", 64},        {"intermediate_size", 96},
                 {"num_hidden_layers", 2},   {"num_attention_heads", 2}, {"num_key_value_heads", 1},
                 {"head_dim", 32},           {"vocab_size", 2048},       {"max_position_embeddings", 512},
                 {"rms_norm_eps", 1e-6},     {"rope_theta", 1e4},        {"tie_word_embeddings", false},
                 {"hidden_act", "silu"},     {"num_experts_per_tok", 2}, {"moe_intermediate_size", 32},
                 {"torch_dtype", "bfloat16"}};
  if (family == "qwen2_moe")
    config.update(
        {{"architectures", {"Qwen2MoeForCausalLM"}}, {"num_experts", 3}, {"shared_expert_intermediate_size", 32}});
  if (family == "glm4_moe")
    config.update({{"architectures", {"Glm4MoeForCausalLM"}},
                   {"n_routed_experts", 6},
                   {"n_group", 3},
                   {"topk_group", 2},
                   {"routed_scaling_factor", 1.5},
                   {"attention_bias", true},
                   {"use_qk_norm", true}});
  if (family == "minimax_m2")
    config.update({{"architectures", {"MiniMaxM2ForCausalLM"}}, {"num_local_experts", 4}, {"rotary_dim", 16}});
  return config;
}

// Linears keep the size of their input.
void write_routed(const std::string& folder, const std::string& family) {
  std::filesystem::create_directories(folder);
  const std::string text = config_of(family).dump();
  write_file_atomically(folder + "/config.json", text);
  copy_companions(Checkpoint::open(source_path("models/quill-1m")).texts(), folder);
  const ModelConfig c = parse_config(text, "config.json");
  Rng rng(11);
  std::vector<TensorToWrite> tensors;
  const auto add = [&](const std::string& name, const Shape& shape, double mean, double spread) {
    OwnedTensor t = OwnedTensor::allocate(DType::bf16, shape);
    for (bf16& x : t.as<bf16>()) x = to_bf16(static_cast<float>(mean + spread * rng.normal()));
    tensors.push_back(to_write(name, std::move(t)));
  };
  for (const auto& ids : {linears_of(c), fixed_linears_of(c)})
    for (LinearId id : ids) {
      const Shape shape = shape_of(c, id);
      add(file_module_name(c, id) + ".weight", shape, 0, 1 / std::sqrt(static_cast<double>(shape[1])));
      if (has_bias(c, id.role)) add(bias_name(id), {shape[0]}, 0, 0.1);
    }
  for (const auto& [layer, norm] : norms_of(c)) add(norm_name(c, layer, norm), {norm_size(c, layer, norm)}, 1, 0.2);
  for (const auto& [name, shape] : tensors_of_routers(c)) add(name, shape, 0, 0.1);
  write_sharded_safetensors(folder, tensors, 1'000'000'000, {{"format", "pt"}});
}

struct RoutedModels : testing::TestWithParam<std::string> {
  RoutedModels() {
    write_routed(folder / "source", GetParam());
    write_file_atomically(folder / "short.txt",
                          read_text_file(source_path("models/data/docs-heldout.txt")).substr(0, 16000));
  }
  CommandResult run(const std::string& command) const {
    CommandResult result = run_command(folder.path(), command);
    EXPECT_EQ(result.code, 0) << command << "\n" << result.err;
    return result;
  }
  std::vector<float> logits_of(const std::string& model) const {
    std::vector<int32_t> ids;
    Rng rng(3);
    for (int i = 0; i < 90; ++i) ids.push_back(static_cast<int32_t>(rng.below(2048)));
    return run_whole(*make_cpu_runner(Checkpoint::open(folder / model), exact_options()), ids, Activations::f32);
  }
  TestFolder folder;
};
INSTANTIATE_TEST_SUITE_P(All, RoutedModels, testing::Values("qwen2_moe", "glm4_moe", "minimax_m2"),
                         [](const auto& info) { return info.param; });

// A plan counts what is never quantised, the vectors of routers too, and the file has the size that was foreseen.
TEST_P(RoutedModels, AreCompressedAndCertified) {
  run("fidelio compress source --bits 7 --formats int4g32,int8g32 --calibration-tokens 2048 --search-tokens 512 "
      "--context 128 --text short.txt -o plan --table table.json --json made.json --threads 2");
  const Checkpoint source = Checkpoint::open(folder / "source"), plan = Checkpoint::open(folder / "plan");
  const ModelConfig& c = source.config();
  int64_t fixed = 0;
  for (const auto& [layer, norm] : norms_of(c)) fixed += 2 * norm_size(c, layer, norm);
  for (LinearId id : fixed_linears_of(c)) fixed += 2 * shape_of(c, id).elements();
  for (const auto& [name, shape] : tensors_of_routers(c)) fixed += 2 * shape.elements();
  for (LinearId id : linears_of(c))
    if (has_bias(c, id.role)) fixed += 2 * shape_of(c, id)[0];
  EXPECT_EQ(json::parse(read_text_file(folder / "table.json"))["fixed_bytes"], fixed);
  EXPECT_LE(json::parse(read_text_file(folder / "made.json"))["bits_per_parameter"], 7);
  EXPECT_EQ(plan.parameters(), source.parameters());
  for (const auto& [name, shape] : tensors_of_routers(c)) {
    const OwnedTensor a = plan.tensor(name), b = source.tensor(name);
    ASSERT_EQ(a.view.bytes(), b.view.bytes()) << name;
    EXPECT_EQ(std::memcmp(a.view.data, b.view.data, static_cast<size_t>(a.view.bytes())), 0) << name;
  }
  EXPECT_THAT(run("fidelio certify plan --reference source --text short.txt --threads 2").out,
              HasSubstr("The certificate holds"));
}

// Both exports hold the codes as they are, so their logits are those of the model that they were made of.
TEST_P(RoutedModels, LeaveAsTheyAre) {
  run("fidelio quantize source --method gptq --format int4g32 --keep-embedding --calibration short.txt "
      "--calibration-tokens 2048 "
      "--calibration-context 128 -o made --threads 2");
  run("fidelio export made --to gguf -o made.gguf");
  run("fidelio export made --to compressed-tensors --profile vllm -o vllm");
  const std::vector<float> expected = logits_of("made");
  EXPECT_LT(relative_distance(logits_of("made.gguf"), expected), 1e-5);
  EXPECT_LT(relative_distance(logits_of("vllm"), expected), 1e-5);
  EXPECT_EQ(Checkpoint::open(folder / "made.gguf").config().router, Checkpoint::open(folder / "made").config().router);
  const json written = json::parse(read_text_file(folder / "vllm/config.json"))["quantization_config"];
  if (GetParam() != "glm4_moe") return;
  EXPECT_THAT(written.dump(), HasSubstr("model.layers.1.mlp.shared_experts.down_proj"));
}

TEST_P(RoutedModels, AreNotTuned) {
  const CommandResult result =
      run_command(folder.path(), "fidelio compress source --bits 7 --tune --text short.txt -o no");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("tuning does not know a mixture of experts"));
  EXPECT_FALSE(std::filesystem::exists(folder / "no"));
}

}  // namespace
}  // namespace fidelio
