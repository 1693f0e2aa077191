// These tests read our exports again as a source. The weights are the same bit for bit where the export rounded
// nothing, and equal to the file bit for bit where it did.
#include <algorithm>
#include <set>

#include "core/file.h"
#include "core/foreign/units.h"
#include "io/export/export_fixture.h"
#include "io/export/gguf.h"
#include "io/gguf/tokenizer.h"
#include "text/chat_template.h"
#include "text/tokenizer/config.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class ReadBackTest : public ExportTest {
 protected:
  std::string gguf() const { return root_ + "/out.gguf"; }
  // Compares every value of every linear, bias and norm.
  static void expect_same(const Checkpoint& a, const Checkpoint& b) {
    ASSERT_EQ(linears_of(a.config()), linears_of(b.config()));
    for (LinearId id : linears_of(a.config())) {
      const LinearWeight wa = a.linear(id), wb = b.linear(id);
      ASSERT_EQ(decode(wa), decode(wb)) << to_string(id) << ": " << to_string(b.format(id));
      ASSERT_EQ(static_cast<bool>(wa.bias), static_cast<bool>(wb.bias)) << to_string(id);
      if (!wa.bias) continue;
      EXPECT_TRUE(std::ranges::equal(wa.bias.as<const float>(), wb.bias.as<const float>())) << to_string(id);
    }
    for (auto [layer, which] : norms_of(a.config())) {
      // A norm that is stored less one is rounded when 1 is added, and again when it is subtracted.
      const std::vector<float> of_a = a.norm(layer, which), of_b = b.norm(layer, which);
      for (size_t i = 0; i < of_a.size(); ++i)
        EXPECT_NEAR(of_a[i], of_b[i], a.config().blocks.norm_plus_one ? 1e-7 : 0);
    }
    for (LinearId id : fixed_linears_of(a.config())) EXPECT_EQ(decode(a.linear(id)), decode(b.linear(id)));
    for (const int layer : delta_layers(a.config()))
      for (const DeltaTensor which : kDeltaTensors) expect_same_numbers(a, b, layer, which);
    EXPECT_EQ(rope_inverse_frequencies(a.config()), rope_inverse_frequencies(b.config()));
  }
  // A GGUF file holds -e^x for the rate's logarithm x, which is at most 0.5 in size here: the exponential is rounded to
  // 2^-24 of its size, and so is the logarithm.
  static void expect_same_numbers(const Checkpoint& a, const Checkpoint& b, int layer, DeltaTensor which) {
    const std::vector<float> of_a = a.delta(layer, which), of_b = b.delta(layer, which);
    ASSERT_EQ(of_a.size(), of_b.size());
    for (size_t i = 0; i < of_a.size(); ++i)
      EXPECT_NEAR(of_a[i], of_b[i], which == DeltaTensor::log_rate ? 2e-7 : 0) << delta_name(layer, which);
  }
  static void expect_same_config(const ModelConfig& a, const ModelConfig& b) {
    EXPECT_EQ(a.architecture, b.architecture);
    EXPECT_EQ(std::tie(a.L, a.d, a.f, a.h, a.hk, a.e, a.v), std::tie(b.L, b.d, b.f, b.h, b.hk, b.e, b.v));
    EXPECT_EQ(a.rms_eps, b.rms_eps);
    EXPECT_EQ(a.max_positions, b.max_positions);
    EXPECT_EQ(a.tie_embeddings, b.tie_embeddings);
    EXPECT_EQ(a.eos_ids, b.eos_ids);
  }
  // The coded linears of layers keep their formats, except that those in `dense` become F32.
  static void expect_formats(const Checkpoint& ours, const Checkpoint& read, const std::set<std::string>& dense) {
    for (LinearId id : linears_of(ours.config())) {
      if (ours.format(id).is_dense() || id.role == Role::embedding) continue;
      FormatSpec expected = ours.format(id);
      if (expected.groups(shape_of(ours.config(), id)[1]) == 1) expected.group = 0;  // One group is the whole row.
      EXPECT_EQ(to_string(read.format(id)), dense.contains(to_string(id)) ? "f32" : to_string(expected))
          << to_string(id);
    }
  }
};

// Removes the embedding, which these exports decode to BF16.
std::map<std::string, std::string> inner(std::map<std::string, std::string> formats) {
  formats.erase("embedding");
  return formats;
}

TEST_F(ReadBackTest, CompressedTensorsAreTheSameWeights) {
  const Checkpoint ours = make(inner(kMixed));
  export_compressed_tensors(ours, out(), ServingProfile::any);
  const Checkpoint read = Checkpoint::open(out());
  EXPECT_EQ(read.quantised_by(), "compressed-tensors");
  expect_same(ours, read);
  // r s of 8-bit scales is an FP32 number.
  expect_formats(ours, read, {"layers.0.gate", "layers.0.up"});
  EXPECT_THAT(read.notes(), testing::ElementsAre(HasSubstr("2 linears are decoded to F32: their scales")));
  EXPECT_EQ(read.weights_sha256(), read.written_weights_sha256());
  EXPECT_FALSE(read.written().files.empty());
  EXPECT_EQ(changed_since_written(read).weights + changed_since_written(read).files, "");
}

