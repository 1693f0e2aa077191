// These tests read config.json of the families whose layers differ in kind: those with delta nets, mixtures with other
// routers, and gpt-oss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "arch/model_weights.h"
#include "core/rng.h"
#include "io/hf_config.h"

namespace fidelio {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// The keys that Qwen3.5's own files have in their text_config.
Json qwen35() {
  return Json::parse(R"({"model_type":"qwen3_5_text","hidden_size":5120,"intermediate_size":17408,"num_hidden_layers":8,
    "num_attention_heads":24,"num_key_value_heads":4,"head_dim":256,"rms_norm_eps":1e-6,"hidden_act":"silu",
    "vocab_size":248320,"attention_bias":false,"linear_conv_kernel_dim":4,"linear_key_head_dim":128,
    "linear_value_head_dim":128,"linear_num_key_heads":16,"linear_num_value_heads":48,"full_attention_interval":4,
    "rope_parameters":{"rope_theta":1e7,"partial_rotary_factor":0.25,"rope_type":"default","mrope_interleaved":true,
    "mrope_section":[11,11,10]},"attn_output_gate":true,"output_gate_type":"swish","mamba_ssm_dtype":"float32",
    "mtp_num_hidden_layers":1,"max_position_embeddings":262144,"eos_token_id":248044,"dtype":"bfloat16"})");
}

Json qwen_next() {
  return Json::parse(R"({"architectures":["Qwen3NextForCausalLM"],"model_type":"qwen3_next","hidden_size":2048,
    "intermediate_size":5120,"num_hidden_layers":6,"num_attention_heads":16,"num_key_value_heads":2,"head_dim":256,
    "vocab_size":151936,"num_experts":16,"num_experts_per_tok":10,"moe_intermediate_size":512,
    "shared_expert_intermediate_size":256,"norm_topk_prob":true,"decoder_sparse_step":1,"mlp_only_layers":[],
    "rope_theta":10000000,"partial_rotary_factor":0.25})");
}

ModelConfig parse(const Json& json) { return parse_config(json.dump(), "m/config.json"); }

