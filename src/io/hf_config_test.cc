#include "io/hf_config.h"

#include <gmock/gmock.h>

#include <bit>
#include <nlohmann/json.hpp>
#include <set>

#include "arch/weight_names.h"
#include "core/file.h"
#include "core/rng.h"

namespace fidelio {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const Json& golden() {
  static const Json json = Json::parse(read_text_file(FIDELIO_SOURCE_DIR "/tests/golden/configs.json"));
  return json;
}

std::string dtype_name(const ModelConfig& c) {
  if (!c.dtype) return "null";
  return *c.dtype == DType::bf16 ? "\"bfloat16\"" : *c.dtype == DType::f16 ? "\"float16\"" : "\"float32\"";
}

TEST(HfConfig, ResolvesAsTransformersDoes) {
  for (const Json& row : golden()) {
    SCOPED_TRACE(row["config"].dump());
    const ModelConfig c = parse_config(row["config"].dump(), "config.json");
    EXPECT_EQ(std::string(name_of(c.architecture)), row["config"]["architectures"][0].get<std::string>());
    EXPECT_EQ(c.L, 2);
    EXPECT_EQ(c.d, 256);
    EXPECT_EQ(c.f, 512);
    EXPECT_EQ(c.h, 32);
    EXPECT_EQ(c.v, 512);
    EXPECT_EQ(c.hk, row["hk"]);
    EXPECT_EQ(c.e, row["e"]);
    EXPECT_EQ(c.rms_eps, row["rms_eps"].get<float>());
    const bool scaled = c.rope.type == RopeType::yarn || c.rope.type == RopeType::linear;
    if (!scaled) {  // The test ScaledRopesReachFurther covers the others.
      EXPECT_EQ(c.max_positions, row["max_positions"]);
    }
    EXPECT_EQ(c.tie_embeddings, row["tie"]);
    EXPECT_EQ(c.qkv_bias, row["qkv_bias"]);
    EXPECT_EQ(c.o_bias, row["o_bias"]);
    EXPECT_EQ(c.mlp_bias, row["mlp_bias"]);
    EXPECT_EQ(c.blocks.qk_norm != QkNorm::none, row["qk_norm"].get<bool>());
    EXPECT_EQ(c.sliding_window, row["window"]);
    EXPECT_EQ(c.eos_ids, row["eos"].get<std::vector<int>>());
    EXPECT_EQ(c.bos_id ? Json(*c.bos_id) : Json(), row["bos"]);
    EXPECT_EQ(dtype_name(c), row["dtype"].dump());
    EXPECT_EQ(c.rope.theta, row["theta"].get<double>());
    // Both use the same double arithmetic. Only the order of log and division could differ: 2 roundings of 2^-53, below
    // 1e-15.
    EXPECT_NEAR(c.rope.attention_factor, row["attention_factor"].get<double>(), 1e-15);
  }
}

// torch's vector pow is within 1 ulp of theta^x, and ours is rounded correctly. Where the power p is just above a power
// of two, ulp(1/p) is half as large relative to 1/p as ulp(p) to p, so 1 ulp there is at most 2 here. yarn blends two
// such numbers with weights that sum to 1, and llama3's ramp moves by as little. The bound therefore stays 2, plus 1
// for the blend's own roundings, which act on different inputs.
TEST(HfConfig, RopeFrequenciesAreTransformers) {
  size_t exact = 0, all = 0;
  for (const Json& row : golden()) {
    SCOPED_TRACE(row["config"].dump());
    const ModelConfig c = parse_config(row["config"].dump(), "config.json");
    const std::vector<float> mine = rope_inverse_frequencies(c);
    const auto bits = row["bits"].get<std::vector<int32_t>>();
    ASSERT_EQ(mine.size(), bits.size());
    const int bound = c.rope.type == RopeType::llama3 || c.rope.type == RopeType::yarn ? 3 : 2;
    for (size_t i = 0; i < bits.size(); ++i) {
      const int distance = std::abs(std::bit_cast<int32_t>(mine[i]) - bits[i]);
      EXPECT_LE(distance, bound) << "pair " << i;
      exact += distance == 0;
      ++all;
    }
  }
  RecordProperty("exact", static_cast<int>(exact));
  EXPECT_GT(exact, all * 95 / 100);
}

TEST(HfConfig, BundledModels) {
  const ModelConfig large = load_config(FIDELIO_SOURCE_DIR "/models/quill-26m");
  EXPECT_EQ(large.architecture, Architecture::qwen3);
  EXPECT_TRUE(large.blocks.qk_norm == QkNorm::head && large.tie_embeddings && !large.qkv_bias);
  EXPECT_EQ(large.hk, 4);
  EXPECT_EQ(large.rope.theta, 1e6);
  EXPECT_EQ(large.eos_ids, std::vector<int>{2});
  const ModelConfig small = load_config(FIDELIO_SOURCE_DIR "/models/quill-1m");
  EXPECT_EQ(small.architecture, Architecture::llama);
  EXPECT_EQ(small.e, 32);
  EXPECT_EQ(small.dtype, DType::bf16);
  EXPECT_THROW(load_config("/nonexistent"), Error);
}

Json valid() {
  return Json::parse(
      R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":256,"intermediate_size":512,
    "num_hidden_layers":2,"num_attention_heads":8,"vocab_size":512,"hidden_act":"silu","rope_theta":10000.0,
    "max_position_embeddings":2048,"rms_norm_eps":1e-5,"bos_token_id":1,"eos_token_id":[2,3]})");
}