TEST_F(ReadBackTest, GptqOfWordsIsTheSameWeights) {
  auto formats = inner(kWords);
  formats.erase("layers.1.o");  // Its 8-bit scales are rounded.
  const Checkpoint ours = make(formats);
  export_gptq(ours, out(), ServingProfile::any);
  const Checkpoint read = Checkpoint::open(out());
  EXPECT_EQ(read.quantised_by(), "gptq");
  expect_same(ours, read);
  expect_formats(ours, read, {});
  EXPECT_THAT(read.notes(), IsEmpty());
}

TEST_F(ReadBackTest, GptqOfPlanesIsTheSameWeights) {
  auto formats = inner(kMixed);
  formats["layers.0.gate"] = formats["layers.0.up"] = "int6g32z";
  const Checkpoint ours = make(formats);
  export_gptq(ours, out(), ServingProfile::any);
  const Checkpoint read = Checkpoint::open(out());
  expect_same(ours, read);
  expect_formats(ours, read, {});
}

TEST_F(ReadBackTest, ExactGgufIsTheSameModel) {
  auto formats = kMixed;
  formats["layers.0.gate"] = formats["layers.0.up"] = "int5g32z";
  const Checkpoint ours = make(formats);
  EXPECT_THAT(export_gguf(ours, gguf(), true), IsEmpty());
  const Checkpoint read = Checkpoint::open(gguf());
  EXPECT_EQ(read.quantised_by(), "GGUF");
  expect_same(ours, read);
  expect_same_config(ours.config(), read.config());
  EXPECT_EQ(to_string(read.format({1, Role::gate})), "int4g32");  // These are 2 bits in a block of 4.
  EXPECT_EQ(to_string(read.format({0, Role::o})), "int5g32");
  EXPECT_EQ(to_string(read.format({0, Role::down})), "int8g32");
  EXPECT_THAT(read.notes(), IsEmpty());
  EXPECT_EQ(read.weights_sha256(), read.written_weights_sha256());
  EXPECT_FALSE(read.written().files.empty());
  EXPECT_EQ(changed_since_written(read).weights + changed_since_written(read).files, "");
}

// The model has a layer with a delta net and one with attention: q (128, 64) with its gate, in_proj_qkv (192, 64),
// out_proj (64, 128), whose columns are four value heads of two key heads.
json mixed_config(const std::string& class_name, const std::string& type) {
  json config = llama_config();
  config.update({{"architectures", {class_name}},
                 {"model_type", type},
                 {"layer_types", {"linear_attention", "full_attention"}},
                 {"attention_bias", false},
                 {"linear_key_head_dim", 16},
                 {"linear_value_head_dim", 32},
                 {"linear_num_key_heads", 2},
                 {"linear_num_value_heads", 4},
                 {"num_experts", 3},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 32},
                 {"shared_expert_intermediate_size", 32},
                 {"rope_scaling", nullptr}});
  return config;
}
const std::map<std::string, std::string> kMixedLayers = {
    {"layers.0.delta_qkv", "int4g32z"}, {"layers.0.delta_z", "int4g32z"}, {"layers.0.delta_out", "int4g64"},
    {"layers.1.q", "int5g32"},          {"layers.1.k", "int5g32"},        {"layers.1.v", "int5g32"}};

TEST_F(ReadBackTest, ExportsOfDeltaNetsAreTheSameWeights) {
  const std::pair<const char*, const char*> classes[] = {{"Qwen3_5ForCausalLM", "qwen3_5_text"},
                                                         {"Qwen3_5MoeForCausalLM", "qwen3_5_moe_text"},
                                                         {"Qwen3NextForCausalLM", "qwen3_next"}};
  for (const auto& [class_name, type] : classes) {
    SCOPED_TRACE(class_name);
    for (const char* folder : {"/ours", "/out", "/out.gguf"}) std::filesystem::remove_all(root_ + folder);
    const Checkpoint ours = make(kMixedLayers, mixed_config(class_name, type));
    export_gguf(ours, gguf(), true);
    const Checkpoint read = Checkpoint::open(gguf());
    expect_same(ours, read);
    expect_same_config(ours.config(), read.config());
    EXPECT_EQ(read.config().kinds, ours.config().kinds);
    EXPECT_EQ(rotary_columns(read.config()), rotary_columns(ours.config()));
    EXPECT_EQ(to_string(read.format({0, Role::delta_out})), "int4g32");
    EXPECT_EQ(changed_since_written(read).weights + changed_since_written(read).files, "");
    if (ours.config().architecture == Architecture::qwen3_next) {
      EXPECT_THAT(refusal([&] { export_compressed_tensors(ours, out(), ServingProfile::any); }),
                  HasSubstr("q, k, v and z of a delta net as one matrix"));
    } else {
      export_compressed_tensors(ours, out(), ServingProfile::any);
      const json config = json::parse(read_text_file(out() + "/config.json"));
      EXPECT_THAT(
          config["quantization_config"]["ignore"],
          testing::IsSupersetOf({"model.layers.0.linear_attn.in_proj_a", "model.layers.0.linear_attn.in_proj_b"}));
      expect_same(ours, Checkpoint::open(out()));
    }
    std::filesystem::remove_all(out());
    EXPECT_THAT(refusal([&] { export_gptq(ours, out(), ServingProfile::any); }),
                testing::AnyOf(HasSubstr("parts of a delta net stay as they are"), HasSubstr("as one matrix")));
  }
}

