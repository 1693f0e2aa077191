// This file has the parts that the tests of exports share: a small checkpoint in given formats, and an unpacker of GGUF
// files written from the definition of the format, which shares nothing with the packer or the reader.
#pragma once
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/rng.h"
#include "core/test_support.h"
#include "io/export/export.h"
#include "io/hf_config.h"

namespace fidelio {

using nlohmann::json;

inline constexpr const char* kTokenizer =
    R"({"version":"1.0","added_tokens":[{"id":4,"content":"<end>","special":true,"normalized":false},
  {"id":5,"content":"<tool>","special":false,"normalized":false}],"normalizer":null,"pre_tokenizer":{"type":"Sequence","pretokenizers":[
  {"type":"Split","pattern":{"Regex":"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
   "behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]},
  "post_processor":null,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","unk_token":null,"byte_fallback":false,"ignore_merges":false,
  "vocab":{"a":0,"b":1,"c":2,"ab":3},"merges":[["a","b"]]}})";

// The model has two layers with q (64, 64), k and v (32, 64), gate (96, 64), down (64, 96).
inline json llama_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"vocab_size", 8},
          {"max_position_embeddings", 512},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", true},
          {"hidden_act", "silu"},
          {"attention_bias", true},
          {"torch_dtype", "bfloat16"},
          {"eos_token_id", 4},
          {"rope_scaling",
           {{"rope_type", "llama3"},
            {"factor", 8.0},
            {"low_freq_factor", 1.0},
            {"high_freq_factor", 4.0},
            {"original_max_position_embeddings", 64}}}};
}

class ExportTest : public testing::Test {
 protected:
  ExportTest() { std::filesystem::create_directories(root_ + "/source"); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(root_ + "/source/" + name, std::ios::binary) << text;
  }

  OwnedTensor random_tensor(DType dtype, Shape shape) {
    const OwnedTensor t = OwnedTensor::allocate(dtype, shape);
    std::vector<float> values(static_cast<size_t>(shape.elements()));
    for (float& v : values) v = static_cast<float>(rng_.uniform()) - 0.5f;
    convert_from_float(values, t.view);
    return t;
  }
  uint8_t random_code(int bits) { return static_cast<uint8_t>(rng_.uniform() * (1 << bits)); }

  LinearWeight random_weight(const FormatSpec& spec, int64_t out, int64_t in) {
    LinearWeight w = allocate_weight(spec, out, in);
    if (auto* super = std::get_if<SuperBlock>(&w.main)) {
      fill(*super, spec, in);
      return w;
    }
    auto* m = std::get_if<IntGroup>(&w.main);
    if (m == nullptr) return w;
    std::vector<uint8_t> row(static_cast<size_t>(in));
    for (int64_t r = 0; r < out; ++r) {
      for (uint8_t& code : row) code = random_code(spec.bits);
      m->codes.set_row(r, row);
      if (!spec.symmetric)
        for (int64_t g = 0; g < spec.groups(in); ++g) set_zero(*m, r, g, random_code(spec.bits));
    }
    if (spec.scale == ScaleKind::f16) {
      for (f16& s : m->scale.as<f16>()) s = to_f16(0.001f + static_cast<float>(rng_.uniform()));
    } else {
      for (uint8_t& s : m->scale.as<uint8_t>()) s = static_cast<uint8_t>(1 + random_code(7));
      for (float& s : m->row_scale.as<float>()) s = 0.001f + static_cast<float>(rng_.uniform()) / 64;
    }
    return w;
  }

  // Scales and minima fit the fewest bits that ggml has for them, and blocks of 32 columns have ones.
  void fill(SuperBlock& m, const FormatSpec& spec, int64_t in) {
    std::vector<uint8_t> row(static_cast<size_t>(in));
    for (int64_t r = 0; r < m.codes.rows; ++r) {
      for (uint8_t& code : row) code = random_code(spec.bits);
      m.codes.set_row(r, row);
    }
    for (OwnedTensor* t : {&m.scale, &m.minimum})
      for (int64_t i = 0; *t && i < t->view.bytes(); ++i)
        t->view.data[i] = static_cast<std::byte>(spec.super == 32 ? 1
                                                 : spec.bits == 2 ? random_code(8)
                                                                  : random_code(5));
    for (OwnedTensor* t : {&m.super_scale, &m.super_minimum})
      for (int64_t i = 0; *t && i < t->view.elements(); ++i)
        t->as<f16>()[static_cast<size_t>(i)] = to_f16(0.001f + static_cast<float>(rng_.uniform()));
  }