std::string refusal(const char* patch) {
  Json json = valid();
  json.merge_patch(Json::parse(patch));
  try {
    parse_config(json.dump(), "m/config.json");
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(HfConfig, RefusesNonsenseByKey) {
  EXPECT_EQ(refusal("{}"), "accepted");
  EXPECT_EQ(refusal(R"({"num_hidden_layers":0})"),
            "m/config.json: key \"num_hidden_layers\": expected an integer from 1 to 1000, got 0");
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"})
    for (const char* value : {"null", "0", "-4", "2.5", "\"8\"", "99999999999", "18446744073709551615", "[8]"})
      EXPECT_THAT(refusal(fmt::format(R"({{"{}":{}}})", key, value).c_str()), AllOf(HasSubstr(key), HasSubstr("got")))
          << value;
  const std::pair<const char*, const char*> cases[] = {
      {R"({"num_key_value_heads":3})", "\"num_key_value_heads\": expected a divisor of num_attention_heads = 8, got 3"},
      {R"({"head_dim":33})", "\"head_dim\": expected an even number"},
      {R"({"head_dim":0})", "head_dim"},
      {R"({"head_dim":2147483646})", "too many"},
      {R"({"hidden_size":260})", "expected a multiple of num_attention_heads = 8"},
      {R"({"hidden_act":"gelu"})", "\"hidden_act\": expected silu, got \"gelu\""},
      {R"({"rms_norm_eps":-1})", "rms_norm_eps"},
      {R"({"tie_word_embeddings":1})", "\"tie_word_embeddings\": expected true or false, got 1"},
      {R"({"eos_token_id":[2,-1]})", "eos_token_id"},
      {R"({"eos_token_id":"x"})", "eos_token_id"},
      {R"({"bos_token_id":-1})", "bos_token_id"},
      {R"({"torch_dtype":"int8"})", "\"torch_dtype\": expected bfloat16, float16 or float32"},
      {R"({"architectures":["GemmaForCausalLM"]})",
       "architecture GemmaForCausalLM is not supported: it is a Gemma of another design"},
      {R"({"architectures":["NovelForCausalLM"],"model_type":"novel"})",
       "architecture NovelForCausalLM is not supported; supported are LlamaForCausalLM"},
      {R"({"architectures":null,"model_type":"deepseek_v3"})", "architecture deepseek_v3 is not supported"},
      {R"({"architectures":null,"model_type":null})", "neither"},
      {R"({"architectures":["MistralForCausalLM"]})",
       "\"architectures\" says MistralForCausalLM but \"model_type\" says llama"},
      {R"({"architectures":[]})", "a list of one class name"},
      {R"({"quantization_config":{"quant_method":"awq","bits":4}})", "quantised already, by awq"},
      {R"({"quantization_config":{"quant_method":"fidelio","rotation":"givens"}})",
       "expected \"hadamard\", got givens"},
      {R"({"quantization_config":{"quant_method":"fidelio","kept_columns":129}})", "\"kept_columns\": expected"},
      {R"({"rope_theta":0})", "rope_theta"},
      {R"({"partial_rotary_factor":0.5})", "partial_rotary_factor"},
      {R"({"rope_scaling":3})", "\"rope_scaling\": expected an object or null"},
      {R"({"rope_scaling":{"rope_type":"longrope","factor":2}})",
       "\"short_factor\": expected a list of 16 numbers above 0, one a pair of columns, got nothing"},
      {R"({"rope_scaling":{"type":"ntk","factor":2}})",
       "\"type\": expected one of default, linear, dynamic, llama3, yarn, longrope, got \"ntk\""},
      {R"({"rope_scaling":{"type":"linear"}})", "\"factor\": expected a number from 1"},
      {R"({"rope_scaling":{"type":"dynamic","alpha":1000.0}})", "\"factor\": expected a number from 1"},
      {R"({"rope_scaling":{"type":"linear","factor":0.5}})", "factor"},
      {R"({"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4}})",
       "high_freq_factor"},
      {R"({"rope_scaling":{"rope_type":"llama3","factor":8,"high_freq_factor":4}})", "low_freq_factor"},
      {R"({"rope_scaling":{"rope_type":"yarn","factor":8,"beta_fast":1,"beta_slow":2}})", "beta_fast"},
      {R"({"rope_scaling":{"rope_type":"yarn"}})", "factor"},
      {R"({"rope_parameters":{"full_attention":{"rope_theta":1e4}}})", "per layer type (\"full_attention\")"},
      {R"({"layer_types":["full_attention"]})", "a list of 2 strings"},
      {R"({"layer_types":["full_attention","sliding_attention"]})", "no sliding window is set"},
      {R"({"layer_types":["sliding_attention","sliding_attention"]})", "no sliding window is set"},
      {R"({"rope_scaling":{"llama_4_scaling_beta":0.1}})", "it is supported for Ministral3ForCausalLM"},
      {R"({"is_causal":false})", "\"is_causal\": expected true (a position sees those before it), got false"},
  };
  for (const auto& [patch, reason] : cases)
    EXPECT_THAT(refusal(patch), AllOf(HasSubstr(reason), HasSubstr("m/config.json"))) << patch;
  EXPECT_THROW(parse_config("{", "f"), Error);
  EXPECT_THROW(parse_config("[]", "f"), Error);
  EXPECT_THROW(parse_config(R"({"vocab_size":1e999})", "f"), Error);
}