std::string refusal(Json json, const char* patch) {
  json.merge_patch(Json::parse(patch));
  try {
    parse(json);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(HfLayers, Qwen35IsReadWithinAndByItself) {
  Json text = qwen35();
  const Json outer = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                      {"model_type", "qwen3_5"},
                      {"tie_word_embeddings", true},
                      {"text_config", text},
                      {"vision_config", Json::object()}};
  text["architectures"] = {"Qwen3_5ForCausalLM"};
  for (const Json& json : {text, outer}) {
    const ModelConfig c = parse(json);
    EXPECT_EQ(c.architecture, Architecture::qwen3_5);
    EXPECT_EQ(std::tie(c.L, c.d, c.f, c.h, c.hk, c.e, c.v), std::tuple(8, 5120, 17408, 24, 4, 256, 248320));
    const DeltaNet& n = c.delta;
    EXPECT_EQ(std::tie(n.key_heads, n.value_heads, n.key_dim, n.value_dim, n.kernel), std::tuple(16, 48, 128, 128, 4));
    EXPECT_EQ(n.gate, Activation::silu);
    EXPECT_EQ(delta_layers(c), (std::vector<int>{0, 1, 2, 4, 5, 6}));
    EXPECT_EQ(rotary_columns(c), 64);
    EXPECT_EQ(c.rope.theta, 1e7);
    EXPECT_EQ(c.eos_ids, std::vector<int>{248044});
    EXPECT_EQ(c.dtype, DType::bf16);
    EXPECT_EQ(c.tie_embeddings, json.contains("text_config"));
    EXPECT_TRUE(routed_layers(c).empty());
  }
  // A model that sees images without a part for text is no text model.
  Json flat = outer;
  flat.erase("text_config");
  EXPECT_THAT(refusal(flat, "{}"), HasSubstr("architecture Qwen3_5ForConditionalGeneration is not supported"));
}

// transformers turns a quarter of each head where no key says otherwise, and has 32 value heads.
TEST(HfLayers, MissingKeysAreTransformersDefaults) {
  Json json = qwen35();
  for (const char* key : {"linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim",
                          "linear_num_key_heads", "linear_num_value_heads", "full_attention_interval", "head_dim",
                          "rope_parameters", "output_gate_type", "num_key_value_heads"})
    json.erase(key);
  const ModelConfig c = parse(json);
  const DeltaNet& n = c.delta;
  EXPECT_EQ(std::tie(n.key_heads, n.value_heads, n.key_dim, n.value_dim, n.kernel), std::tuple(16, 32, 128, 128, 4));
  EXPECT_EQ(std::tie(c.hk, c.e), std::tuple(4, 256));
  EXPECT_EQ(rotary_columns(c), 64);
  EXPECT_EQ(delta_layers(c).size(), 6u);
  json["full_attention_interval"] = 3;
  EXPECT_EQ(delta_layers(parse(json)), (std::vector<int>{0, 1, 3, 4, 6, 7}));
  json["layer_types"] = Json::array();
  for (int i = 0; i < 8; ++i) json["layer_types"].push_back(i == 5 ? "linear_attention" : "full_attention");
  EXPECT_EQ(delta_layers(parse(json)), std::vector<int>{5});  // The list decides.
  json["output_gate_type"] = "sigmoid";
  EXPECT_EQ(parse(json).delta.gate, Activation::sigmoid);
}

TEST(HfLayers, ExpertsAreWhereQwenNextHasThem) {
  const ModelConfig all = parse(qwen_next());
  EXPECT_EQ(std::tie(all.experts, all.experts_per_row, all.f, all.shared_f), std::tuple(16, 10, 512, 256));
  EXPECT_EQ(routed_layers(all).size(), 6u);
  Json json = qwen_next();
  json["decoder_sparse_step"] = 2;
  json["mlp_only_layers"] = {3};
  const ModelConfig some = parse(json);
  EXPECT_EQ(routed_layers(some), (std::vector<int>{1, 5}));
  EXPECT_EQ(shape_of(some, {0, Role::up}), (Shape{5120, 2048}));
  EXPECT_EQ(shape_of(some, {1, Role::up, 0}), (Shape{512, 2048}));
  for (const char* none : {R"({"num_experts":0})", R"({"decoder_sparse_step":7})"}) {
    Json dense = qwen_next();
    dense.merge_patch(Json::parse(none));
    const ModelConfig c = parse(dense);
    EXPECT_EQ(std::tie(c.experts, c.f, c.shared_f, c.dense_f), std::tuple(0, 5120, 0, 0));
    EXPECT_TRUE(routed_layers(c).empty());
  }
}

// The keys that GLM-4.5-Air's own file has.
Json glm() {
  return Json::parse(R"({"architectures":["Glm4MoeForCausalLM"],"attention_bias":true,"attention_dropout":0.0,
    "pad_token_id":151329,"eos_token_id":[151329,151336,151338],"head_dim":128,"hidden_act":"silu","hidden_size":4096,
    "partial_rotary_factor":0.5,"initializer_range":0.02,"intermediate_size":10944,"max_position_embeddings":131072,
    "model_type":"glm4_moe","moe_intermediate_size":1408,"norm_topk_prob":true,"num_attention_heads":96,"n_group":1,
    "topk_group":1,"n_routed_experts":128,"n_shared_experts":1,"routed_scaling_factor":1.0,"num_experts_per_tok":8,
    "first_k_dense_replace":1,"num_hidden_layers":46,"num_key_value_heads":8,"num_nextn_predict_layers":1,
    "rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":1000000,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
    "use_cache":true,"use_qk_norm":false,"vocab_size":151552})");
}