// Value heads of 16 columns do not move in blocks of 32, so a coded out_proj has no place in a GGUF file.
TEST_F(ReadBackTest, NarrowValueHeadsAreRefusedForGguf) {
  json config = mixed_config("Qwen3_5ForCausalLM", "qwen3_5_text");
  config["linear_value_head_dim"] = 16;
  const Checkpoint ours = make({{"layers.0.delta_out", "int4g64"}}, config);
  EXPECT_THAT(refusal([&] { export_gguf(ours, gguf(), true); }),
              HasSubstr("16 columns of a head are not blocks of 32"));
}

// The template for tools is carried along into a checkpoint, an export of a folder, a GGUF file and a checkpoint made
// from that.
TEST_F(ReadBackTest, AFurtherChatTemplateTravels) {
  std::filesystem::create_directories(root_ + "/source/additional_chat_templates");
  write("additional_chat_templates/tool_use.jinja", "{{ tools }}");
  const Checkpoint ours = make(inner(kMixed));
  const auto expect_both = [](const Checkpoint& read) {
    EXPECT_THAT(chat_templates(read.texts()), testing::ElementsAre(testing::Pair("default", "{{ messages }}"),
                                                                   testing::Pair("tool_use", "{{ tools }}")));
  };
  expect_both(ours);
  export_compressed_tensors(ours, out(), ServingProfile::any);
  expect_both(Checkpoint::open(out()));
  export_gguf(ours, gguf(), true);
  const Checkpoint read = Checkpoint::open(gguf());
  expect_both(read);
  write_checkpoint(root_ + "/again", read, {}, nullptr, json::object());
  expect_both(Checkpoint::open(root_ + "/again"));
}

// Minima of Q4_1 and Q5_1 are rounded. Where one is not a whole number of steps, the blocks are held as they are.
TEST_F(ReadBackTest, GgufIsWhatTheFileSays) {
  const Checkpoint ours = make({{"layers.0.o", "int4g32z"}, {"layers.1.o", "int5g32z"}});
  export_gguf(ours, gguf(), false);
  const Checkpoint read = Checkpoint::open(gguf());
  const Gguf file(gguf());
  for (const int layer : {0, 1}) {
    const LinearId id{layer, Role::o};
    const std::vector<float> values = decode(read.linear(id));
    const Gguf::Entry& entry = file.tensors.at(fmt::format("blk.{}.attn_output.weight", layer));
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], file.element(entry, static_cast<int64_t>(i))) << to_string(id) << " " << i;
    EXPECT_EQ(to_string(read.format(id)), layer == 0 ? "int4g32zk32" : "int5g32zk32");
  }
  EXPECT_THAT(read.notes(), testing::IsEmpty());
}

// Scales that are powers of two make every minimum exact, and then the codes are unchanged.
TEST_F(ReadBackTest, MinimaThatAreWholeStepsAreZeroPoints) {
  make({});
  const Checkpoint source = Checkpoint::open(root_ + "/source");
  const LinearId id{0, Role::o};
  LinearWeight w = random_weight(parse_format("int4g32z"), 64, 64);
  for (f16& s : std::get<IntGroup>(w.main).scale.as<f16>()) s = to_f16(0.125f);
  std::filesystem::remove_all(root_ + "/ours");
  write_checkpoint(
      root_ + "/ours", source, {{id, w.spec}}, [&](LinearId) { return w; }, json::object());
  const Checkpoint ours = Checkpoint::open(root_ + "/ours");
  export_gguf(ours, gguf(), false);
  const Checkpoint read = Checkpoint::open(gguf());
  EXPECT_EQ(to_string(read.format(id)), "int4g32z");
  expect_same(ours, read);
}

TEST_F(ReadBackTest, AGgufFolderAndACheckpointMadeOfItAreTheSameModel) {
  const Checkpoint ours = make({{"layers.0.o", "int4g32"}});
  std::filesystem::create_directory(root_ + "/folder");
  export_gguf(ours, root_ + "/folder/model.gguf", false);
  const Checkpoint read = Checkpoint::open(root_ + "/folder");
  expect_same(ours, read);
  write_checkpoint(root_ + "/again", read, {}, {}, json::object());
  const Checkpoint again = Checkpoint::open(root_ + "/again");
  expect_same(ours, again);
  EXPECT_EQ(again.quantised_by(), "");
  const Tokenizer a = Tokenizer::load(ours.texts()), b = Tokenizer::load(again.texts());
  EXPECT_EQ(a.encode("abcab<end>c<tool>"), b.encode("abcab<end>c<tool>"));
  EXPECT_EQ(b.eos_id(), a.eos_id());
}

TEST_F(ReadBackTest, TheCertificateTravels) {
  make({});
  const Checkpoint source = Checkpoint::open(root_ + "/source");
  const LinearId id{0, Role::o};
  const LinearWeight w = random_weight(parse_format("int4g32"), 64, 64);
  const json provenance = {{"method", "gptq"}, {"certificate", {{"ear", 0.99}}}};
  std::filesystem::remove_all(root_ + "/ours");
  write_checkpoint(
      root_ + "/ours", source, {{id, w.spec}}, [&](LinearId) { return w; }, provenance);
  const Checkpoint ours = Checkpoint::open(root_ + "/ours");
  export_gguf(ours, gguf(), false);
  export_gptq(ours, root_ + "/gptq", ServingProfile::any);
  export_compressed_tensors(ours, root_ + "/ct", ServingProfile::any);
  for (const std::string& path : {gguf(), root_ + "/gptq", root_ + "/ct"})
    EXPECT_EQ(json::parse(Checkpoint::open(path).provenance()), provenance) << path;
  EXPECT_EQ(json::parse(Gguf(gguf()).keys["fidelio.certificate"].get<std::string>()), provenance["certificate"]);
}