// Returns the message with which a config of the family with this patch is refused.
std::string refusal_of(const char* class_name, const char* type, const char* patch) {
  const std::string family = fmt::format(R"({{"architectures":["{}"],"model_type":"{}"}})", class_name, type);
  Json json = Json::parse(family);
  json.merge_patch(Json::parse(patch));
  return refusal(json.dump().c_str());
}

TEST(HfConfig, WhatFamiliesDoNotDoIsRefusedByKey) {
  struct Case {
    const char *class_name, *type, *patch, *reason;
  };
  const Case cases[] = {
      {"SmolLM3ForCausalLM", "smollm3", R"({"no_rope_layers":[1]})",
       "\"no_rope_layers\": expected a list of 2 numbers"},
      {"SmolLM3ForCausalLM", "smollm3", R"({"no_rope_layers":[1,2]})", "0 or 1 a layer"},
      {"SmolLM3ForCausalLM", "smollm3", R"({"layer_types":["full_attention","sliding_attention"]})",
       "no sliding window is set"},
      {"MistralForCausalLM", "mistral", R"({"layer_types":["full_attention","sliding_attention"]})",
       "the same type in every layer"},
      {"Phi3ForCausalLM", "phi3", R"({"rope_scaling":{"type":"linear","factor":2}})",
       "expected one of default, longrope, got \"linear\""},
      {"Phi3ForCausalLM", "phi3", R"({"partial_rotary_factor":0.1})", "an even number of the 32 columns of a head"},
      {"Phi3ForCausalLM", "phi3", R"({"rope_scaling":{"type":"su","short_factor":[1],"long_factor":[1]}})",
       "a list of 16 numbers"},
      {"GraniteForCausalLM", "granite", R"({"residual_multiplier":0})", "\"residual_multiplier\": expected a number"},
      {"GraniteForCausalLM", "granite", R"({"hidden_act":"gelu"})", "\"hidden_act\": expected silu"},
      {"Olmo3ForCausalLM", "olmo3", R"({"rope_parameters":{"rope_type":"default"}})",
       "an object with full_attention and sliding_attention"},
      {"Gemma3ForCausalLM", "gemma3_text", R"({"final_logit_softcapping":30.0})",
       "\"final_logit_softcapping\": expected null"},
      {"Gemma3ForCausalLM", "gemma3_text", R"({"attn_logit_softcapping":50.0})",
       "\"attn_logit_softcapping\": expected null"},
      {"Gemma3ForCausalLM", "gemma3_text", R"({"use_bidirectional_attention":true})", "use_bidirectional_attention"},
      {"Gemma3ForCausalLM", "gemma3_text", R"({"hidden_activation":"gelu"})",
       "\"hidden_activation\": expected gelu_pytorch_tanh"},
      {"Gemma3ForCausalLM", "gemma3_text", R"({"sliding_window_pattern":0})", "sliding_window_pattern"},
      {"MixtralForCausalLM", "mixtral", R"({"num_local_experts":0})",
       "\"num_local_experts\": expected an integer from 1"},
      {"MixtralForCausalLM", "mixtral", R"({"num_experts":1000000000})", "\"num_experts\": expected an integer from 1"},
      {"MixtralForCausalLM", "mixtral", R"({"num_experts_per_tok":9})",
       "\"num_experts_per_tok\": expected an integer from 1 to 8"},
      {"OlmoeForCausalLM", "olmoe", R"({"clip_qkv":8.0})", "\"clip_qkv\": expected null"},
      {"OlmoeForCausalLM", "olmoe", R"({"norm_topk_prob":1})", "\"norm_topk_prob\": expected true or false"},
      {"Qwen3MoeForCausalLM", "qwen3_moe", R"({"decoder_sparse_step":2})", "\"decoder_sparse_step\": expected 1"},
      {"Qwen3MoeForCausalLM", "qwen3_moe", R"({"mlp_only_layers":[0]})", "\"mlp_only_layers\": expected an empty list"},
      {"Qwen3MoeForCausalLM", "qwen3_moe", R"({"moe_intermediate_size":0})", "moe_intermediate_size"},
      {"GraniteMoeForCausalLM", "granitemoe", R"({"num_local_experts":-1})", "num_local_experts"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(refusal_of(c.class_name, c.type, "{}"), "accepted") << c.class_name;
    EXPECT_THAT(refusal_of(c.class_name, c.type, c.patch), AllOf(HasSubstr(c.reason), HasSubstr("m/config.json")))
        << c.patch;
  }
  // An unknown name is refused with the list of known ones.
  EXPECT_THAT(refusal(R"({"architectures":["NovelForCausalLM"],"model_type":"novel"})"),
              AllOf(HasSubstr("NovelForCausalLM is not supported"), HasSubstr("Phi3ForCausalLM, GraniteForCausalLM"),
                    HasSubstr("CONTRIBUTING.md")));
}

TEST(HfConfig, LayersOfOneModelMayDiffer) {
  Json json = valid();
  json.merge_patch(Json::parse(R"({"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2","num_key_value_heads":8,
                                   "use_sliding_window":true,"sliding_window":77,"max_window_layers":1})"));
  const ModelConfig qwen = parse_config(json.dump(), "f");
  EXPECT_EQ(qwen.kinds, (std::vector<LayerKind>{{0, RopeUse::global}, {77, RopeUse::global}}));
  EXPECT_EQ(qwen.sliding_window, 77);
  json = valid();
  json.merge_patch(Json::parse(R"({"architectures":["Gemma3ForCausalLM"],"model_type":"gemma3_text","sliding_window":77,
                                   "sliding_window_pattern":2,"rope_theta":500000.0,"head_dim":64})"));
  const ModelConfig gemma = parse_config(json.dump(), "f");
  EXPECT_EQ(gemma.kinds, (std::vector<LayerKind>{{77, RopeUse::local}, {0, RopeUse::global}}));
  EXPECT_EQ(gemma.rope.theta, 500000);
  EXPECT_EQ(gemma.local_rope->theta, 10000);
  json["sliding_window"] = nullptr;  // The layers that have a window by default then have none.
  EXPECT_THAT([&] { parse_config(json.dump(), "f"); },
              testing::ThrowsMessage<Error>(HasSubstr("full_attention, as no sliding window is set, got nothing")));
}

// These are the rules of transformers 5.24. Parameters of a layer type without a theta take the config's own. Phi-3's
// original context is the config's, or 4096 where it has none, whatever its rope_scaling says.
TEST(HfConfig, RopesTakeFromTheConfigWhatTransformersTakesThere) {
  Json json = valid();
  json.merge_patch(Json::parse(R"({"architectures":["Gemma3ForCausalLM"],"model_type":"gemma3_text","head_dim":64,
                                   "sliding_window":77,"rope_theta":50000.0,"rope_local_base_freq":777.0,
                                   "rope_parameters":{"full_attention":{"rope_type":"linear","factor":2.0},
                                                      "sliding_attention":{"rope_type":"default"}}})"));
  const ModelConfig gemma = parse_config(json.dump(), "f");
  EXPECT_EQ(gemma.rope.theta, 50000);
  EXPECT_EQ(gemma.rope.factor, 2);
  EXPECT_EQ(gemma.local_rope->theta, 777);
  json["rope_parameters"]["sliding_attention"]["rope_theta"] = 888.0;
  EXPECT_EQ(parse_config(json.dump(), "f").local_rope->theta, 888);
  // transformers lets it override that of full_attention.
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  EXPECT_THAT([&] { parse_config(json.dump(), "f"); },
              testing::ThrowsMessage<Error>(HasSubstr("\"rope_scaling\": expected nothing beside")));
  json = valid();
  json.merge_patch(Json::parse(R"({"architectures":["Olmo3ForCausalLM"],"model_type":"olmo3","rope_theta":50000.0,
                                   "rope_parameters":{"full_attention":{"rope_type":"default"},
                                                      "sliding_attention":{"rope_type":"default"}}})"));
  EXPECT_EQ(parse_config(json.dump(), "f").rope.theta, 50000);
  EXPECT_EQ(parse_config(json.dump(), "f").local_rope->theta, 500000);
  json = valid();
  json.merge_patch(Json::parse(R"({"architectures":["Phi3ForCausalLM"],"model_type":"phi3","rope_scaling":{
                                   "type":"longrope","original_max_position_embeddings":64}})"));
  json["rope_scaling"]["short_factor"] = json["rope_scaling"]["long_factor"] = std::vector<double>(16, 1.5);
  EXPECT_EQ(parse_config(json.dump(), "f").rope.original_max_positions, 4096);
  json["original_max_position_embeddings"] = 32;
  EXPECT_EQ(parse_config(json.dump(), "f").rope.original_max_positions, 32);
}