TEST(HfRouters, GlmChoosesBySigmoidsInGroups) {
  const ModelConfig c = parse(glm());
  EXPECT_EQ(std::tie(c.experts, c.experts_per_row, c.f, c.dense_f, c.shared_f), std::tuple(128, 8, 1408, 10944, 1408));
  EXPECT_EQ(c.router, (Router{.scoring = Scoring::sigmoid, .corrected = true}));
  EXPECT_EQ(std::tie(c.renormalised, c.qkv_bias, c.o_bias), std::tuple(true, true, false));
  EXPECT_EQ(rotary_columns(c), 64);
  EXPECT_EQ(c.blocks.qk_norm, QkNorm::none);
  EXPECT_EQ(routed_layers(c).size(), 45u);
  EXPECT_FALSE(has_experts(c, 0));
  EXPECT_TRUE(fixed_linears_of(c).empty());  // The shared expert has no gate.
  Json other = glm();
  other.update({{"n_group", 8},
                {"topk_group", 3},
                {"routed_scaling_factor", 2.5},
                {"use_qk_norm", true},
                {"n_shared_experts", 2}});
  const ModelConfig d = parse(other);
  EXPECT_EQ(std::tie(d.router.groups, d.router.groups_per_row, d.router.factor), std::tuple(8, 3, 2.5));
  EXPECT_EQ(std::tie(d.shared_f, d.blocks.qk_norm), std::tuple(2816, QkNorm::head));
  other["first_k_dense_replace"] = 46;
  EXPECT_EQ(std::tuple(parse(other).experts, parse(other).f), std::tuple(0, 10944));
  EXPECT_THAT(refusal(glm(), R"({"n_group":3})"), HasSubstr("\"n_group\": expected a divisor of the 128 experts"));
  EXPECT_THAT(refusal(glm(), R"({"n_group":128})"), HasSubstr("n_group"));  // A group's score has two experts.
  EXPECT_THAT(refusal(glm(), R"({"n_group":8,"topk_group":9})"), HasSubstr("topk_group"));
  EXPECT_THAT(refusal(glm(), R"({"n_group":64,"topk_group":2})"), HasSubstr("num_experts_per_tok"));
  EXPECT_THAT(refusal(glm(), R"({"partial_rotary_factor":0.001})"), HasSubstr("an even number of the 128 columns"));
}

TEST(HfRouters, MiniMaxTurnsSomeColumns) {
  const Json json = Json::parse(R"({"architectures":["MiniMaxM2ForCausalLM"],"model_type":"minimax_m2","head_dim":128,
    "hidden_size":3072,"intermediate_size":1536,"num_attention_heads":48,"num_experts_per_tok":8,
    "num_hidden_layers":62,"num_key_value_heads":8,"num_local_experts":256,"rotary_dim":64,"scoring_func":"sigmoid",
    "use_qk_norm":true,"use_routing_bias":true,"vocab_size":200064,"rope_theta":5000000})");
  const ModelConfig c = parse(json);
  EXPECT_EQ(std::tie(c.experts, c.experts_per_row, c.f, c.shared_f), std::tuple(256, 8, 1536, 0));
  EXPECT_EQ(c.router, (Router{.scoring = Scoring::sigmoid, .corrected = true}));
  EXPECT_TRUE(c.renormalised);
  EXPECT_EQ(rotary_columns(c), 64);
  EXPECT_EQ(norm_size(c, 0, Norm::q), 48 * 128);
  EXPECT_EQ(router_name(c, 3, RouterTensor::correction), "model.layers.3.block_sparse_moe.e_score_correction_bias");
  Json whole = json;
  whole.erase("rotary_dim");
  EXPECT_EQ(rotary_columns(parse(whole)), 128);
  EXPECT_THAT(refusal(json, R"({"rotary_dim":63})"), HasSubstr("an even number of the 128 columns"));
}

