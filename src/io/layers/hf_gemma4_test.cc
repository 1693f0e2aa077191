// These tests read configs of Gemma 4 of the sizes that were released, refuse what is not computed here, and mutate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "arch/model_weights.h"
#include "core/rng.h"
#include "io/hf_config.h"

namespace fidelio {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

Json pattern(int layers, int step) {
  Json types = Json::array();
  for (int i = 0; i < layers; ++i) types.push_back((i + 1) % step == 0 ? "full_attention" : "sliding_attention");
  return types;
}
Json gemma4_base() {
  return {{"architectures", {"Gemma4ForCausalLM"}},
          {"model_type", "gemma4_text"},
          {"vocab_size", 262144},
          {"vocab_size_per_layer_input", 262144},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 1},
          {"head_dim", 256},
          {"global_head_dim", 512},
          {"sliding_window", 512},
          {"final_logit_softcapping", 30.0},
          {"torch_dtype", "bfloat16"}};
}
Json e2b() {
  Json json = gemma4_base();
  json.update({{"num_hidden_layers", 35},
               {"hidden_size", 1536},
               {"intermediate_size", 6144},
               {"layer_types", pattern(35, 5)},
               {"num_kv_shared_layers", 20},
               {"use_double_wide_mlp", true},
               {"hidden_size_per_layer_input", 256}});
  return json;
}
Json a4b() {
  Json json = gemma4_base();
  json.update({{"num_hidden_layers", 30},
               {"hidden_size", 2816},
               {"intermediate_size", 2112},
               {"num_attention_heads", 16},
               {"num_key_value_heads", 8},
               {"num_global_key_value_heads", 2},
               {"attention_k_eq_v", true},
               {"hidden_size_per_layer_input", 0},
               {"enable_moe_block", true},
               {"num_experts", 128},
               {"top_k_experts", 8},
               {"moe_intermediate_size", 704}});
  return json;
}
ModelConfig read(const Json& json) { return parse_config(json.dump(), "m/config.json"); }

TEST(HfGemma4, ReadsAModelWithRowsForEachLayer) {
  const ModelConfig c = read(e2b());
  EXPECT_EQ(std::tuple(c.L, c.d, c.f, c.h, c.per_layer, c.experts), std::tuple(35, 1536, 6144, 8, 256, 0));
  EXPECT_EQ(caching_layers(c).size(), 15u);
  EXPECT_EQ(cached_values(c), 12 * 256 + 3 * 512);
  // The last of the 15 layers has full attention, and the one before it a window.
  EXPECT_EQ(kind_of(c, 34).keys_of, 14);
  EXPECT_EQ(kind_of(c, 15).keys_of, 13);
  EXPECT_EQ(ffn_columns(c, 14), 6144);
  EXPECT_EQ(ffn_columns(c, 15), 12288);
  EXPECT_EQ(std::pair(head_dim_of(c, 13), head_dim_of(c, 14)), std::pair(256, 512));
  EXPECT_EQ(shape_of(c, {-1, Role::per_layer_table}), (Shape{262144, 35 * 256}));
  EXPECT_EQ(c.embedding_scale, 39.25);  // sqrt(1536) = 39.19 in BF16
  EXPECT_EQ(c.per_layer_scale, 16);
  EXPECT_EQ(c.logit_cap, 30);
  // A quarter of the 256 pairs of a whole head is turned, with exponents over the whole head.
  const std::vector<float> frequencies = rope_inverse_frequencies(c.rope, head_dim_of(c, 14));
  ASSERT_EQ(frequencies.size(), 256u);
  EXPECT_NEAR(frequencies[63], std::pow(1e6, -126.0 / 512), 1e-8);
  EXPECT_EQ(frequencies[64], 0);
}

TEST(HfGemma4, ReadsAMixture) {
  const ModelConfig c = read(a4b());
  EXPECT_EQ(std::tuple(c.experts, c.experts_per_row, c.f, c.shared_f), std::tuple(128, 8, 704, 2112));
  EXPECT_TRUE(c.renormalised && c.router.scaled);
  EXPECT_EQ(std::pair(kv_heads_of(c, 4), kv_heads_of(c, 5)), std::pair(8, 2));  // every sixth layer is full
  EXPECT_FALSE(has_values(c, 5));
  EXPECT_TRUE(has_values(c, 4));
  EXPECT_EQ(router_name(c, 3), "model.layers.3.router.proj.weight");
  EXPECT_EQ(fused_name(c, {3, Role::up, 2}).weight, "model.layers.3.experts.gate_up_proj");
  EXPECT_EQ(fused_name(c, {3, Role::shared_up}).weight, "model.layers.3.mlp.up_proj.weight");
}