  // Makes a fidelio checkpoint with these formats; linears that are not named stay BF16.
  Checkpoint make(const std::map<std::string, std::string>& formats, const json& config = llama_config()) {
    write("config.json", config.dump());
    write("tokenizer.json", kTokenizer);
    write("tokenizer_config.json", R"({"eos_token":"<end>","chat_template":"{{ messages }}"})");
    const ModelConfig c = load_config(root_ + "/source");
    std::vector<TensorToWrite> tensors;
    for (LinearId id : linears_of(c)) {
      tensors.push_back(to_write(file_module_name(c, id) + ".weight", random_tensor(DType::bf16, shape_of(c, id))));
      const bool attention = id.role == Role::q || id.role == Role::k || id.role == Role::v;
      if ((attention && c.qkv_bias) || (id.role == Role::o && c.o_bias))
        tensors.push_back(to_write(bias_name(id), random_tensor(DType::f32, {shape_of(c, id)[0]})));
    }
    for (auto [layer, which] : norms_of(c))
      tensors.push_back(to_write(norm_name(c, layer, which), random_tensor(DType::bf16, {norm_size(c, layer, which)})));
    for (const std::string& router : router_names(c))
      tensors.push_back(to_write(router, random_tensor(DType::bf16, {c.experts, c.d})));
    for (LinearId id : fixed_linears_of(c))
      tensors.push_back(to_write(weight_name(id), random_tensor(DType::bf16, shape_of(c, id))));
    for (const int layer : delta_layers(c))
      for (const DeltaTensor which : kDeltaTensors)
        tensors.push_back(to_write(delta_name(layer, which), random_tensor(DType::f32, delta_shape(c, which))));
    write_safetensors(root_ + "/source/model.safetensors", tensors);
    const Checkpoint source = Checkpoint::open(root_ + "/source");
    std::map<LinearId, FormatSpec> specs;
    for (const auto& [name, format] : formats) specs[parse_linear_id(name)] = parse_format(format);
    write_checkpoint(
        root_ + "/ours", source, specs,
        [&](LinearId id) { return random_weight(specs.at(id), shape_of(c, id)[0], shape_of(c, id)[1]); },
        json::object());
    return Checkpoint::open(root_ + "/ours");
  }
  std::string out() const { return root_ + "/out"; }

  // Returns the message of a refusal, which must have left nothing behind.
  template <typename F>
  std::string refusal(F run) const {
    try {
      run();
    } catch (const Error& e) {
      EXPECT_FALSE(std::filesystem::exists(out()));
      return e.what();
    }
    return "accepted";
  }

  const ScratchFolder scratch_;
  const std::string root_ = scratch_.path();
  Rng rng_{7, 0};
};

inline const std::map<std::string, std::string> kMixed = {
    {"layers.0.q", "int3g32z"}, {"layers.0.k", "int3g32z"},      {"layers.0.v", "int3g32z"},
    {"layers.0.o", "int5g32"},  {"layers.0.gate", "int6g32zs8"}, {"layers.0.up", "int6g32zs8"},
    {"layers.0.down", "int7c"}, {"layers.1.q", "int4g32z"},      {"layers.1.k", "int4g32z"},
    {"layers.1.v", "int4g32z"}, {"layers.1.o", "int8g32"},       {"layers.1.gate", "int2g32"},
    {"layers.1.up", "int2g32"}, {"embedding", "int8g32"}};