TEST(HfRouters, Qwen2HasExpertsInSomeLayers) {
  const Json json = Json::parse(R"({"architectures":["Qwen2MoeForCausalLM"],"model_type":"qwen2_moe","hidden_size":2048,
    "intermediate_size":5632,"num_hidden_layers":24,"num_attention_heads":16,"num_key_value_heads":16,
    "moe_intermediate_size":1408,"shared_expert_intermediate_size":5632,"num_experts":60,"num_experts_per_tok":4,
    "norm_topk_prob":false,"use_sliding_window":false,"vocab_size":151936})");
  const ModelConfig c = parse(json);
  EXPECT_EQ(std::tie(c.experts, c.experts_per_row, c.f, c.shared_f), std::tuple(60, 4, 1408, 5632));
  EXPECT_EQ(std::tie(c.renormalised, c.qkv_bias, c.o_bias), std::tuple(false, true, false));
  EXPECT_EQ(c.router, Router());
  EXPECT_TRUE(c.kinds.empty());
  Json some = json;
  some.update({{"decoder_sparse_step", 2}, {"mlp_only_layers", {1}}, {"qkv_bias", false}});
  const ModelConfig d = parse(some);
  EXPECT_EQ(routed_layers(d).size(), 11u);
  EXPECT_EQ(std::tie(d.dense_f, d.qkv_bias), std::tuple(5632, false));
  some.update({{"use_sliding_window", true}, {"sliding_window", 100}, {"max_window_layers", 3}});
  const ModelConfig w = parse(some);
  EXPECT_EQ(std::tuple(kind_of(w, 0).window, kind_of(w, 1).window, kind_of(w, 2).window, kind_of(w, 4).window),
            std::tuple(100, 0, 100, 0));
}

// The rows of a key head stand together: q, k, its value heads of v and of z, and in the other matrix of b and of a.
TEST(HfLayers, FusedRowsOfQwenNextAreRuns) {
  Json json = qwen_next();
  json.update({{"linear_key_head_dim", 3},
               {"linear_value_head_dim", 5},
               {"linear_num_key_heads", 2},
               {"linear_num_value_heads", 4}});
  const ModelConfig c = parse(json);
  const auto rows_of = [&](Role role) {
    std::vector<int64_t> rows;
    const FusedName name = fused_name(c, {0, role});
    for (const RowRun& run : name.runs)
      for (int64_t i = 0; i < run.rows; ++i) rows.push_back(run.first_row + i);
    EXPECT_EQ(std::ssize(rows), shape_of(c, {0, role})[0]);
    return rows;
  };
  const std::vector<int64_t> qkv = rows_of(Role::delta_qkv), z = rows_of(Role::delta_z);
  EXPECT_EQ(std::vector(qkv.begin(), qkv.begin() + 12),
            (std::vector<int64_t>{0, 1, 2, 26, 27, 28, 3, 4, 5, 29, 30, 31}));
  EXPECT_EQ(qkv[12], 6);        // v of the first key head's two value heads
  EXPECT_EQ(qkv[12 + 10], 32);  // and of the second's
  EXPECT_EQ(z.front(), 16);
  EXPECT_EQ(z[10], 42);
  EXPECT_EQ(fused_name(c, {0, Role::delta_z}).rows, 52);
  EXPECT_EQ(rows_of(Role::delta_b), (std::vector<int64_t>{0, 1, 4, 5}));
  EXPECT_EQ(rows_of(Role::delta_a), (std::vector<int64_t>{2, 3, 6, 7}));
}

