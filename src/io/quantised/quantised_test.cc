// These tests are about the places where a folder says how it is quantised, and about folders in which no weight is
// quantised.
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/export/export_fixture.h"
#include "io/safetensors.h"

namespace fidelio {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class QuantisedFolder : public ExportTest {
 protected:
  json config_of(const std::string& folder) const {
    return json::parse(read_text_file(root_ + folder + "/config.json"));
  }
  void put(const std::string& file, const json& value) const { std::ofstream(root_ + file) << value.dump(); }
  std::string message(const std::string& folder) const {
    try {
      Checkpoint::open(root_ + folder);
    } catch (const Error& e) {
      return e.what();
    }
    return "opened";
  }
  void expect_same_weights(const Checkpoint& a, const Checkpoint& b) const {
    for (LinearId id : linears_of(a.config())) EXPECT_EQ(decode(a.linear(id)), decode(b.linear(id))) << to_string(id);
  }
};

// A model in which only keys and values are to be quantised has plain weights, as llm-compressor and ModelOpt describe
// it.
TEST_F(QuantisedFolder, OfTheCacheAloneIsPlain) {
  make({});
  const Checkpoint plain = Checkpoint::open(root_ + "/source");
  const json config = config_of("/source"), scheme = {{"num_bits", 8}, {"type", "float"}};
  const json activations = {{"weights", nullptr}, {"input_activations", nullptr}};
  for (const json& quantisation :
       {json{{"quant_method", "compressed-tensors"}, {"config_groups", json::object()}, {"kv_cache_scheme", scheme}},
        json{{"quant_method", "compressed-tensors"},
             {"config_groups", {{"group_0", activations}}},
             {"kv_cache_scheme", scheme}},
        json{{"quant_method", "modelopt"}, {"quant_algo", nullptr}, {"kv_cache_scheme", scheme}}}) {
    json changed = config;
    changed["quantization_config"] = quantisation;
    put("/source/config.json", changed);
    const Checkpoint read = Checkpoint::open(root_ + "/source");
    EXPECT_EQ(read.quantised_by(), "");
    EXPECT_THAT(read.notes(), ElementsAre(AllOf(HasSubstr("keys and values"), HasSubstr("--kv"))));
    expect_same_weights(plain, read);
  }
  json changed = config;
  changed["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"kv_cache_scheme", scheme}};
  put("/source/config.json", changed);
  EXPECT_THAT(message("/source"), HasSubstr("says modelopt, but no linear has tensors of it"));
  changed["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                    {"config_groups", json::object()},
                                    {"sparsity_config", {{"format", "sparse-24-bitmask"}}}};
  put("/source/config.json", changed);
  EXPECT_THAT(message("/source"), HasSubstr("sparse-24-bitmask"));
}

TEST_F(QuantisedFolder, ModelOptsOwnFileIsRead) {
  make({});
  const auto with = [&](const json& quantisation) {
    put("/source/hf_quant_config.json", json{{"producer", {{"name", "modelopt"}}}, {"quantization", quantisation}});
  };
  with({{"quant_algo", "NVFP4"}, {"kv_cache_quant_algo", "FP8"}});
  EXPECT_THAT(message("/source"), HasSubstr("says modelopt, but no linear has tensors of it"));
  with({{"quant_algo", nullptr}, {"kv_cache_quant_algo", "FP8"}});
  EXPECT_THAT(Checkpoint::open(root_ + "/source").notes(), ElementsAre(HasSubstr("keys and values")));
}

TEST_F(QuantisedFolder, ACacheBesideQuantisedWeightsIsTold) {
  export_compressed_tensors(make({{"layers.0.o", "int8g32"}}), out(), ServingProfile::any);
  json config = config_of("/out");
  config["quantization_config"]["kv_cache_scheme"] = {{"num_bits", 8}};
  put("/out/config.json", config);
  EXPECT_THAT(Checkpoint::open(out()).notes(), ElementsAre(HasSubstr("keys and values")));
}

// GPTQ's first writers wrote the configuration to quantize_config.json alone.
TEST_F(QuantisedFolder, GptqsOwnFileIsRead) {
  export_gptq(make({{"layers.0.o", "int4g32z"}, {"layers.1.down", "int8g32"}}), out(), ServingProfile::any);
  const Checkpoint today = Checkpoint::open(out());
  json config = config_of("/out"), quantisation = config["quantization_config"];
  config.erase("quantization_config");
  put("/out/config.json", config);
  std::filesystem::remove(out() + "/quantize_config.json");  // The export writes this file, too.
  EXPECT_THAT(message("/out"), AllOf(HasSubstr("codes of GPTQ or AWQ"), HasSubstr("quantize_config.json")));
  quantisation.erase("quant_method");
  put("/out/quantize_config.json", quantisation);
  const Checkpoint read = Checkpoint::open(out());
  EXPECT_EQ(read.quantised_by(), "gptq");
  EXPECT_EQ(to_string(read.format({0, Role::o})), "int4g32z");
  expect_same_weights(today, read);
  quantisation["is_marlin_format"] = true;
  put("/out/quantize_config.json", quantisation);
  EXPECT_THAT(message("/out"), HasSubstr("checkpoint_format marlin is not supported"));
  put("/out/quantize_config.json", json{{"quant_method", "hqq"}});
  EXPECT_THAT(message("/out"), HasSubstr("quantised already, by hqq"));
  // In a folder without codes a leftover file has no effect.
  put("/source/quantize_config.json", quantisation);
  EXPECT_EQ(message("/source"), "opened");
}

// AutoAWQ's quant_config.json has its own names for the size of a group and the width.
TEST_F(QuantisedFolder, AutoAwqsOwnFileIsRead) {
  make({});
  std::filesystem::create_directories(root_ + "/awq");
  const Safetensors files = Safetensors::open(root_ + "/source");
  const std::string o = "model.layers.0.self_attn.o_proj";
  const auto random_words = [&](const Shape& shape) {
    OwnedTensor t = OwnedTensor::allocate(DType::i32, shape);
    for (int32_t& x : t.as<int32_t>()) x = static_cast<int32_t>(rng_.next());
    return t;
  };
  std::vector<TensorToWrite> tensors = {to_write(o + ".qweight", random_words({64, 8})),
                                        to_write(o + ".qzeros", random_words({2, 8})),
                                        to_write(o + ".scales", random_tensor(DType::f16, {2, 64}))};
  for (const std::string& name : files.names())
    if (name != o + ".weight") tensors.push_back(to_write(name, files.get(name)));
  write_safetensors(root_ + "/awq/model.safetensors", tensors);
  json config = config_of("/source");
  put("/awq/config.json", config);
  put("/awq/quant_config.json", json{{"zero_point", true}, {"q_group_size", 32}, {"w_bit", 4}, {"version", "GEMM"}});
  const Checkpoint older = Checkpoint::open(root_ + "/awq");
  EXPECT_EQ(older.quantised_by(), "awq");
  EXPECT_EQ(to_string(older.format({0, Role::o})), "int4g32z");
  const std::vector<float> values = decode(older.linear({0, Role::o}));
  config["quantization_config"] = {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}, {"version", "gemm"}};
  put("/awq/config.json", config);
  EXPECT_EQ(decode(Checkpoint::open(root_ + "/awq").linear({0, Role::o})), values);
}

}  // namespace
}  // namespace fidelio
