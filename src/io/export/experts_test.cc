// These tests export mixtures of experts: they check where the values of each expert stand, what is refused, and that
// the same weights are read back.
#include <algorithm>

#include "io/export/export_fixture.h"

namespace fidelio {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kExperts = 3;

// This is llama_config() with three experts of width 64, of which a row passes two.
json config_of(const std::string& family) {
  json config = llama_config();
  for (const char* key : {"rope_scaling", "attention_bias"}) config.erase(key);
  config["intermediate_size"] = 64;
  config["num_experts_per_tok"] = 2;
  if (family == "mixtral" || family == "granitemoe")
    config["num_local_experts"] = kExperts;
  else
    config["num_experts"] = kExperts;
  if (family == "mixtral") config.update({{"architectures", {"MixtralForCausalLM"}}});
  if (family == "qwen3_moe")
    config.update(
        {{"architectures", {"Qwen3MoeForCausalLM"}}, {"moe_intermediate_size", 64}, {"norm_topk_prob", true}});
  if (family == "olmoe")
    config.update(
        {{"architectures", {"OlmoeForCausalLM"}}, {"num_key_value_heads", 4}, {"tie_word_embeddings", false}});
  if (family == "granitemoe")
    config.update({{"architectures", {"GraniteMoeForCausalLM"}},
                   {"embedding_multiplier", 12.0},
                   {"attention_multiplier", 0.3},
                   {"residual_multiplier", 0.22},
                   {"logits_scaling", 8.0}});
  config["model_type"] = family;
  return config;
}

// All experts of a layer have one format, `first` or `second`; some linears of attention have others.
std::map<std::string, std::string> formats(const std::string& first, const std::string& second) {
  std::map<std::string, std::string> all = {{"layers.0.o", "int4g32"}, {"layers.1.o", "int8g32"}};
  for (int expert = 0; expert < kExperts; ++expert)
    for (const char* role : {"gate", "up", "down"}) {
      all[fmt::format("layers.0.experts.{}.{}", expert, role)] = first;
      all[fmt::format("layers.1.experts.{}.{}", expert, role)] = second;
    }
  return all;
}

class ExpertExports : public ExportTest, public testing::WithParamInterface<std::string> {
 protected:
  std::string gguf() const { return root_ + "/out.gguf"; }
  Checkpoint make_again(const std::map<std::string, std::string>& with, const json& config) {
    std::filesystem::remove_all(root_ + "/ours");
    std::filesystem::remove(root_ + "/source/model.safetensors");
    return make(with, config);
  }
  static void expect_same(const Checkpoint& a, const Checkpoint& b) {
    ASSERT_EQ(linears_of(a.config()), linears_of(b.config()));
    for (LinearId id : linears_of(a.config())) ASSERT_EQ(decode(a.linear(id)), decode(b.linear(id))) << to_string(id);
    for (int layer = 0; layer < a.config().L; ++layer) EXPECT_EQ(decode(a.router(layer)), decode(b.router(layer)));
    for (auto [layer, which] : norms_of(a.config())) EXPECT_EQ(a.norm(layer, which), b.norm(layer, which));
    const auto numbers = [](const ModelConfig& c) {
      return std::tuple(c.architecture, c.experts, c.experts_per_row, c.renormalised, c.f, c.embedding_scale,
                        c.attention_scale, c.residual_scale, c.logit_divisor);
    };
    EXPECT_EQ(numbers(a.config()), numbers(b.config()));
    EXPECT_EQ(rope_inverse_frequencies(a.config()), rope_inverse_frequencies(b.config()));
  }
};
class EveryExpertFamily : public ExpertExports {};
INSTANTIATE_TEST_SUITE_P(All, EveryExpertFamily, testing::Values("mixtral", "olmoe", "qwen3_moe", "granitemoe"),
                         [](const auto& info) { return info.param; });

TEST_P(EveryExpertFamily, GgufIsTheSameModel) {
  auto with = formats("int4g32", "int6g32z");
  with["layers.1.q"] = "int5g32";
  const Checkpoint ours = make(with, config_of(GetParam()));
  EXPECT_NO_THROW(check_exports_to(ours, "gguf"));
  EXPECT_THAT(export_gguf(ours, gguf(), true), testing::IsEmpty());
  const Checkpoint read = Checkpoint::open(gguf());
  expect_same(ours, read);
  EXPECT_EQ(to_string(read.format({0, Role::up, 2})), "int4g32");
  EXPECT_EQ(to_string(read.format({1, Role::down, 0})), "int8g32");
  EXPECT_EQ(read.weights_sha256(), read.written_weights_sha256());
  write_checkpoint(root_ + "/again", read, {}, {}, json::object());
  expect_same(ours, Checkpoint::open(root_ + "/again"));
}

TEST_F(ExpertExports, GgufHasTheExpertsOfALayerOneBehindTheOther) {
  const Checkpoint ours = make(formats("int4g32", "bf16"), config_of("mixtral"));
  export_gguf(ours, gguf(), false);
  const Gguf file(gguf());
  EXPECT_EQ(file.keys["general.architecture"], "llama");
  EXPECT_EQ(file.keys["llama.expert_count"], kExperts);
  EXPECT_EQ(file.keys["llama.expert_used_count"], 2);
  for (const auto& [role, name] :
       {std::pair(Role::gate, "ffn_gate_exps"), {Role::up, "ffn_up_exps"}, {Role::down, "ffn_down_exps"}})
    for (int layer : {0, 1}) {
      const Gguf::Entry& t = file.tensors.at(fmt::format("blk.{}.{}.weight", layer, name));
      EXPECT_EQ(t.type, layer == 0 ? 2u : 30u);
      ASSERT_EQ(t.sizes, (std::vector<int64_t>{64, 64, kExperts}));
      for (int expert = 0; expert < kExperts; ++expert) {
        const std::vector<float> expected = decode(ours.linear({layer, role, expert}));
        for (size_t i = 0; i < expected.size(); ++i)
          ASSERT_EQ(file.element(t, expert * 64 * 64 + static_cast<int64_t>(i)), expected[i]) << name << " " << i;
      }
    }
  const Gguf::Entry& router = file.tensors.at("blk.1.ffn_gate_inp.weight");
  EXPECT_EQ(router.type, 0u);
  EXPECT_EQ(router.sizes, (std::vector<int64_t>{64, kExperts}));
  const std::vector<float> expected = decode(ours.router(1));
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(file.element(router, static_cast<int64_t>(i)), expected[i]);
}

TEST_F(ExpertExports, GgufSaysOfAllExpertsWhatIsSaidOfOne) {
  const Checkpoint ours = make(formats("int4g32z", "int4g32"), config_of("qwen3_moe"));
  EXPECT_THAT(export_gguf(ours, gguf(), false),
              testing::Each(HasSubstr("and 2 other experts (int4g32z): minima are rounded to FP16")));
  EXPECT_EQ(Gguf(gguf()).keys["qwen3moe.expert_feed_forward_length"], 64);
}

TEST_F(ExpertExports, GgufRefusesWhatLlamaCppDoesNotCompute) {
  const auto message = [&](const std::map<std::string, std::string>& with, const json& config) {
    const Checkpoint ours = make_again(with, config);
    return refusal([&] { export_gguf(ours, out(), false); });
  };
  auto mixed = formats("int4g32", "int4g32");
  mixed["layers.1.experts.2.up"] = "int8g32";
  EXPECT_THAT(message(mixed, config_of("mixtral")),
              AllOf(HasSubstr("layers.1.experts.2.up (int8g32)"), HasSubstr("layers.1.experts.0.up is int4g32")));
  mixed["layers.1.experts.2.up"] = "int3g64";  // It has the same type of block.
  EXPECT_EQ(message(mixed, config_of("mixtral")), "accepted");
  std::filesystem::remove(out());
  const auto refused = [&](const std::string& family, const json& changes) {
    json config = config_of(family);
    config.update(changes);
    const Checkpoint ours = make_again({}, config);
    return refusal([&] { check_exports_to(ours, "gguf"); });
  };
  EXPECT_THAT(refused("mixtral", {{"sliding_window", 64}}), HasSubstr("sliding window"));
  EXPECT_THAT(refused("qwen3_moe", {{"norm_topk_prob", false}}), HasSubstr("norm_topk_prob false"));
  EXPECT_THAT(refused("olmoe", {{"norm_topk_prob", true}}), HasSubstr("norm_topk_prob true"));
  EXPECT_THAT(refused("olmoe", {{"num_key_value_heads", 2}}), HasSubstr("fewer keys than queries"));
  EXPECT_THAT(refused("olmoe", {{"tie_word_embeddings", true}}), HasSubstr("tied embeddings"));
}

TEST_F(ExpertExports, CompressedTensorsHasTheNamesThatReadersKnow) {
  for (const auto& [family, module, router, gate] :
       {std::tuple("mixtral", "block_sparse_moe", "block_sparse_moe.gate", "w1"),
        std::tuple("qwen3_moe", "mlp", "mlp.gate", "gate_proj"), std::tuple("olmoe", "mlp", "mlp.gate", "gate_proj")}) {
    SCOPED_TRACE(family);
    std::filesystem::remove_all(out());
    const Checkpoint ours = make_again(formats("int4g32", "bf16"), config_of(family));
    export_compressed_tensors(ours, out(), ServingProfile::vllm);
    const Safetensors file = Safetensors::open(out());
    for (int expert = 0; expert < kExperts; ++expert) {
      const std::string name = fmt::format("{}.experts.{}.{}", module, expert, gate);
      EXPECT_TRUE(file.contains("model.layers.0." + name + ".weight_packed")) << name;
      EXPECT_TRUE(file.contains("model.layers.1." + name + ".weight")) << name;
    }
    EXPECT_TRUE(file.contains(fmt::format("model.layers.0.{}.weight", router)));
    const json config = json::parse(read_text_file(out() + "/config.json"))["quantization_config"];
    std::set<std::string> ignored = config["ignore"], targets;
    for (const json& group : config["config_groups"])
      for (const json& target : group["targets"]) targets.insert(target.get<std::string>());
    EXPECT_TRUE(ignored.contains(fmt::format("model.layers.1.{}", router)));
    EXPECT_TRUE(ignored.contains(fmt::format("re:^model\\.layers\\.1\\.{}\\.experts\\.", module)));
    EXPECT_TRUE(targets.contains(fmt::format("re:^model\\.layers\\.0\\.{}\\.experts\\.", module)));
    expect_same(ours, Checkpoint::open(out()));
  }
}

TEST_F(ExpertExports, WhatTheOtherTargetsDoNotHoldIsNamed) {
  const auto message = [&](const std::map<std::string, std::string>& with, ServingProfile profile) {
    const Checkpoint ours = make_again(with, config_of("qwen3_moe"));
    return refusal([&] { export_compressed_tensors(ours, out(), profile); });
  };
  auto mixed = formats("int4g32", "int8g32");
  mixed["layers.0.experts.1.down"] = "int8g32";
  EXPECT_THAT(message(mixed, ServingProfile::any),
              AllOf(HasSubstr("layers.0.experts.1.down (int8g32)"), HasSubstr("layers.0.experts.0.gate")));
  EXPECT_THAT(message(formats("int4g32", "int3g32"), ServingProfile::vllm),
              AllOf(HasSubstr("layers.1.experts.0.gate (int3g32)"), HasSubstr("4 or 8 bits")));
  EXPECT_THAT(message(formats("int4g32z", "int4g32"), ServingProfile::vllm), HasSubstr("symmetric"));
  const Checkpoint several = make_again(formats("int4g32", "int8g32"), config_of("olmoe"));
  EXPECT_THAT(export_compressed_tensors(several, out(), ServingProfile::any),
              testing::Contains(HasSubstr("experts of different formats")));
  std::filesystem::remove_all(out());
  EXPECT_THAT(refusal([&] { export_gptq(several, out(), ServingProfile::any); }), HasSubstr("how the experts"));
  EXPECT_THAT(refusal([&] { check_exports_to(several, "gptq"); }), HasSubstr("how the experts"));
  EXPECT_NO_THROW(check_exports_to(several, "compressed-tensors"));
  const Checkpoint granite = make_again(formats("int4g32", "int4g32"), config_of("granitemoe"));
  EXPECT_THAT(refusal([&] { export_compressed_tensors(granite, out(), ServingProfile::any); }),
              HasSubstr("all experts of a layer in one tensor"));
  EXPECT_THAT(refusal([&] { check_exports_to(granite, "compressed-tensors"); }), HasSubstr("in one tensor"));
}

// Other programs quantise experts one by one, under the names of the family.
TEST_F(ExpertExports, GptqAndAwqOfExpertsAreFound) {
  constexpr int64_t kOut = 64, kIn = 64;
  for (const bool awq : {false, true})
    for (const auto& [family, module] : {std::pair("mixtral", "model.layers.1.block_sparse_moe.experts.2.w3"),
                                         std::pair("qwen3_moe", "model.layers.1.mlp.experts.2.up_proj")}) {
      SCOPED_TRACE(module);
      const json own = config_of(family);
      make_again({}, own);
      // Every code is 2 and every zero point 1, which GPTQ's first layout stores as 0.
      const auto filled = [](Shape shape, int32_t word) {
        OwnedTensor t = OwnedTensor::allocate(DType::i32, shape);
        std::ranges::fill(t.as<int32_t>(), word);
        return t;
      };
      const OwnedTensor scales = OwnedTensor::allocate(DType::f16, {2, kOut});
      for (f16& s : scales.as<f16>()) s = to_f16(0.01f + static_cast<float>(rng_.uniform()));
      const std::string name = module;
      std::vector<TensorToWrite> all = {
          to_write(name + ".qweight", filled(awq ? Shape{kIn, kOut / 8} : Shape{kIn / 8, kOut}, 0x22222222)),
          to_write(name + ".qzeros", filled({2, kOut / 8}, awq ? 0x11111111 : 0)), to_write(name + ".scales", scales)};
      const auto files = Safetensors::open(root_ + "/source");
      ASSERT_TRUE(files.contains(name + ".weight"));
      for (const std::string& other : files.names())
        if (other != name + ".weight") all.push_back(to_write(other, files.get(other)));
      std::filesystem::remove_all(root_ + "/foreign");
      std::filesystem::create_directory(root_ + "/foreign");
      write_safetensors(root_ + "/foreign/model.safetensors", all);
      json config = own;
      config["quantization_config"] = {{"quant_method", awq ? "awq" : "gptq"}, {"bits", 4}, {"group_size", 32}};
      std::ofstream(root_ + "/foreign/config.json") << config.dump();
      const Checkpoint read = Checkpoint::open(root_ + "/foreign");
      const LinearId id{1, Role::up, 2};
      EXPECT_EQ(to_string(read.format(id)), "int4g32z");
      EXPECT_EQ(to_string(read.format({1, Role::up, 1})), "bf16");
      const std::vector<float> values = decode(read.linear(id));
      for (int64_t i = 0; i < kOut * kIn; ++i)
        ASSERT_EQ(values[static_cast<size_t>(i)],
                  to_float(scales.as<f16>()[static_cast<size_t>(i % kIn / 32 * kOut + i / kIn)]));
      EXPECT_THAT(read.notes(), testing::IsEmpty());
    }
}

}  // namespace
}  // namespace fidelio