TEST(HfLayers, NonsenseIsRefusedByKey) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"linear_conv_kernel_dim":0})", "\"linear_conv_kernel_dim\": expected an integer from 1 to 16, got 0"},
      {R"({"linear_conv_kernel_dim":17})", "\"linear_conv_kernel_dim\": expected an integer from 1 to 16"},
      {R"({"linear_key_head_dim":2147483647})", "\"linear_key_head_dim\": expected an integer from 1 to 1024"},
      {R"({"linear_value_head_dim":-1})", "linear_value_head_dim"},
      {R"({"linear_num_key_heads":0})", "linear_num_key_heads"},
      {R"({"linear_num_value_heads":100000})", "linear_num_value_heads"},
      {R"({"linear_num_value_heads":40})",
       "\"linear_num_value_heads\": expected a multiple of linear_num_key_heads = 16, got 40"},
      {R"({"attn_output_gate":false})", "\"attn_output_gate\": expected true"},
      {R"({"output_gate_type":"tanh"})", "\"output_gate_type\": expected swish, silu or sigmoid, got \"tanh\""},
      {R"({"full_attention_interval":0})", "full_attention_interval"},
      {R"({"layer_types":["full_attention"]})", "\"layer_types\": expected a list of 8 strings"},
      {R"({"layer_types":["a","a","a","a","a","a","a","a"]})", "full_attention or linear_attention only"},
      {R"({"rope_parameters":{"partial_rotary_factor":0.001}})", "an even number of the 256 columns of a head"},
      {R"({"hidden_act":"gelu"})", "\"hidden_act\": expected silu"}};
  EXPECT_EQ(refusal(qwen35(), "{}"), "accepted");
  for (const auto& [patch, reason] : cases)
    EXPECT_THAT(refusal(qwen35(), patch), AllOf(HasSubstr(reason), HasSubstr("m/config.json"))) << patch;
  const std::pair<const char*, const char*> of_experts[] = {
      {R"({"decoder_sparse_step":0})", "\"decoder_sparse_step\": expected an integer from 1"},
      {R"({"mlp_only_layers":[6]})", "\"mlp_only_layers\": expected a list of layers from 0 to 5"},
      {R"({"mlp_only_layers":"1"})", "mlp_only_layers"},
      {R"({"num_experts":-1})", "num_experts"},
      {R"({"num_experts_per_tok":17})", "\"num_experts_per_tok\": expected an integer from 1 to 16"},
      {R"({"shared_expert_intermediate_size":-1})", "shared_expert_intermediate_size"}};
  EXPECT_EQ(refusal(qwen_next(), "{}"), "accepted");
  for (const auto& [patch, reason] : of_experts) EXPECT_THAT(refusal(qwen_next(), patch), HasSubstr(reason)) << patch;
  // In Qwen3.5 every layer has experts, and their shares sum to 1 whatever a file says.
  Json mixture = qwen_next();
  mixture.merge_patch(Json::parse(R"({"architectures":["Qwen3_5MoeForCausalLM"],"model_type":"qwen3_5_moe_text"})"));
  EXPECT_EQ(refusal(mixture, "{}"), "accepted");
  for (const char* patch :
       {R"({"norm_topk_prob":false})", R"({"mlp_only_layers":[1]})", R"({"decoder_sparse_step":2})"})
    EXPECT_THAT(refusal(mixture, patch), HasSubstr("here)")) << patch;
}