// This is as in transformers: where config.json says that the head is the embedding and the file has another one, the
// file is right, and models made from it say so.
TEST_F(ReadBackTest, AHeadBesideTheEmbeddingIsTheHead) {
  ASSERT_TRUE(make({}).config().tie_embeddings);
  const LinearId embedding{-1, Role::embedding}, head{-1, Role::head};
  const auto files = Safetensors::open(root_ + "/source");
  const OwnedTensor same = files.get(weight_name(embedding)), other = random_tensor(DType::bf16, same.view.shape);
  const auto with = [&](const std::string& folder, const OwnedTensor& tensor, bool alone = false) {
    std::filesystem::copy(root_ + "/source", folder);
    std::filesystem::remove(folder + "/model.safetensors");
    std::vector<TensorToWrite> all = {to_write(weight_name(head), tensor)};
    for (const std::string& name : files.names())
      if (!alone || name != weight_name(embedding)) all.push_back(to_write(name, files.get(name)));
    write_safetensors(folder + "/model.safetensors", all);
    return Checkpoint::open(folder);
  };
  const Checkpoint twice = with(root_ + "/twice", same);
  EXPECT_TRUE(twice.config().tie_embeddings);
  EXPECT_THAT(twice.notes(), IsEmpty());
  const Checkpoint once = with(root_ + "/once", same, true);
  EXPECT_TRUE(once.config().tie_embeddings);
  EXPECT_EQ(decode(once.linear(embedding)), decode(make_dense(same)));

  const Checkpoint own = with(root_ + "/own", other);
  EXPECT_FALSE(own.config().tie_embeddings);
  EXPECT_EQ(decode(own.linear(head)), decode(make_dense(other)));
  EXPECT_THAT(own.notes(), testing::ElementsAre(HasSubstr("lm_head.weight is another matrix")));
  const LinearWeight codes = random_weight(parse_format("int4g32"), 8, 64);
  write_checkpoint(
      root_ + "/quantised", own, {{head, codes.spec}}, [&](LinearId) { return codes; }, json::object());
  EXPECT_EQ(decode(Checkpoint::open(root_ + "/quantised").linear(head)), decode(codes));
  export_gguf(own, gguf(), false);
  EXPECT_EQ(decode(Checkpoint::open(gguf()).linear(head)), decode(own.linear(head)));
}

// The layouts of other programs are made here from their definitions.
class ForeignLayouts : public ReadBackTest {
 protected:
  // Opens a model whose o of layer 0 consists of `tensors`, under this configuration.
  Checkpoint open_with(const std::vector<TensorToWrite>& tensors, const json& quantisation) {
    make({});
    const Checkpoint source = Checkpoint::open(root_ + "/source");
    std::vector<TensorToWrite> all = tensors;
    const auto& files = Safetensors::open(root_ + "/source");
    for (const std::string& name : files.names())
      if (name != weight_name(kId)) all.push_back(to_write(name, files.get(name)));
    std::filesystem::create_directory(root_ + "/foreign");
    write_safetensors(root_ + "/foreign/model.safetensors", all);
    json config = llama_config();
    config["quantization_config"] = quantisation;
    std::ofstream(root_ + "/foreign/config.json") << config.dump();
    return Checkpoint::open(root_ + "/foreign");
  }
  // The helper functions make (rows, columns) words and put fields of 4 bits into them by word and nibble.
  static OwnedTensor words(int64_t rows, int64_t columns) { return OwnedTensor::allocate(DType::i32, {rows, columns}); }
  static void put(const OwnedTensor& t, int64_t word, int64_t nibble, int value) {
    auto& w = t.as<int32_t>()[static_cast<size_t>(word)];
    w = static_cast<int32_t>(static_cast<uint32_t>(w) | static_cast<uint32_t>(value) << (4 * nibble));
  }
  OwnedTensor random_scales(Shape shape) {
    OwnedTensor t = OwnedTensor::allocate(DType::f16, shape);
    for (f16& s : t.as<f16>()) s = to_f16(0.01f + static_cast<float>(rng_.uniform()));
    return t;
  }
  static constexpr LinearId kId{0, Role::o};
  static constexpr int64_t kOut = 64, kIn = 64, kGroups = 2;
};

TEST_F(ForeignLayouts, AwqIsReadInItsOrder) {
  const OwnedTensor q = words(kIn, kOut / 8), z = words(kGroups, kOut / 8), s = random_scales({kGroups, kOut});
  constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};  // It lists the output at each nibble.
  std::vector<int> codes(kOut * kIn), zeros(kOut * kGroups);
  for (int64_t k = 0; k < kIn; ++k)
    for (int64_t word = 0; word < kOut / 8; ++word)
      for (int64_t i = 0; i < 8; ++i) {
        const int64_t n = 8 * word + kOrder[i];
        codes[static_cast<size_t>(n * kIn + k)] = random_code(4);
        put(q, k * kOut / 8 + word, i, codes[static_cast<size_t>(n * kIn + k)]);
        if (k >= kGroups) continue;
        zeros[static_cast<size_t>(n * kGroups + k)] = random_code(4);
        put(z, k * kOut / 8 + word, i, zeros[static_cast<size_t>(n * kGroups + k)]);
      }
  const std::string m = module_name(kId);
  const Checkpoint read =
      open_with({to_write(m + ".qweight", q), to_write(m + ".qzeros", z), to_write(m + ".scales", s)},
                {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}, {"version", "gemm"}});
  EXPECT_EQ(to_string(read.format(kId)), "int4g32z");
  const std::vector<float> values = decode(read.linear(kId));
  for (int64_t n = 0; n < kOut; ++n)
    for (int64_t k = 0; k < kIn; ++k) {
      const int64_t g = k / 32;
      ASSERT_EQ(
          values[static_cast<size_t>(n * kIn + k)],
          to_float(s.as<f16>()[static_cast<size_t>(g * kOut + n)]) *
              static_cast<float>(codes[static_cast<size_t>(n * kIn + k)] - zeros[static_cast<size_t>(n * kGroups + g)]))
          << n << " " << k;
    }
}

