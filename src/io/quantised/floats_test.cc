// These tests read linears in FP8, NVFP4, MXFP4 and NF4 as compressed-tensors, DeepSeek, ModelOpt and bitsandbytes
// store them (tools/make_float_goldens.py), and damaged ones.
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/export/export_fixture.h"
#include "io/safetensors.h"

namespace fidelio {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

const std::string kModule = "model.layers.1.self_attn.k_proj";
constexpr LinearId kLinear{1, Role::k};

std::string bytes_of_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

json all_cases() { return json::parse(read_text_file(FIDELIO_SOURCE_DIR "/src/io/testdata/float_weights.json")); }

class FloatWeights : public ExportTest {
 protected:
  FloatWeights() { make({}); }
  // Writes a model whose k of layer 1 has these tensors in place of its weight.
  void write_model(const json& c, const std::function<void(std::map<std::string, OwnedTensor>&)>& change = {}) {
    std::map<std::string, OwnedTensor> own;
    for (const auto& [name, t] : c["tensors"].items()) {
      Shape shape;
      for (int64_t n : t["shape"].get<std::vector<int64_t>>()) shape.dim[shape.rank++] = n;
      OwnedTensor tensor = OwnedTensor::allocate(parse_dtype(t["dtype"].get<std::string>()), shape);
      const std::string bytes = bytes_of_hex(t["bytes"].get<std::string>());
      ASSERT_EQ(std::ssize(bytes), tensor.view.bytes());
      std::memcpy(tensor.view.data, bytes.data(), bytes.size());
      own.emplace(name, std::move(tensor));
    }
    if (change) change(own);
    const Safetensors files = Safetensors::open(root_ + "/source");
    std::vector<TensorToWrite> tensors;
    for (auto& [name, tensor] : own) tensors.push_back(to_write(kModule + "." + name, std::move(tensor)));
    for (const std::string& name : files.names())
      if (name != kModule + ".weight") tensors.push_back(to_write(name, files.get(name)));
    std::filesystem::remove_all(folder());
    std::filesystem::create_directories(folder());
    write_safetensors(folder() + "/model.safetensors", tensors);
    json config = json::parse(read_text_file(root_ + "/source/config.json"));
    config["quantization_config"] = c["config"];
    std::ofstream(folder() + "/config.json") << config.dump();
  }
  std::string folder() const { return root_ + "/floats"; }
  std::string message() const {
    try {
      decode(Checkpoint::open(folder()).linear(kLinear));
    } catch (const Error& e) {
      return e.what();
    }
    return "read";
  }
};

TEST_F(FloatWeights, AreWhatTheirWritersDecode) {
  for (const json& c : all_cases()) {
    const std::string name = c["name"];
    SCOPED_TRACE(name);
    write_model(c);
    const Checkpoint read = Checkpoint::open(folder());
    const char* format = name.ends_with("Nvfp4")                                             ? "fp4g16"
                         : name.ends_with("Mxfp4")                                           ? "mxfp4"
                         : name == "DeepSeekFp8OfBlocks" || name.starts_with("BitsAndBytes") ? "f32"
                                                                                             : "fp8";
    EXPECT_EQ(to_string(read.format(kLinear)), format);
    EXPECT_EQ(read.quantised_by(), c["config"]["quant_method"]);
    const std::vector<float> values = decode(read.linear(kLinear));
    const std::string bytes = bytes_of_hex(c["decoded"].get<std::string>());
    std::vector<float> expected(bytes.size() / 4);
    std::memcpy(expected.data(), bytes.data(), bytes.size());
    ASSERT_EQ(values.size(), expected.size());
    const float most = c["ulps"].get<float>() * std::numeric_limits<float>::epsilon();
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_LE(std::fabs(values[i] - expected[i]), most * std::fabs(expected[i])) << i;
    const std::string method = c["config"]["quant_method"];
    const bool activations = method == "fp8" || method == "modelopt";
    EXPECT_EQ(std::ranges::count_if(read.notes(), [](const auto& n) { return n.find("activations") != n.npos; }),
              activations ? 1 : 0);
  }
}

TEST_F(FloatWeights, ThatAreDamagedAreNamed) {
  const json cases = all_cases();
  const auto of = [&](const std::string& name) {
    for (const json& c : cases)
      if (c["name"] == name) return c;
    throw Error("no case {}", name);
  };
  const auto with = [&](const std::string& name,
                        const std::function<void(std::map<std::string, OwnedTensor>&)>& change) {
    write_model(of(name), change);
    return message();
  };
  const auto byte = [](OwnedTensor& t, size_t at) -> uint8_t& { return reinterpret_cast<uint8_t*>(t.view.data)[at]; };
  EXPECT_EQ(with("ModelOptFp8", {}), "read");
  EXPECT_THAT(with("ModelOptFp8", [&](auto& t) { byte(t.at("weight"), 7) = 0x7f; }),
              HasSubstr("k_proj.weight holds NaN"));
  EXPECT_THAT(with("ModelOptFp8", [&](auto& t) { t.at("weight_scale").template as<float>()[0] = INFINITY; }),
              HasSubstr("k_proj.weight_scale holds inf"));
  EXPECT_THAT(with("ModelOptNvfp4", [&](auto& t) { byte(t.at("weight_scale"), 3) = 0xff; }),
              HasSubstr("k_proj.weight_scale holds NaN"));
  EXPECT_THAT(with("CompressedNvfp4", [&](auto& t) { t.at("weight_global_scale").template as<float>()[0] = 0; }),
              HasSubstr("k_proj.weight_global_scale is 0"));
  EXPECT_THAT(with("CompressedMxfp4", [&](auto& t) { byte(t.at("weight_scale"), 3) = 255; }),
              HasSubstr("k_proj.weight_scale holds NaN"));
  EXPECT_THAT(with("BitsAndBytesNested", [&](auto& t) { t.erase("weight.nested_quant_map"); }),
              HasSubstr("k_proj.weight.nested_quant_map"));
  EXPECT_THAT(with("BitsAndBytes", [&](auto& t) { t.at("weight.absmax").template as<float>()[1] = NAN; }),
              HasSubstr("k_proj.weight.absmax holds nan"));
  EXPECT_THAT(with("BitsAndBytes", [&](auto& t) { byte(t.at("weight.quant_state.bitsandbytes__nf4"), 0) = '['; }),
              HasSubstr("bitsandbytes__nf4"));
  EXPECT_THAT(with("ModelOptNvfp4", [&](auto& t) { t.erase("weight_scale_2"); }), HasSubstr("weight_scale_2"));
  EXPECT_THAT(with("DeepSeekFp8OfBlocks",
                   [&](auto& t) {
                     t.insert_or_assign("weight_scale_inv", random_tensor(DType::f32, {3, 2}));
                   }),
              HasSubstr("k_proj.weight_scale_inv is [3, 2], expected one scale"));
  EXPECT_THAT(
      with("ModelOptNvfp4", [&](auto& t) { t.insert_or_assign("pre_quant_scale", random_tensor(DType::f32, {64})); }),
      HasSubstr("pre_quant_scale"));
}

// A folder of FP8 goes on as every other: it is written again in our form with the same weights.
TEST_F(FloatWeights, AreWrittenAgainAsTheyAre) {
  for (const json& c : all_cases()) {
    SCOPED_TRACE(c["name"].get<std::string>());
    write_model(c);
    const Checkpoint read = Checkpoint::open(folder());
    std::filesystem::remove_all(root_ + "/again");
    write_checkpoint(
        root_ + "/again", read, {}, [&](LinearId id) { return read.linear(id); }, json::object());
    EXPECT_EQ(decode(Checkpoint::open(root_ + "/again").linear(kLinear)), decode(read.linear(kLinear)));
  }
}

}  // namespace
}  // namespace fidelio