// transformers writes heads layer by layer, in place of two keys of the whole config. Its text within a model that
// sees images has them too, and no embeddings for each layer where the model is of the unified kind.
TEST(HfGemma4, ReadsHeadsLayerByLayer) {
  Json by_key = a4b(), by_layer = a4b();
  by_layer.erase("global_head_dim"), by_layer.erase("num_global_key_value_heads");
  for (const char* layer : {"5", "11", "17", "23", "29"})
    by_layer["per_layer_config"][layer] = {{"head_dim", 512}, {"num_key_value_heads", 2}};
  EXPECT_EQ(read(by_layer).kinds, read(by_key).kinds);
  Json text = gemma4_base();
  text.update({{"num_hidden_layers", 6}, {"hidden_size", 64}, {"intermediate_size", 64}});
  text.erase("architectures"), text["model_type"] = "gemma4_unified_text";
  const ModelConfig c = read({{"architectures", {"Gemma4UnifiedForConditionalGeneration"}},
                              {"model_type", "gemma4_unified"},
                              {"text_config", text}});
  EXPECT_EQ(c.architecture, Architecture::gemma4);
  EXPECT_EQ(c.per_layer, 0);
}

TEST(HfGemma4, RefusesWhatIsNotComputedHere) {
  const auto refused = [](Json json, const char* patch) {
    json.merge_patch(Json::parse(patch));
    try {
      read(json);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  const std::pair<const char*, const char*> cases[] = {
      {R"({"num_kv_shared_layers":35})", "\"num_kv_shared_layers\": expected an integer from 0 to 34"},
      {R"({"num_kv_shared_layers":34})", "no keys and values like those of layer"},
      {R"({"use_bidirectional_attention":"all"})", "vision or null"},
      {R"({"vocab_size_per_layer_input":9})", "\"vocab_size_per_layer_input\": expected vocab_size = 262144"},
      {R"({"global_head_dim":33})", "\"global_head_dim\": expected an even number"},
      {R"({"layer_types":["full_attention"]})", "a list of 35 strings"},
      {R"({"per_layer_config":{"35":{"head_dim":8}}})", "an object of layers from 0 to 34"},
      {R"({"per_layer_config":{"4":{"sliding_window":8}}})", "layers differ in head_dim and num_key_value_heads"},
      {R"({"enable_moe_block":true})", "use_double_wide_mlp"},
      {R"({"hidden_activation":"silu"})", "gelu_pytorch_tanh"}};
  for (const auto& [patch, reason] : cases) EXPECT_THAT(refused(e2b(), patch), HasSubstr(reason)) << patch;
  EXPECT_THAT(refused(a4b(), R"({"num_global_key_value_heads":3})"), HasSubstr("a divisor of num_attention_heads"));
  EXPECT_THAT(refused(a4b(), R"({"top_k_experts":129})"), HasSubstr("an integer from 1 to 128"));
  EXPECT_THAT(refused(a4b(), R"({"hidden_size_per_layer_input":256})"), HasSubstr("0 beside enable_moe_block"));
}

TEST(HfGemma4, MutatedConfigsAreRefusedOrSane) {
  const std::string pieces[] = {"-", "0", "null", "1e9", "[]", "{}", "\"", ",", "false", "4294967297", "9"};
  int refused = 0, accepted = 0;
  for (uint64_t round = 0; round < 3000; ++round) {
    Rng rng(7, round);
    std::string text = (round % 2 == 0 ? e2b() : a4b()).dump();
    const std::string& piece = pieces[rng.below(std::size(pieces))];
    text.replace(rng.below(text.size()), rng.below(2) * piece.size(), piece);
    try {
      const ModelConfig c = parse_config(text, "f");
      for (int i = 0; i < c.L; ++i) {
        const LayerKind kind = kind_of(c, i);
        ASSERT_TRUE(c.h % kv_heads_of(c, i) == 0 && head_dim_of(c, i) % 2 == 0) << text;
        ASSERT_TRUE(kind.keys_of < i && (kind.keys_of < 0 || keeps_keys(c, kind.keys_of))) << text;
      }
      for (LinearId id : linears_of(c)) ASSERT_GT(shape_of(c, id).elements(), 0) << to_string(id) << text;
      ++accepted;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace fidelio