// GPTQ's first layout stores zero points minus one. Act-order gives columns groups of their own, which only F32 holds.
TEST_F(ForeignLayouts, GptqsFirstLayoutAndActOrder) {
  for (const bool act_order : {false, true}) {
    SCOPED_TRACE(act_order);
    std::filesystem::remove_all(root_ + "/foreign");
    std::filesystem::remove_all(root_ + "/ours");
    std::filesystem::remove(root_ + "/source/model.safetensors");
    const OwnedTensor q = words(kIn / 8, kOut), z = words(kGroups, kOut / 8), s = random_scales({kGroups, kOut});
    const OwnedTensor index = OwnedTensor::allocate(DType::i32, {kIn});
    std::vector<int> codes(kOut * kIn), zeros(kOut * kGroups);
    for (int64_t n = 0; n < kOut; ++n) {
      for (int64_t k = 0; k < kIn; ++k) {
        codes[static_cast<size_t>(n * kIn + k)] = random_code(4);
        put(q, k / 8 * kOut + n, k % 8, codes[static_cast<size_t>(n * kIn + k)]);
        index.as<int32_t>()[static_cast<size_t>(k)] = static_cast<int32_t>(act_order ? k % 2 : k / 32);
      }
      for (int64_t g = 0; g < kGroups; ++g) {
        zeros[static_cast<size_t>(n * kGroups + g)] = 1 + random_code(4) % 15;
        put(z, g * kOut / 8 + n / 8, n % 8, zeros[static_cast<size_t>(n * kGroups + g)] - 1);
      }
    }
    const std::string m = module_name(kId);
    const Checkpoint read = open_with({to_write(m + ".qweight", q), to_write(m + ".qzeros", z),
                                       to_write(m + ".scales", s), to_write(m + ".g_idx", index)},
                                      {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}});
    EXPECT_EQ(to_string(read.format(kId)), act_order ? "f32" : "int4g32z");
    const std::vector<float> values = decode(read.linear(kId));
    for (int64_t n = 0; n < kOut; ++n)
      for (int64_t k = 0; k < kIn; ++k) {
        const int64_t g = act_order ? k % 2 : k / 32;
        ASSERT_EQ(values[static_cast<size_t>(n * kIn + k)],
                  to_float(s.as<f16>()[static_cast<size_t>(g * kOut + n)]) *
                      static_cast<float>(codes[static_cast<size_t>(n * kIn + k)] -
                                         zeros[static_cast<size_t>(n * kGroups + g)]))
            << n << " " << k;
      }
  }
}

// This is the text model inside one that sees images, whose tensors have that model's name before theirs.
TEST_F(ForeignLayouts, CodesWithinAModelThatSeesImages) {
  json text = llama_config();
  text.update({{"architectures", {"MistralForCausalLM"}}, {"model_type", "mistral"}, {"sliding_window", nullptr}});
  for (const char* key : {"attention_bias", "rope_scaling"}) text.erase(key);
  make({}, text);
  const auto& files = Safetensors::open(root_ + "/source");
  const OwnedTensor w = OwnedTensor::allocate(DType::i8, {kOut, kIn}), s = random_scales({kOut, 1});
  for (int8_t& x : w.as<int8_t>()) x = static_cast<int8_t>(random_code(8) - 128);
  std::vector<TensorToWrite> all = {to_write("language_model." + module_name(kId) + ".weight", w),
                                    to_write("language_model." + module_name(kId) + ".weight_scale", s)};
  for (const std::string& name : files.names())
    if (name != weight_name(kId)) all.push_back(to_write("language_model." + name, files.get(name)));
  std::filesystem::create_directory(root_ + "/foreign");
  write_safetensors(root_ + "/foreign/model.safetensors", all);
  text.erase("architectures");
  const json weights = {{"num_bits", 8}, {"type", "int"}};
  const json config = {{"architectures", {"Mistral3ForConditionalGeneration"}},
                       {"model_type", "mistral3"},
                       {"text_config", text},
                       {"quantization_config",
                        {{"quant_method", "compressed-tensors"}, {"config_groups", {{"g", {{"weights", weights}}}}}}}};
  std::ofstream(root_ + "/foreign/config.json") << config.dump();
  const Checkpoint read = Checkpoint::open(root_ + "/foreign");
  EXPECT_EQ(to_string(read.format(kId)), "int8c");
  const std::vector<float> values = decode(read.linear(kId));
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], to_float(s.as<f16>()[i / kIn]) * static_cast<float>(w.as<int8_t>()[i]));
}

