// These tests read exports back with unpackers written from the definitions of the formats, bit by bit, and compare
// them with decode(). They share nothing with the packers. tools/check_export.py does the same with the real readers.
#include "io/checkpoint_files.h"
#include "io/export/export_fixture.h"
#include "text/chat_template.h"

namespace fidelio {
namespace {

using testing::AllOf;
using testing::HasSubstr;

bool bit_of(std::span<const int32_t> words, int64_t first, int64_t stride, int64_t bit) {
  return static_cast<uint32_t>(words[static_cast<size_t>(first + bit / 32 * stride)]) >> (bit % 32) & 1;
}
// Returns field i of a string of b-bit fields whose words stand `stride` apart, starting at `first`.
int field(std::span<const int32_t> words, int64_t first, int64_t stride, int64_t i, int b) {
  int value = 0;
  for (int k = 0; k < b; ++k) value |= bit_of(words, first, stride, i * b + k) << k;
  return value;
}
// Returns a field of GPTQ's planes: 32 codes take `b` words, with the plane of the low bits first.
int planar_field(std::span<const int32_t> words, int64_t first, int64_t stride, int64_t i, int b) {
  const std::map<int, std::vector<int>> widths = {{2, {2}},    {3, {2, 1}},    {4, {4}}, {5, {4, 1}},
                                                  {6, {4, 2}}, {7, {4, 2, 1}}, {8, {8}}};
  int value = 0, got = 0;
  int64_t word = i / 32 * b;
  for (int width : widths.at(b)) {
    value |= field(words, first + word * stride, stride, i % 32, width) << got;
    got += width;
    word += width;
  }
  return value;
}

TEST_F(ExportTest, CompressedTensorsDecodesToTheSameWeights) {
  const Checkpoint ours = make(kMixed);
  const auto notes = export_compressed_tensors(ours, out(), ServingProfile::any);
  const Safetensors file = Safetensors::open(out());
  for (LinearId id : linears_of(ours.config())) {
    const FormatSpec spec = ours.format(id);
    if (spec.is_dense() || id.role == Role::embedding) continue;
    const LinearWeight w = ours.linear(id);
    const std::vector<float> expected = decode(w);
    const int64_t groups = spec.groups(w.in), words = (w.in * spec.bits + 31) / 32;
    const OwnedTensor packed = file.get(module_name(id) + ".weight_packed", DType::i32, {w.out, words});
    const OwnedTensor scale = file.get(module_name(id) + ".weight_scale");
    ASSERT_EQ(scale.view.shape, (Shape{w.out, groups}));
    EXPECT_EQ(scale.view.dtype, spec.scale == ScaleKind::u8 ? DType::f32 : DType::f16);
    std::vector<float> scales(static_cast<size_t>(w.out * groups));
    convert_to_float(scale.view, scales);
    const auto shape = file.get(module_name(id) + ".weight_shape", DType::i64, {2});
    EXPECT_THAT(shape.as<const int64_t>(), testing::ElementsAre(w.out, w.in));
    EXPECT_EQ(file.contains(module_name(id) + ".weight_zero_point"), !spec.symmetric);
    OwnedTensor zeros;
    if (!spec.symmetric)
      zeros = file.get(module_name(id) + ".weight_zero_point", DType::i32, {(w.out * spec.bits + 31) / 32, groups});
    const int offset = 1 << (spec.bits - 1);
    for (int64_t r = 0; r < w.out; ++r)
      for (int64_t c = 0; c < w.in; ++c) {
        const int64_t g = c / spec.group_size(w.in);
        const int q = field(packed.as<const int32_t>(), r * words, 1, c, spec.bits) - offset;
        const int z = spec.symmetric ? 0 : field(zeros.as<const int32_t>(), g, groups, r, spec.bits) - offset;
        ASSERT_EQ(static_cast<float>(q - z) * scales[static_cast<size_t>(r * groups + g)],
                  expected[static_cast<size_t>(r * w.in + c)])
            << to_string(id) << " " << r << " " << c;
      }
  }
  EXPECT_EQ(file.get("model.embed_tokens.weight").view.dtype, DType::bf16);
  EXPECT_THAT(notes, testing::ElementsAre(HasSubstr("embedding (int8g32) is decoded to BF16"),
                                          HasSubstr("asymmetric: vLLM reads it, transformers does not yet")));
  EXPECT_TRUE(file.contains("model.layers.0.self_attn.q_proj.bias"));
  EXPECT_EQ(file.get("model.layers.1.mlp.down_proj.weight").view.dtype, DType::bf16);
}

TEST_F(ExportTest, CompressedTensorsConfigHasAGroupForEveryWidth) {
  const Checkpoint ours = make(kMixed);
  export_compressed_tensors(ours, out(), ServingProfile::any);
  const json config = json::parse(read_text_file(out() + "/config.json"))["quantization_config"];
  EXPECT_EQ(config["quant_method"], "compressed-tensors");
  EXPECT_EQ(config["format"], "pack-quantized");
  EXPECT_EQ(config["ignore"], (json{"model.layers.1.mlp.down_proj", "lm_head"}));
  std::map<std::string, std::string> seen;
  for (const auto& [name, group] : config["config_groups"].items()) {
    const json& w = group["weights"];
    EXPECT_EQ(w["strategy"], w["group_size"].is_null() ? "channel" : "group");
    for (const json& target : group["targets"])
      seen[target] =
          fmt::format("{} {} {}", w["num_bits"].get<int>(), w["group_size"].dump(), w["symmetric"].get<bool>());
  }
  EXPECT_EQ(seen.size(), 13u);
  EXPECT_EQ(seen["model.layers.0.self_attn.k_proj"], "3 32 false");
  EXPECT_EQ(seen["model.layers.0.mlp.down_proj"], "7 null true");
  EXPECT_EQ(seen["model.layers.0.mlp.gate_proj"], "6 32 false");
  EXPECT_EQ(seen["model.layers.1.self_attn.o_proj"], "8 32 true");
  EXPECT_TRUE(std::filesystem::exists(out() + "/tokenizer.json"));
}

TEST_F(ExportTest, CompressedTensorsRefusesWhatDoesNotFit) {
  const auto message = [&](const std::map<std::string, std::string>& formats, ServingProfile profile) {
    std::filesystem::remove_all(root_ + "/ours");
    std::filesystem::remove(root_ + "/source/model.safetensors");
    const Checkpoint ours = make(formats);
    return refusal([&] { export_compressed_tensors(ours, out(), profile); });
  };
  EXPECT_THAT(message({{"layers.1.o", "lut4g32"}}, ServingProfile::any),
              AllOf(HasSubstr("layers.1.o (lut4g32)"), HasSubstr("formats that fit")));
  EXPECT_THAT(message({{"embedding", "fp8"}, {"layers.0.o", "int4g32"}}, ServingProfile::any),
              HasSubstr("embedding (fp8)"));
  EXPECT_THAT(message({{"layers.0.k", "int4g32"}}, ServingProfile::any),
              AllOf(HasSubstr("layers.0.k"), HasSubstr("layers.0.q")));
  EXPECT_THAT(message({{"layers.0.down", "int4g64"}}, ServingProfile::any),
              AllOf(HasSubstr("layers.0.down"), HasSubstr("96 columns")));
  EXPECT_THAT(message({{"layers.0.o", "int3g32z"}}, ServingProfile::vllm),
              AllOf(HasSubstr("layers.0.o (int3g32z)"), HasSubstr("int3g128")));
  EXPECT_THAT(message({{"layers.0.o", "int4g16"}}, ServingProfile::vllm), HasSubstr("layers.0.o (int4g16)"));
  EXPECT_THAT(message({}, ServingProfile::any), HasSubstr("nothing to export"));
}

// `code` reads field i of the string of words.
void expect_gptq_decodes(const Checkpoint& ours, const std::string& folder,
                         int (*code)(std::span<const int32_t>, int64_t, int64_t, int64_t, int)) {
  const Safetensors file = Safetensors::open(folder);
  for (LinearId id : linears_of(ours.config())) {
    const FormatSpec spec = ours.format(id);
    if (spec.is_dense() || id.role == Role::embedding) continue;
    const LinearWeight w = ours.linear(id);
    const std::vector<float> expected = decode(w);
    const int64_t groups = spec.groups(w.in), zero_words = w.out * spec.bits / 32;
    const OwnedTensor qweight = file.get(module_name(id) + ".qweight", DType::i32, {w.in * spec.bits / 32, w.out});
    const OwnedTensor qzeros = file.get(module_name(id) + ".qzeros", DType::i32, {groups, zero_words});
    const OwnedTensor scales = file.get(module_name(id) + ".scales", DType::f16, {groups, w.out});
    const OwnedTensor g_idx = file.get(module_name(id) + ".g_idx", DType::i32, {w.in});
    for (int64_t n = 0; n < w.out; ++n)
      for (int64_t k = 0; k < w.in; ++k) {
        const int64_t g = g_idx.as<const int32_t>()[static_cast<size_t>(k)];
        const int q = code(qweight.as<const int32_t>(), n, w.out, k, spec.bits);
        const int z = code(qzeros.as<const int32_t>(), g * zero_words, 1, n, spec.bits);
        const float value =
            to_float(scales.as<const f16>()[static_cast<size_t>(g * w.out + n)]) * static_cast<float>(q - z);
        const float want = expected[static_cast<size_t>(n * w.in + k)];
        // FP16 scales are stored as they are. r x s is rounded, by at most half of 2^-10 of itself (all numbers here
        // are normal).
        ASSERT_LE(std::abs(value - want), spec.scale == ScaleKind::u8 ? 0x1p-11f * std::abs(want) * 1.001f : 0.0f)
            << to_string(id) << " " << n << " " << k;
      }
  }
}

TEST_F(ExportTest, GptqDecodesToTheSameWeights) {
  const Checkpoint ours = make(kWords);
  const auto notes = export_gptq(ours, out(), ServingProfile::any);
  expect_gptq_decodes(ours, out(), field);
  EXPECT_THAT(notes, testing::ElementsAre(HasSubstr("layers.1.o (int4g64zs8): scales are rounded")));
  const json config = json::parse(read_text_file(out() + "/config.json"))["quantization_config"];
  EXPECT_EQ(config, json::parse(read_text_file(out() + "/quantize_config.json")));
  EXPECT_EQ(config["checkpoint_format"], "gptq_v2");
  EXPECT_EQ(config["bits"], 2);  // gate and up have most of the parameters.
  EXPECT_EQ(config["group_size"], -1);
  EXPECT_EQ(config["sym"], false);
  const json& dynamic = config["dynamic"];
  EXPECT_EQ(dynamic[R"(+:^model\.layers\.0\.self_attn\.(q_proj|k_proj|v_proj|qkv_proj)$)"]["bits"], 3);
  EXPECT_EQ(dynamic[R"(+:^model\.layers\.1\.self_attn\.(q_proj)$)"]["group_size"], 64);
  EXPECT_TRUE(dynamic.contains(R"(-:^model\.layers\.1\.self_attn\.(k_proj|v_proj)$)"));
  EXPECT_TRUE(dynamic.contains(R"(-:^model\.layers\.0\.mlp\.(gate_proj|up_proj|gate_up_proj)$)"));
}

TEST_F(ExportTest, GptqUsesPlanesWhereALinearHasFiveToSevenBits) {
  const Checkpoint ours = make(kMixed);
  export_gptq(ours, out(), ServingProfile::any);
  expect_gptq_decodes(ours, out(), planar_field);
  EXPECT_EQ(json::parse(read_text_file(out() + "/quantize_config.json"))["checkpoint_format"], "gptq_p");
}

TEST_F(ExportTest, GptqRefusesWhatDoesNotFit) {
  json odd = llama_config();
  odd["intermediate_size"] = 80;
  const Checkpoint ours = make({{"layers.0.down", "int4g16"}, {"layers.0.o", "int4g32z"}}, odd);
  EXPECT_THAT(refusal([&] { export_gptq(ours, out(), ServingProfile::any); }),
              AllOf(HasSubstr("layers.0.down (int4g16)"), HasSubstr("multiples of 32")));
  EXPECT_THAT(refusal([&] { export_gptq(ours, out(), ServingProfile::vllm); }),
              AllOf(HasSubstr("layers.0.o (int4g32z)"), HasSubstr("int4g128")));
}

// Compares every value of the file with the checkpoint.
void expect_gguf_decodes(const Checkpoint& ours, const Gguf& file, bool exact) {
  const std::map<Role, std::string> names = {{Role::q, "attn_q"},      {Role::k, "attn_k"},      {Role::v, "attn_v"},
                                             {Role::o, "attn_output"}, {Role::gate, "ffn_gate"}, {Role::up, "ffn_up"},
                                             {Role::down, "ffn_down"}};
  for (LinearId id : linears_of(ours.config())) {
    const std::string name =
        id.role == Role::embedding ? "token_embd.weight" : fmt::format("blk.{}.{}.weight", id.layer, names.at(id.role));
    const Gguf::Entry& t = file.tensors.at(name);
    const LinearWeight w = ours.linear(id);
    ASSERT_EQ(t.sizes, (std::vector<int64_t>{w.in, w.out})) << name;
    const std::vector<float> expected = decode(w);
    const bool rounded_scale = w.spec.scale == ScaleKind::u8, minimum = t.type == 3 || t.type == 7;
    EXPECT_FALSE(exact && minimum) << name;
    const FormatSpec spec = w.spec;
    for (int64_t r = 0; r < w.out; ++r) {
      // Ours stores the rows of a head as (half, pair), a llama file as (pair, half); heads have 16 rows.
      const int64_t head = r / 16, half = r % 16 / 8, pair = r % 8;
      const bool permuted = id.role == Role::q || id.role == Role::k;
      const int64_t there = permuted ? head * 16 + 2 * pair + half : r;
      for (int64_t c = 0; c < w.in; ++c) {
        const float want = expected[static_cast<size_t>(r * w.in + c)], value = file.element(t, there * w.in + c);
        // The tolerance is the FP16 rounding of s z, and of s for 8-bit scales, half of 2^-10 each (all numbers are
        // normal), and one FP32 addition in d q + m of terms up to s 2^b.
        float tolerance = rounded_scale ? 0x1p-11f * std::abs(want) : 0.0f;
        if (minimum) {
          const auto& m = std::get<IntGroup>(w.main);
          const float s =
              to_float(m.scale.as<const f16>()[static_cast<size_t>(r * spec.groups(w.in) + c / spec.group_size(w.in))]);
          tolerance += s * static_cast<float>(get_zero(m, r, c / spec.group_size(w.in))) * 0x1p-11f +
                       s * static_cast<float>(1 << spec.bits) * 0x1p-22f;
        }
        ASSERT_LE(std::abs(value - want), tolerance * 1.001f) << name << " " << r << " " << c;
      }
    }
  }
}

TEST_F(ExportTest, GgufDecodesToTheSameWeights) {
  const Checkpoint ours = make(kMixed);
  const auto notes = export_gguf(ours, out(), false);
  EXPECT_THAT(notes, testing::Contains(HasSubstr("layers.0.q (int3g32z): minima are rounded to FP16")));
  const Gguf file(out());
  expect_gguf_decodes(ours, file, false);
  EXPECT_EQ(file.tensors.at("blk.1.attn_q.weight").type, 3u);
  EXPECT_EQ(file.tensors.at("blk.1.ffn_up.weight").type, 2u);
  EXPECT_EQ(file.tensors.at("blk.0.attn_output.weight").type, 6u);
  EXPECT_EQ(file.tensors.at("blk.0.ffn_gate.weight").type, 8u);
  EXPECT_EQ(file.tensors.at("blk.1.ffn_down.weight").type, 30u);
  const std::vector<float> norm = ours.norm(1, Norm::mlp);
  EXPECT_EQ(file.element(file.tensors.at("blk.1.ffn_norm.weight"), 5), norm[5]);
  // Row 9 of a head is row 1 of its second half, which is row 3 in the file.
  const LinearWeight q = ours.linear({0, Role::q});
  EXPECT_EQ(file.element(file.tensors.at("blk.0.attn_q.bias"), 16 + 3), q.bias.as<const float>()[16 + 9]);
}

TEST_F(ExportTest, GgufExactRoundsNothing) {
  std::map<std::string, std::string> formats = kMixed;
  formats["layers.0.gate"] = formats["layers.0.up"] = "int5g32z";
  const Checkpoint ours = make(formats);
  EXPECT_THAT(export_gguf(ours, out(), true), testing::IsEmpty());
  expect_gguf_decodes(ours, Gguf(out()), true);
}

// The default format of an embedding by `fidelio quantize` fits no block.
TEST_F(ExportTest, GgufDecodesAnEmbeddingThatNoBlockHolds) {
  const Checkpoint ours = make({{"layers.0.o", "int4g32"}, {"embedding", "int8g64zs8"}});
  const std::vector<float> expected = decode(ours.linear({-1, Role::embedding}));
  for (bool exact : {false, true}) {
    std::filesystem::remove(out());
    EXPECT_THAT(export_gguf(ours, out(), exact),
                testing::ElementsAre(
                    HasSubstr(fmt::format("embedding (int8g64zs8) is decoded to {}", exact ? "F32" : "BF16"))));
    const Gguf file(out());
    const Gguf::Entry& t = file.tensors.at("token_embd.weight");
    EXPECT_EQ(t.type, exact ? 0u : 30u);
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_EQ(file.element(t, static_cast<int64_t>(i)), exact ? expected[i] : to_float(to_bf16(expected[i]))) << i;
  }
}

TEST_F(ExportTest, GgufSaysWhatTheModelIs) {
  const Checkpoint ours = make(kMixed);
  export_gguf(ours, out(), false);
  const Gguf file(out());
  EXPECT_EQ(file.keys["general.architecture"], "llama");
  EXPECT_EQ(file.keys["general.name"], "ours");
  EXPECT_EQ(file.keys["llama.attention.head_count_kv"], 2);
  EXPECT_EQ(file.keys["llama.feed_forward_length"], 96);
  EXPECT_EQ(file.keys["tokenizer.ggml.model"], "gpt2");
  EXPECT_EQ(file.keys["tokenizer.ggml.pre"], "qwen2");
  EXPECT_EQ(file.keys["tokenizer.ggml.tokens"], (json{"a", "b", "c", "ab", "<end>", "<tool>", "[PAD6]", "[PAD7]"}));
  EXPECT_EQ(file.keys["tokenizer.ggml.token_type"], (json{1, 1, 1, 1, 3, 4, 5, 5}));
  EXPECT_EQ(file.keys["tokenizer.ggml.merges"], (json{"a b"}));
  EXPECT_EQ(file.keys["tokenizer.ggml.eos_token_id"], 4);
  EXPECT_EQ(file.keys["tokenizer.ggml.add_bos_token"], false);
  EXPECT_EQ(file.keys["tokenizer.chat_template"], "{{ messages }}");
  // Llama 3's rule stretches wavelengths beyond the original 64 positions by 8 and keeps those below 64 / 4.
  const Gguf::Entry& divisors = file.tensors.at("rope_freqs.weight");
  ASSERT_EQ(divisors.sizes, (std::vector<int64_t>{8}));
  EXPECT_EQ(file.element(divisors, 0), 1.0f);  // Its wavelength is 2 pi.
  EXPECT_EQ(file.element(divisors, 7), 8.0f);  // Its wavelength is 2 pi 10000^(7/8).
  std::filesystem::remove(out());
  export_gguf(Checkpoint::open(ours.folder() + "/./"), out(), false);
  EXPECT_EQ(Gguf(out()).keys["general.name"], "ours");
}

// Readers of the file would continue beyond an end that the file does not name.
TEST_F(ExportTest, GgufNamesEveryEndOfAnAnswer) {
  write("generation_config.json", R"({"eos_token_id": [2, 4, 5]})");
  const Checkpoint ours = make(kMixed);
  std::filesystem::create_directory(out());
  const std::string path = out() + "/model.gguf";
  export_gguf(ours, path, false);
  const Gguf file(path);
  EXPECT_EQ(file.keys["tokenizer.ggml.eos_token_id"], 4);
  EXPECT_EQ(file.keys["tokenizer.ggml.eot_token_id"], 2);
  EXPECT_EQ(file.keys["tokenizer.ggml.eom_token_id"], 5);
  const auto none = [](std::string_view) { return std::optional<int32_t>(); };
  EXPECT_EQ(stop_token_ids(Checkpoint::open(path).texts(), none), (std::vector<int32_t>{2, 4, 5}));
}

TEST_F(ExportTest, WhatNoFormatsWouldHelpIsKnownBefore) {
  const Checkpoint ours = make(kMixed);
  for (const char* target : {"compressed-tensors", "gptq", "gguf"}) EXPECT_NO_THROW(check_exports_to(ours, target));
  json windows = llama_config();
  windows.update({{"architectures", {"MistralForCausalLM"}}, {"model_type", "mistral"}, {"sliding_window", 64}});
  windows.erase("rope_scaling");
  windows.erase("attention_bias");
  std::filesystem::remove_all(ours.folder());
  const Checkpoint mistral = make({}, windows);
  EXPECT_NO_THROW(check_exports_to(mistral, "gptq"));
  EXPECT_THAT(refusal([&] { check_exports_to(mistral, "gguf"); }), HasSubstr("sliding window"));
}

TEST_F(ExportTest, GgufOfQwen3KeepsTheOrderOfRows) {
  json config = llama_config();
  config.update({{"architectures", {"Qwen3ForCausalLM"}}, {"model_type", "qwen3"}, {"attention_bias", false}});
  config.erase("rope_scaling");
  const Checkpoint ours = make({{"layers.0.q", "int4g32"}}, config);
  export_gguf(ours, out(), false);
  const Gguf file(out());
  EXPECT_EQ(file.keys["general.architecture"], "qwen3");
  EXPECT_TRUE(file.tensors.contains("blk.1.attn_k_norm.weight"));
  EXPECT_FALSE(file.tensors.contains("rope_freqs.weight"));
  const std::vector<float> expected = decode(ours.linear({0, Role::q}));
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_EQ(file.element(file.tensors.at("blk.0.attn_q.weight"), static_cast<int64_t>(i)), expected[i]);
}

TEST_F(ExportTest, GgufRefusesWhatDoesNotFit) {
  const auto message = [&](const std::map<std::string, std::string>& formats, const json& config = llama_config()) {
    std::filesystem::remove_all(root_ + "/ours");
    std::filesystem::remove(root_ + "/source/model.safetensors");
    const Checkpoint ours = make(formats, config);
    return refusal([&] { export_gguf(ours, out(), false); });
  };
  EXPECT_THAT(message({{"layers.0.o", "int8g32z"}}), AllOf(HasSubstr("layers.0.o (int8g32z)"), HasSubstr("int8g128")));
  EXPECT_THAT(message({{"layers.0.o", "int4g16"}}),
              AllOf(HasSubstr("layers.0.o (int4g16)"), HasSubstr("blocks of 32")));
  EXPECT_THAT(message({{"layers.0.o", "fp4g16"}}), HasSubstr("layers.0.o (fp4g16)"));
  json window = llama_config();
  window.update({{"architectures", {"MistralForCausalLM"}},
                 {"model_type", "mistral"},
                 {"sliding_window", 128},
                 {"attention_bias", false}});
  window.erase("rope_scaling");
  EXPECT_THAT(message({}, window), HasSubstr("sliding window"));
}

// transformers would open a folder of our codes with random weights; this key makes it stop with a sentence. Programs
// that read only the config or the tokenizer are not affected. Exports are made for transformers and lack the key.
TEST_F(ExportTest, AFolderOfCodesTellsTransformersToExport) {
  const auto config_of = [](const std::string& folder) { return json::parse(read_text_file(folder + "/config.json")); };
  const Checkpoint ours = make({{"layers.0.o", "int4g32"}});
  json config = config_of(ours.folder());
  const auto said = config.at("transformers_weights").get<std::string>();
  EXPECT_THAT(said, AllOf(HasSubstr("only fidelio reads"), HasSubstr("fidelio export")));
  EXPECT_FALSE(said.ends_with(".safetensors") || said.ends_with(".json"));  // It would be taken for a file.
  EXPECT_EQ(config.at("model_type"), "llama");
  export_compressed_tensors(ours, out(), ServingProfile::any);
  export_gptq(ours, root_ + "/gptq", ServingProfile::any);
  EXPECT_FALSE(config_of(out()).contains("transformers_weights"));
  EXPECT_FALSE(config_of(root_ + "/gptq").contains("transformers_weights"));
  // Folders that an older fidelio wrote lack the key and are the same model.
  const std::vector<float> values = decode(ours.linear({0, Role::o}));
  config.erase("transformers_weights");
  write_file_atomically(ours.folder() + "/config.json", config.dump());
  EXPECT_EQ(decode(Checkpoint::open(ours.folder()).linear({0, Role::o})), values);
}

// transformers can read a folder of dense weights under the family's own names.
TEST_F(ExportTest, AFolderOfDenseWeightsMayBeOpened) {
  const Checkpoint ours = make({});
  EXPECT_FALSE(json::parse(read_text_file(ours.folder() + "/config.json")).contains("transformers_weights"));
}

// A user who exports a model that fidelio did not make is told that an export holds weights as fidelio does, and to
// quantise the model first.
TEST_F(ExportTest, AModelOfSomebodyElseIsToBeQuantisedFirst) {
  make({});
  const Checkpoint source = Checkpoint::open(root_ + "/source");
  EXPECT_THAT(why_larger(source, "gguf"), AllOf(HasSubstr("was not made by fidelio"), HasSubstr("--format int4g32")));
  EXPECT_THAT(why_larger(source, "gptq"), HasSubstr("--format int4g128"));
}

// A model that was chosen for its reader is not to be chosen so once more.
TEST_F(ExportTest, AModelMadeForItsReaderIsNotToBeMadeAgain) {
  const Checkpoint made = make({{"layers.1.o", "int6g32"}});
  const auto why = [&](const json& provenance, const char* target) {
    std::filesystem::remove_all(root_ + "/again");
    write_checkpoint(root_ + "/again", made, {}, nullptr, provenance);
    return why_larger(Checkpoint::open(root_ + "/again"), target);
  };
  const json vllm = {{"source", "tiny-1m"}, {"method", "compress"}, {"for", "vllm"}};
  EXPECT_THAT(why(vllm, "compressed-tensors"),
              AllOf(HasSubstr("It was made for vllm"), testing::Not(HasSubstr("fidelio compress"))));
  EXPECT_THAT(why(vllm, "gguf"), HasSubstr("`fidelio compress tiny-1m --ear 0.98 --for llama.cpp -o NEW`"));
  EXPECT_THAT(why({{"method", "compress"}, {"for", "fidelio"}}, "gptq"), HasSubstr("--for gptq -o NEW`"));
}

// The refusal ends with the command to type, with the same model and the same target, for readers of such files.
TEST_F(ExportTest, ARefusalNamesTheCommandThatFits) {
  const auto message = [&](const json& provenance, const char* target) {
    std::filesystem::remove_all(root_ + "/ours");
    std::filesystem::remove_all(root_ + "/again");
    std::filesystem::remove(root_ + "/source/model.safetensors");
    const Checkpoint made = make({{"layers.1.o", "lut4g32"}});
    write_checkpoint(root_ + "/again", made, {}, nullptr, provenance);
    const Checkpoint ours = Checkpoint::open(root_ + "/again");
    return refusal([&] {
      if (std::string_view(target) == "gguf") export_gguf(ours, out(), false);
      if (std::string_view(target) == "gptq") export_gptq(ours, out(), ServingProfile::any);
      if (std::string_view(target) == "compressed-tensors") export_compressed_tensors(ours, out(), ServingProfile::any);
    });
  };
  const json certified = {{"source", "tiny-1m"}, {"certificate", {{"target", {{"ear", 0.95}}}}}};
  EXPECT_THAT(message(certified, "gguf"), HasSubstr("`fidelio compress tiny-1m --ear 0.95 --for llama.cpp -o NEW`"));
  EXPECT_THAT(message(certified, "gptq"), HasSubstr("`fidelio compress tiny-1m --ear 0.95 --for gptq -o NEW`"));
  EXPECT_THAT(message(certified, "compressed-tensors"),
              HasSubstr("`fidelio compress tiny-1m --ear 0.95 --for vllm -o NEW`"));
  EXPECT_THAT(message(json{{"source", "x; rm -r ~"}, {"certificate", "none"}}, "gguf"),
              HasSubstr("`fidelio compress ORIGINAL --ear 0.98 --for llama.cpp -o NEW`"));
}

// A certificate on the model's own answers is measured again on the file that lies beside the weights.
TEST_F(ExportTest, TheModelsOwnAnswersGoAlong) {
  const Checkpoint ours = make({{"layers.0.o", "int4g32"}});
  const std::string answers = ours.folder() + "/" + std::string(kOwnTextFile), copy = out() + "/own-text.jsonl";
  export_compressed_tensors(ours, out(), ServingProfile::any);
  EXPECT_FALSE(std::filesystem::exists(copy));
  std::filesystem::remove_all(out());
  std::ofstream(answers) << "{\"ids\":[1]}\n";
  export_compressed_tensors(ours, out(), ServingProfile::any);
  EXPECT_EQ(read_text_file(copy), "{\"ids\":[1]}\n");
  std::filesystem::remove_all(out());
  // A file of somebody's that a link leads to is not published.
  std::filesystem::rename(answers, root_ + "/elsewhere");
  std::filesystem::create_symlink(root_ + "/elsewhere", answers);
  EXPECT_THAT([&] { export_compressed_tensors(ours, out(), ServingProfile::any); },
              testing::ThrowsMessage<Error>(HasSubstr("is a link to")));
  EXPECT_FALSE(std::filesystem::exists(out()));
}

TEST_F(ExportTest, AnOutputThatExistsIsLeftAlone) {
  const Checkpoint ours = make({{"layers.0.o", "int4g32"}});
  std::ofstream(out()) << "mine";
  EXPECT_THROW(export_gguf(ours, out(), false), Error);
  EXPECT_THROW(export_gptq(ours, out(), ServingProfile::any), Error);
  EXPECT_THROW(export_compressed_tensors(ours, out(), ServingProfile::any), Error);
  EXPECT_EQ(read_text_file(out()), "mine");
}

}  // namespace
}  // namespace fidelio