// These are vLLM's rules (its _get_and_verify_max_len): yarn reaches factor times the original context, linear scaling
// factor times max_position_embeddings except for Gemma 3, and the others no further than the file says.
TEST(HfConfig, ScaledRopesReachFurther) {
  const auto context_of = [](const char* scaling, const char* patch) {
    Json json = valid();
    json.merge_patch(Json::parse(patch));
    json["max_position_embeddings"] = 512;
    json["rope_scaling"] = Json::parse(scaling);
    return parse_config(json.dump(), "f").max_positions;
  };
  const char* yarn = R"({"type":"yarn","factor":4.0,"original_max_position_embeddings":512})";
  EXPECT_EQ(context_of(yarn, "{}"), 2048);
  EXPECT_EQ(context_of(R"({"type":"yarn","factor":4.0,"original_max_position_embeddings":300})", "{}"), 1200);
  EXPECT_EQ(context_of(R"({"type":"yarn","factor":4.0})", "{}"), 2048);
  EXPECT_EQ(context_of(R"({"type":"yarn","factor":2.0,"original_max_position_embeddings":128})", "{}"), 512);
  EXPECT_EQ(context_of(R"({"type":"yarn","factor":null,"original_max_position_embeddings":128})", "{}"), 512);
  EXPECT_EQ(context_of(R"({"type":"yarn","factor":1e6,"original_max_position_embeddings":1000000})", "{}"),
            std::numeric_limits<int>::max());
  EXPECT_EQ(context_of(R"({"type":"linear","factor":2.5})", "{}"), 1280);
  EXPECT_EQ(context_of(R"({"type":"dynamic","factor":2.0})", "{}"), 512);
  EXPECT_EQ(context_of(R"({"type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
                           "original_max_position_embeddings":256})",
                       "{}"),
            512);
  EXPECT_EQ(context_of(R"({"type":"linear","factor":8.0})",
                       R"({"architectures":["Gemma3ForCausalLM"],"model_type":"gemma3_text","sliding_window":77})"),
            512);
}