// 64 columns in groups of 48 are 48 and 16, not 32 each. A g_idx says so, or the configuration where there is none.
TEST_F(ForeignLayouts, TheLastGroupMayBeShorter) {
  for (const bool indexed : {false, true}) {
    SCOPED_TRACE(indexed);
    std::filesystem::remove_all(root_ + "/foreign");
    std::filesystem::remove_all(root_ + "/ours");
    std::filesystem::remove(root_ + "/source/model.safetensors");
    const OwnedTensor q = words(kIn / 8, kOut), z = words(kGroups, kOut / 8), s = random_scales({kGroups, kOut});
    const OwnedTensor index = OwnedTensor::allocate(DType::i32, {kIn});
    for (int64_t k = 0; k < kIn; ++k) index.as<int32_t>()[static_cast<size_t>(k)] = k < 48 ? 0 : 1;
    for (int32_t& word : q.as<int32_t>()) word = 0x22222222;  // Every code is 2 and every zero point 0 + 1.
    const std::string m = module_name(kId);
    std::vector<TensorToWrite> tensors = {to_write(m + ".qweight", q), to_write(m + ".qzeros", z),
                                          to_write(m + ".scales", s)};
    json quantisation = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", indexed ? 128 : 48}};
    if (indexed) tensors.push_back(to_write(m + ".g_idx", index));
    const Checkpoint read = open_with(tensors, quantisation);
    const std::vector<float> values = decode(read.linear(kId));
    for (int64_t n = 0; n < kOut; ++n)
      for (int64_t k = 0; k < kIn; ++k)
        ASSERT_EQ(values[static_cast<size_t>(n * kIn + k)],
                  to_float(s.as<f16>()[static_cast<size_t>((k < 48 ? 0 : 1) * kOut + n)]))
            << n << " " << k;
  }
}

// transformers 5 calls GPTQ's checkpoint_format "format"; where both are given, the older one is right.
TEST_F(ForeignLayouts, GptqsZeroPointsFollowItsFormatUnderEitherName) {
  const OwnedTensor q = words(kIn / 8, kOut), z = words(kGroups, kOut / 8), s = random_scales({kGroups, kOut});
  for (int32_t& word : q.as<int32_t>()) word = 0x22222222;  // Every code is 2 and every zero point 0, or 0 + 1.
  const std::string m = module_name(kId);
  const std::vector<TensorToWrite> tensors = {to_write(m + ".qweight", q), to_write(m + ".qzeros", z),
                                              to_write(m + ".scales", s)};
  const auto first_value = [&](const json& named) {
    for (const char* name : {"/foreign", "/ours"}) std::filesystem::remove_all(root_ + name);
    std::filesystem::remove(root_ + "/source/model.safetensors");
    json quantisation = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}};
    quantisation.update(named);
    return decode(open_with(tensors, quantisation).linear(kId)).front();
  };
  const float scale = to_float(s.as<f16>()[0]);
  EXPECT_EQ(first_value(json::object()), scale);
  EXPECT_EQ(first_value({{"format", "gptq"}}), scale);
  EXPECT_EQ(first_value({{"format", "gptq_v2"}}), 2 * scale);
  EXPECT_EQ(first_value({{"format", "GPTQ_V2"}}), 2 * scale);
  EXPECT_EQ(first_value({{"format", "gptq_v2"}, {"checkpoint_format", "gptq"}}), scale);
}

// compressed-tensors once wrote its configuration as "compression_config".
TEST_F(ForeignLayouts, CompressedTensorsUnderItsOlderKey) {
  const OwnedTensor w = OwnedTensor::allocate(DType::i8, {kOut, kIn}), s = random_scales({kOut, 1});
  const std::string m = module_name(kId);
  const json groups = {{"group_0", {{"weights", {{"num_bits", 8}, {"type", "int"}}}}}};
  const json quantisation = {{"quant_method", "compressed-tensors"}, {"config_groups", groups}};
  open_with({to_write(m + ".weight", w), to_write(m + ".weight_scale", s)}, quantisation);
  json config = llama_config();
  config["compression_config"] = quantisation;
  std::ofstream(root_ + "/foreign/config.json") << config.dump();
  const Checkpoint read = Checkpoint::open(root_ + "/foreign");
  EXPECT_EQ(read.quantised_by(), "compressed-tensors");
  EXPECT_EQ(to_string(read.format(kId)), "int8c");
  config["compression_config"]["quant_method"] = "sparseml";
  std::ofstream(root_ + "/foreign/config.json") << config.dump();
  EXPECT_THAT([&] { Checkpoint::open(root_ + "/foreign"); },
              testing::ThrowsMessage<Error>(HasSubstr("quantised already, by sparseml")));
}

TEST_F(ForeignLayouts, Int8OfCompressedTensors) {
  const OwnedTensor w = OwnedTensor::allocate(DType::i8, {kOut, kIn}), s = random_scales({kOut, 1});
  for (int8_t& x : w.as<int8_t>()) x = static_cast<int8_t>(random_code(8) - 128);
  const std::string m = module_name(kId);
  const Checkpoint read = open_with(
      {to_write(m + ".weight", w), to_write(m + ".weight_scale", s)},
      {{"quant_method", "compressed-tensors"},
       {"format", "int-quantized"},
       {"config_groups",
        {{"group_0", {{"weights", {{"num_bits", 8}, {"type", "int"}}}, {"input_activations", {{"num_bits", 8}}}}}}}});
  EXPECT_EQ(to_string(read.format(kId)), "int8c");
  EXPECT_THAT(read.notes(), testing::ElementsAre(HasSubstr("activations are meant to be quantised")));
  const std::vector<float> values = decode(read.linear(kId));
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], to_float(s.as<f16>()[i / kIn]) * static_cast<float>(w.as<int8_t>()[i]));
}