// A config with random edits is refused, or describes tensors whose sizes are whole numbers above 0.
TEST(HfLayers, MutatedConfigsAreRefusedOrSane) {
  const std::string pieces[] = {"-", "0", "null", "1e9", "[]", "{}", "\"", ",", "false", "4294967297", "9", "linear"};
  int refused = 0, accepted = 0;
  for (uint64_t round = 0; round < 4000; ++round) {
    Rng rng(6, round);
    std::string text = (round % 2 == 0 ? qwen35() : qwen_next()).dump();
    for (uint64_t edits = 1 + rng.below(2); edits > 0; --edits) {
      const size_t at = rng.below(text.size());
      const std::string& piece = pieces[rng.below(std::size(pieces))];
      if (rng.below(3) == 0)
        text[at] = static_cast<char>(rng.below(256));
      else
        text.replace(at, rng.below(2) * piece.size(), piece);
    }
    try {
      const ModelConfig c = parse_config(text, "f");
      for (const auto& ids : {linears_of(c), fixed_linears_of(c)})
        for (const LinearId id : ids)
          ASSERT_TRUE(shape_of(c, id)[0] > 0 && shape_of(c, id)[1] > 0) << to_string(id) << " of " << text;
      ASSERT_EQ(c.delta.value_heads % c.delta.key_heads, 0) << text;
      ASSERT_TRUE(c.delta.kernel >= 1 && c.delta.kernel <= 16) << text;
      ASSERT_TRUE(rotary_columns(c) >= 2 && rotary_columns(c) <= c.e && rotary_columns(c) % 2 == 0) << text;
      ++accepted;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(accepted, 100);
}

// The keys of gpt-oss-20b, with fewer layers.
Json gpt_oss() {
  return Json::parse(R"({"architectures":["GptOssForCausalLM"],"model_type":"gpt_oss","hidden_size":2880,
    "intermediate_size":2880,"num_hidden_layers":4,"num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,
    "vocab_size":201088,"rms_norm_eps":1e-5,"attention_bias":true,"tie_word_embeddings":false,"sliding_window":128,
    "num_local_experts":32,"experts_per_token":4,"num_experts_per_tok":4,"swiglu_limit":7.0,"hidden_act":"silu",
    "initial_context_length":4096,"max_position_embeddings":131072,"rope_theta":150000,"rope_scaling":{"rope_type":"yarn",
    "factor":32.0,"beta_fast":32.0,"beta_slow":1.0,"truncate":false,"original_max_position_embeddings":4096},
    "layer_types":["sliding_attention","full_attention","sliding_attention","full_attention"],
    "eos_token_id":200002,"pad_token_id":199999})");
}

TEST(HfLayers, GptOssIsRead) {
  const Json whole = gpt_oss();
  Json short_of = whole;  // What is left out here is the class's default.
  for (const char* key : {"layer_types", "rope_scaling", "rope_theta", "swiglu_limit", "attention_bias", "head_dim",
                          "sliding_window", "num_experts_per_tok", "rms_norm_eps", "num_key_value_heads"})
    short_of.erase(key);
  for (const Json& json : {whole, short_of}) {
    const ModelConfig c = parse(json);
    EXPECT_EQ(c.architecture, Architecture::gpt_oss);
    EXPECT_EQ(std::tie(c.L, c.d, c.f, c.h, c.hk, c.e, c.v), std::tuple(4, 2880, 2880, 64, 8, 64, 201088));
    EXPECT_EQ(std::tie(c.experts, c.experts_per_row), std::tuple(32, 4));
    EXPECT_TRUE(c.renormalised && c.router.bias && c.qkv_bias && c.o_bias && c.mlp_bias && c.blocks.sinks);
    for (int layer = 0; layer < c.L; ++layer) EXPECT_EQ(kind_of(c, layer).window, layer % 2 == 0 ? 128 : 0);
    EXPECT_EQ(std::tie(c.gate_alpha, c.gate_limit), std::tuple(1.702, 7.0));
    EXPECT_EQ(c.rope.type, RopeType::yarn);
    EXPECT_EQ(std::tie(c.rope.theta, c.rope.factor, c.rope.truncate), std::tuple(150000.0, 32.0, false));
    EXPECT_NEAR(c.rope.attention_factor, 1.3465735902799727, 1e-12);
    EXPECT_EQ(c.max_positions, 131072);
  }
  const ModelConfig c = parse(whole);
  EXPECT_EQ(norm_name(c, 1, Norm::sinks), "model.layers.1.self_attn.sinks");
  EXPECT_EQ(router_name(c, 1, RouterTensor::bias), "model.layers.1.mlp.router.bias");
  const FusedName up = fused_name(c, {1, Role::up, 3}), bias = fused_bias_name(c, {1, Role::up, 3});
  EXPECT_EQ(up.weight, "model.layers.1.mlp.experts.gate_up_proj");
  EXPECT_TRUE(up.by_columns);
  EXPECT_EQ(bias.weight, "model.layers.1.mlp.experts.gate_up_proj_bias");
  EXPECT_EQ(std::tie(up.runs[0].first_row, up.runs[0].rows, up.runs[0].step), std::tuple(3 * 5760 + 1, 2880, 2));
  EXPECT_THAT(refusal(whole, R"({"experts_per_token":40,"num_experts_per_tok":null})"), HasSubstr("experts_per_token"));
  EXPECT_THAT(refusal(whole, R"({"hidden_act":"gelu"})"), HasSubstr("hidden_act"));
}

}  // namespace
}  // namespace fidelio