// The text model's config is inside that of a model that sees images, which alone has some of its settings.
TEST(HfConfig, TextModelsAreFoundWithin) {
  Json text = valid();
  text.erase("architectures");
  text.erase("eos_token_id");
  text["model_type"] = "mistral";
  text["sliding_window"] = nullptr;
  const Json outer = {{"architectures", {"Mistral3ForConditionalGeneration"}},
                      {"model_type", "mistral3"},
                      {"torch_dtype", "bfloat16"},
                      {"eos_token_id", 7},
                      {"text_config", text}};
  const ModelConfig c = parse_config(outer.dump(), "f");
  EXPECT_EQ(c.architecture, Architecture::mistral);
  EXPECT_EQ(c.eos_ids, std::vector<int>{7});
  EXPECT_EQ(c.dtype, DType::bf16);
  EXPECT_FALSE(c.tie_embeddings);
  Json tied = outer;  // transformers 5 writes a model without a head of its own in this way.
  tied["tie_word_embeddings"] = true;
  tied["text_config"]["tie_word_embeddings"] = false;
  EXPECT_TRUE(parse_config(tied.dump(), "f").tie_embeddings);
  EXPECT_THROW(parse_config(R"({"model_type":"gemma3","text_config":[]})", "f"), Error);
}

// Qwen's models that see images first had the text model's keys beside the others, and later in a part of their own.
// Their rope is the plain one for text. Other ropes are still refused.
TEST(HfConfig, QwenTextModelsAreFoundWithinOrBeside) {
  Json flat = valid();
  flat["architectures"] = {"Qwen2_5_VLForConditionalGeneration"};
  flat["model_type"] = "qwen2_5_vl";
  flat["vision_config"] = Json::object();
  flat["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {8, 4, 4}}};
  flat["rope_theta"] = 1e6;
  flat["num_key_value_heads"] = 2;
  const ModelConfig beside = parse_config(flat.dump(), "f");
  EXPECT_EQ(beside.architecture, Architecture::qwen2);
  EXPECT_EQ(beside.rope.type, RopeType::plain);
  EXPECT_EQ(beside.rope.theta, 1e6);
  Json text = flat;
  text.erase("architectures"), text.erase("vision_config");
  text["model_type"] = "qwen2_5_vl_text";
  Json outer = {{"model_type", "qwen2_5_vl"}, {"text_config", text}, {"tie_word_embeddings", true}};
  EXPECT_EQ(parse_config(outer.dump(), "f").architecture, Architecture::qwen2);
  EXPECT_TRUE(parse_config(outer.dump(), "f").tie_embeddings);
  outer["text_config"]["model_type"] = "gpt2";
  EXPECT_THROW(parse_config(outer.dump(), "f"), Error);
  flat["rope_scaling"]["type"] = "ntk";
  EXPECT_THROW(parse_config(flat.dump(), "f"), Error);
}

TEST(HfConfig, MutatedConfigsAreRefusedOrSane) {
  const std::string pieces[] = {"-", "0", "null", "1e9", "[]", "{}", "\"", ",", "\"yarn\"", "false", "4294967297", "9"};
  int refused = 0, accepted = 0;
  for (uint64_t round = 0; round < 6000; ++round) {
    Rng rng(5, round);
    std::string text = golden()[rng.below(golden().size())]["config"].dump();
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
      ASSERT_TRUE(c.L > 0 && c.d > 0 && c.f > 0 && c.v > 0 && c.h % c.hk == 0 && c.e % 2 == 0 && c.e > 0) << text;
      if (c.e < 4096) {
        for (const float frequency : rope_inverse_frequencies(c)) ASSERT_TRUE(std::isfinite(frequency)) << text;
      }
      ++accepted;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(accepted, 100);
}

TEST(WeightNames, AreTransformers) {
  for (const Json& row : golden()) {
    if (!row.contains("tensors")) continue;
    const ModelConfig c = parse_config(row["config"].dump(), "f");
    std::set<std::string> mine = {weight_name({-1, Role::embedding}), norm_name(c, 0, Norm::final)}, theirs;
    if (!c.tie_embeddings) mine.insert(weight_name({-1, Role::head}));
    for (int i = 0; i < c.L; ++i) {
      for (const Role role : {Role::q, Role::k, Role::v, Role::o, Role::gate, Role::up, Role::down}) {
        mine.insert(weight_name({i, role}));
        const bool bias = role < Role::o ? c.qkv_bias : role == Role::o ? c.o_bias : c.mlp_bias;
        if (bias) mine.insert(bias_name({i, role}));
      }
      mine.insert({norm_name(c, i, Norm::attn), norm_name(c, i, Norm::mlp)});
      if (c.blocks.qk_norm != QkNorm::none) mine.insert({norm_name(c, i, Norm::q), norm_name(c, i, Norm::k)});
    }
    for (const auto& [name, shape] : row["tensors"].items()) theirs.insert(name);
    EXPECT_EQ(mine, theirs) << row["config"];
  }
}

TEST(WeightNames, ShortNamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(Role::head); ++i) {
    const auto role = static_cast<Role>(i);
    const LinearId id{is_outer(role) ? -1 : 31, role};
    if (is_fixed(role) || role == Role::join)
      EXPECT_THROW(parse_linear_id(to_string(id)), Error) << to_string(id);  // No plan names it.
    else
      EXPECT_EQ(parse_linear_id(to_string(id)), id);
  }
  EXPECT_EQ(to_string({3, Role::q}), "layers.3.q");
  for (const Role role : {Role::gate, Role::up, Role::down})
    EXPECT_EQ(parse_linear_id(to_string({7, role, 12})), (LinearId{7, role, 12}));
  EXPECT_EQ(to_string({3, Role::down, 0}), "layers.3.experts.0.down");
  EXPECT_EQ(parse_linear_id("head"), (LinearId{-1, Role::head}));
  for (const char* bad : {"", "layers", "layers.", "layers.3", "layers.3.", "layers.3.x", "layers.-1.q", "layers.03.q",
                          "layers.+3.q", "layers.99999999999.q", "layers.3.q ", "layers.3.head", "Head",
                          "layers.3.experts.1.q", "layers.3.experts.01.up", "layers.3.experts.-1.up",
                          "layers.3.experts.up", "experts.1.up", "layers.3.experts.4294967297.up"})
    EXPECT_THAT([&] { parse_linear_id(bad); }, testing::ThrowsMessage<Error>(HasSubstr("names no linear"))) << bad;
}

}  // namespace
}  // namespace fidelio