TEST_F(ForeignLayouts, WhatIsNotReadIsNamed) {
  const std::string m = module_name(kId);
  const auto message = [&](const std::vector<TensorToWrite>& tensors, const json& config) -> std::string {
    for (const char* name : {"/foreign", "/ours"}) std::filesystem::remove_all(root_ + name);
    std::filesystem::remove(root_ + "/source/model.safetensors");
    try {
      open_with(tensors, config);
    } catch (const Error& e) {
      return e.what();
    }
    return "opened";
  };
  EXPECT_THAT(message({}, {{"quant_method", "hqq"}}), HasSubstr("quantised already, by hqq"));
  EXPECT_THAT(message({}, {{"quant_method", "awq"}, {"version", "gemv"}}), HasSubstr("gemv"));
  EXPECT_THAT(message({}, {{"quant_method", "awq"}, {"format", "gemv"}}), HasSubstr("gemv"));
  EXPECT_THAT(message({}, {{"quant_method", "gptq"}, {"checkpoint_format", "marlin"}}), HasSubstr("marlin"));
  EXPECT_THAT(message({}, {{"quant_method", "gptq"}, {"format", "marlin"}}), HasSubstr("marlin"));
  EXPECT_THAT(message({to_write(m + ".qweight", words(3, kOut))}, {{"quant_method", "gptq"}}),
              HasSubstr(m + ".qweight is I32 [3, 64]"));
  const OwnedTensor index = OwnedTensor::allocate(DType::i32, {kIn});
  index.as<int32_t>()[5] = 9;
  EXPECT_THAT(message({to_write(m + ".qweight", words(8, kOut)), to_write(m + ".qzeros", words(2, 8)),
                       to_write(m + ".scales", random_scales({2, kOut})), to_write(m + ".g_idx", index)},
                      {{"quant_method", "gptq"}}),
              HasSubstr("column 5 is in group 9"));
  // Transforms of weights are already in the codes; one of activations would be left out.
  json rotated = {{"quant_method", "compressed-tensors"},
                  {"config_groups", {{"g", {{"weights", {{"num_bits", 8}, {"type", "int"}}}}}}}};
  json& applied = rotated["transform_config"]["config_groups"]["R1"]["apply"];
  applied = json::array({{{"location", "weight_input"}}, {{"location", "weight_output"}}});
  const std::vector<TensorToWrite> int8 = {to_write(m + ".weight", OwnedTensor::allocate(DType::i8, {kOut, kIn})),
                                           to_write(m + ".weight_scale", random_scales({kOut, 1}))};
  EXPECT_EQ(message(int8, rotated), "opened");
  applied.push_back({{"location", "input"}});
  EXPECT_THAT(message(int8, rotated), testing::AllOf(HasSubstr("\"transform_config\""), HasSubstr("R1")));
}

// SentencePiece joins any two neighbours that make a token, so every cut of a token is a merge.
void complete_merges(json& model) {
  json merges = json::array();
  std::set<std::string> seen;
  for (const json& merge : model["merges"]) {
    std::string token =
        merge.is_string() ? merge.get<std::string>() : merge[0].get<std::string>() + merge[1].get<std::string>();
    if (merge.is_string()) token.erase(token.find(' '), 1);
    if (!seen.insert(token).second) continue;
    for (size_t cut = token.size() - 1; cut > 0; --cut)
      if (model["vocab"].contains(token.substr(0, cut)) && model["vocab"].contains(token.substr(cut)))
        merges.push_back({token.substr(0, cut), token.substr(cut)});
  }
  model["merges"] = merges;
}

// A tokenizer that was written into a GGUF's keys and read back splits text as before.
TEST(GgufTokenizer, SplitsAsTheOneItWasMadeFrom) {
  const ScratchFolder scratch;
  const std::string data = FIDELIO_SOURCE_DIR "/src/text/testdata/tokenizer_", folder = scratch.path() + "/model";
  for (const auto& [name, splitting] : std::map<std::string, std::string>{{"llama2", "default"},
                                                                          {"llama3", "llama-bpe"},
                                                                          {"qwen", "qwen2"},
                                                                          {"qwen35", "qwen35"},
                                                                          {"tekken", "tekken"},
                                                                          {"o200k", "gpt-4o"},
                                                                          {"harmony", "gpt-4o"},
                                                                          {"gemma4", "gemma4"}}) {
    SCOPED_TRACE(name);
    json file = json::parse(read_text_file(data + name + ".json"));
    // GGUF has no place for the options of added tokens, so only those without options are used.
    json added = json::array();
    for (const json& token : file["added_tokens"])
      if (!token["lstrip"] && !token["rstrip"] && !token["single_word"] && !token["normalized"]) added.push_back(token);
    file["added_tokens"] = added;
    file["post_processor"] = nullptr;
    if (name == "llama2") complete_merges(file["model"]);
    const TextFiles texts("original", {{"tokenizer.json", file.dump()}});
    const Tokenizer original = Tokenizer::load(texts);
    exporting::GgufKeys keys;
    exporting::put_tokenizer(keys, texts, original.vocab_size(), -1);
    std::string bytes = "GGUF";
    exporting::append_u32(bytes, 3);
    exporting::append_u64(bytes, 0);
    exporting::append_u64(bytes, keys.count());
    write_file_atomically(folder + ".gguf", bytes + keys.bytes());
    const auto written = gguf::File::open(folder + ".gguf");
    EXPECT_EQ(written->text("tokenizer.ggml.pre"), splitting);
    const Tokenizer read = Tokenizer::load(TextFiles("read", gguf::tokenizer_files(*written)));
    std::filesystem::remove(folder + ".gguf");
    const json cases =
        json::parse(read_text_file(FIDELIO_SOURCE_DIR "/src/text/testdata/cases/tokenizer_" + name + ".json"));
    for (const json& one : cases["encode"]) {
      const auto text = one[0].get<std::string>();
      const auto ids = original.encode(text, false);
      ASSERT_EQ(read.encode(text, false), ids) << text;
      ASSERT_EQ(read.decode(ids), original.decode(ids)) << text;
    }
  }
}