inline const std::map<std::string, std::string> kWords = {  // None of them has 5-7 bits.
    {"layers.0.q", "int3g32z"}, {"layers.0.k", "int3g32z"},  {"layers.0.v", "int3g32z"}, {"layers.0.o", "int8g32z"},
    {"layers.1.q", "int4g64z"}, {"layers.1.gate", "int2cz"}, {"layers.1.up", "int2cz"},  {"layers.1.o", "int4g64zs8"}};

// This is the whole file, parsed by the definition of the format.
struct Gguf {
  std::string bytes;
  size_t at = 0;
  json keys;
  struct Entry {
    std::vector<int64_t> sizes;
    uint32_t type;
    size_t begin;
  };
  std::map<std::string, Entry> tensors;

  template <typename T>
  T read() {
    T value;
    std::memcpy(&value, &bytes.at(at), sizeof value);
    at += sizeof value;
    return value;
  }
  std::string text() {
    const auto size = read<uint64_t>();
    at += size;
    return bytes.substr(at - size, size);
  }
  json value(uint32_t type) {
    switch (type) {
      case 4:
        return read<uint32_t>();
      case 5:
        return read<int32_t>();
      case 6:
        return read<float>();
      case 7:
        return read<uint8_t>() != 0;
      case 8:
        return text();
      case 9: {
        const auto element = read<uint32_t>();
        json list = json::array();
        for (auto n = read<uint64_t>(); n > 0; --n) list.push_back(value(element));
        return list;
      }
      default:
        throw Error("type {}", type);
    }
  }
  explicit Gguf(const std::string& path) : bytes(read_text_file(path)) {
    EXPECT_EQ(bytes.substr(0, 4), "GGUF");
    at = 4;
    EXPECT_EQ(read<uint32_t>(), 3u);
    auto n_tensors = read<uint64_t>();
    for (auto n = read<uint64_t>(); n > 0; --n) {
      const std::string key = text();
      keys[key] = value(read<uint32_t>());
    }
    for (; n_tensors > 0; --n_tensors) {
      const std::string name = text();
      Entry entry;
      for (auto n = read<uint32_t>(); n > 0; --n) entry.sizes.push_back(static_cast<int64_t>(read<uint64_t>()));
      entry.type = read<uint32_t>();
      entry.begin = read<uint64_t>();
      EXPECT_EQ(entry.begin % 32, 0u);
      tensors[name] = entry;
    }
    const size_t data = (at + 31) / 32 * 32;
    for (auto& [name, entry] : tensors) entry.begin += data;
  }
  // These are the bytes of a block of 32 values, for each type that an export has; BF16 is counted by 32 values, too.
  const std::map<uint32_t, size_t> block_bytes = {{2, 18}, {3, 20}, {6, 22}, {7, 24}, {8, 34}, {30, 64}};
  float half(size_t offset) const { return to_float(f16{static_cast<uint16_t>(byte(offset) | byte(offset + 1) << 8)}); }
  int byte(size_t offset) const { return static_cast<uint8_t>(bytes.at(offset)); }

  // Returns element i of a tensor.
  float element(const Entry& t, int64_t i) const {
    const auto index = static_cast<size_t>(i);
    if (t.type == 0) {
      float value;
      std::memcpy(&value, &bytes.at(t.begin + 4 * index), 4);
      return value;
    }
    if (t.type == 30)
      return to_float(bf16{static_cast<uint16_t>(byte(t.begin + 2 * index) | byte(t.begin + 2 * index + 1) << 8)});
    const size_t block = t.begin + index / 32 * block_bytes.at(t.type), j = index % 32;
    const float d = half(block);
    if (t.type == 8) return d * static_cast<float>(static_cast<int8_t>(byte(block + 2 + j)));
    const bool minimum = t.type == 3 || t.type == 7, five = t.type >= 6;
    size_t at = block + (minimum ? 4 : 2);
    int q = 0;
    if (five) {
      q = (byte(at + j / 8) >> (j % 8) & 1) << 4;
      at += 4;
    }
    q |= j < 16 ? byte(at + j) & 15 : byte(at + j - 16) >> 4;
    return minimum ? d * static_cast<float>(q) + half(block + 2) : d * static_cast<float>(q - (five ? 16 : 8));
  }
};

}  // namespace fidelio