// Returns the ends of answers that are read of a tokenizer which was written into a GGUF's keys.
json ends_read_back(const json& tokenizer, int eos) {
  const TextFiles texts("original", {{"tokenizer.json", tokenizer.dump()}});
  exporting::GgufKeys keys;
  exporting::put_tokenizer(keys, texts, Tokenizer::load(texts).vocab_size(), eos);
  const ScratchFolder scratch;
  const std::string path = scratch.path() + "/ends.gguf";
  std::string bytes = "GGUF";
  exporting::append_u32(bytes, 3);
  exporting::append_u64(bytes, 0);
  exporting::append_u64(bytes, keys.count());
  write_file_atomically(path, bytes + keys.bytes());
  return json::parse(gguf::tokenizer_files(*gguf::File::open(path)).at("generation_config.json"))["eos_token_id"];
}

// The tokens that a post_processor puts around a text are written whatever other files call them, and read again.
TEST(GgufTokenizer, PutsTheSameTokensAroundATextAsTheOneItWasMadeFrom) {
  const std::string path = FIDELIO_BINARY_DIR "/io_test_around.gguf";
  json file = json::parse(read_text_file(FIDELIO_SOURCE_DIR "/src/text/testdata/tokenizer_llama2.json"));
  const auto named = [&](const char* text) {
    for (const json& token : file["added_tokens"])
      if (token["content"] == text) return tokenization::NamedToken({text, token["id"].get<int64_t>()});
    return tokenization::NamedToken();
  };
  const auto bos = named("<s>"), eos = named("</s>");
  ASSERT_TRUE(bos && eos);
  const auto read_back = [&](const std::string& config) {
    const TextFiles texts("original", {{"tokenizer.json", file.dump()}, {"tokenizer_config.json", config}});
    exporting::GgufKeys keys;
    exporting::put_tokenizer(keys, texts, Tokenizer::load(texts).vocab_size(), -1);
    std::string bytes = "GGUF";
    exporting::append_u32(bytes, 3);
    exporting::append_u64(bytes, 0);
    exporting::append_u64(bytes, keys.count());
    write_file_atomically(path, bytes + keys.bytes());
    const Tokenizer read = Tokenizer::load(TextFiles("read", gguf::tokenizer_files(*gguf::File::open(path))));
    std::filesystem::remove(path);
    return std::pair(read.leading_ids(), read.trailing_ids());
  };
  const auto one = [](const tokenization::NamedToken& token) {
    return token ? std::vector{static_cast<int32_t>(token->second)} : std::vector<int32_t>();
  };
  const std::string neither = R"({"add_bos_token": false})", both = R"({"bos_token": "<s>", "eos_token": "</s>"})";
  for (const std::string& config : {neither, both})
    for (const auto& before : {tokenization::NamedToken(), bos})
      for (const auto& behind : {tokenization::NamedToken(), eos}) {
        file["post_processor"] = tokenization::template_processing(before, behind);
        EXPECT_EQ(read_back(config), std::pair(one(before), one(behind))) << config << file["post_processor"];
      }
  file["post_processor"] = tokenization::template_processing(bos, bos);
  EXPECT_THROW(read_back(both), Error);  // llama.cpp allows eos alone after a text.
}

// gpt-oss ends its messages with <|end|>, after which the answer goes on.
TEST(GgufTokenizer, KnowsThatMessagesOfGptOssAreNoAnswers) {
  const json tokenizer = json::parse(read_text_file(FIDELIO_SOURCE_DIR "/src/text/testdata/tokenizer_harmony.json"));
  std::set<int32_t> expected;
  for (const json& token : tokenizer["added_tokens"])
    if (token["content"] == "<|return|>" || token["content"] == "<|call|>" || token["content"] == "<|endoftext|>")
      expected.insert(token["id"].get<int32_t>());
  ASSERT_EQ(expected.size(), 3u);
  EXPECT_EQ(ends_read_back(tokenizer, *expected.begin()), json(expected));
}

// llama.cpp knows most ends of answers by their text, so files name only eos.
TEST(GgufTokenizer, KnowsEndsOfAnswersByTheirText) {
  const json tokenizer = json::parse(read_text_file(FIDELIO_SOURCE_DIR "/src/text/testdata/tokenizer_qwen.json"));
  std::set<int32_t> expected;
  for (const json& token : tokenizer["added_tokens"])
    if (token["content"] == "<|im_end|>" || token["content"] == "<|endoftext|>")
      expected.insert(token["id"].get<int32_t>());
  ASSERT_EQ(expected.size(), 2u);
  EXPECT_EQ(ends_read_back(tokenizer, *expected.begin()), json(expected));
}

}  // namespace
}  // namespace fidelio
