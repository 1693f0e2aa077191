// These tests read GGUF files of mixtures of experts, as llama.cpp's own converter makes them from the tiny models
// (tools/make_gguf_goldens.py). Such a file is the same model as the folder, and faults of other files are named. The
// data of a file is the model's in another order, so the file is rebuilt here from its header and compared with the
// SHA-256 of the converter's file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/hash.h"
#include "core/rng.h"
#include "io/gguf/file.h"
#include "models.h"

namespace fidelio {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string u32(uint32_t value) { return {reinterpret_cast<const char*>(&value), 4}; }
std::string u64(uint64_t value) { return {reinterpret_cast<const char*>(&value), 8}; }
std::string text(const std::string& value) { return u64(value.size()) + value; }

struct StoredTensor {
  std::string name;
  std::vector<uint64_t> sizes;  // The fastest dimension comes first.
  uint32_t type = 0;
  std::string data;
};

// This is a file in parts that a test may change.
struct Parts {
  uint64_t key_count = 0;
  std::string keys;
  std::vector<StoredTensor> tensors;

  StoredTensor& at(const std::string& name) {
    return *std::find_if(tensors.begin(), tensors.end(), [&](const StoredTensor& t) { return t.name == name; });
  }
  void drop(const std::string& name) {
    std::erase_if(tensors, [&](const StoredTensor& t) { return t.name == name; });
  }
  // Type 4 is u32, 6 is F32 and 7 is bool.
  void add_key(const std::string& key, uint32_t type, const std::string& value) {
    keys += text(key) + u32(type) + value;
    ++key_count;
  }
  void set_key(const std::string& key, uint32_t value) {
    const size_t at = keys.find(text(key));
    ASSERT_NE(at, std::string::npos) << key;
    keys.replace(at + 8 + key.size() + 4, 4, u32(value));
  }
  std::string bytes() const {
    std::string file = "GGUF" + u32(3) + u64(tensors.size()) + u64(key_count) + keys, data;
    for (const StoredTensor& t : tensors) {
      file += text(t.name) + u32(static_cast<uint32_t>(t.sizes.size()));
      for (const uint64_t size : t.sizes) file += u64(size);
      file += u32(t.type) + u64(data.size());
      data += t.data;
      data.resize((data.size() + 31) / 32 * 32);
    }
    file.resize((file.size() + 31) / 32 * 32);
    return file + data;
  }
};

class GgufExperts : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { open(GetParam()); }

  // Opens the folder as llama.cpp computes it, without a window.
  void open(const std::string& name) {
    source_ = folder_ / "source";
    copy_model(tiny_model(name), source_);
    json config = json::parse(read_text_file(source_ + "/config.json"));
    config.erase("sliding_window");
    std::ofstream(source_ + "/config.json") << config.dump();
    golden_ = json::parse(read_text_file(source_path("src/io/testdata/gguf_experts.json")))[name];
    parts_ = parts_of(Checkpoint::open(source_));
  }

  static std::string unhex(const std::string& hex) {
    std::string bytes;
    for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return bytes;
  }
  static std::string bytes_of(const Tensor& t) {
    return {reinterpret_cast<const char*>(t.data), static_cast<size_t>(t.bytes())};
  }
  template <typename T>
  static std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
  }
  // Returns rows of q or k in the order of llama.cpp's llama and granite: 2i and 2i + 1 stand together, which were i
  // and i + e/2.
  static std::string in_pairs(const ModelConfig& c, LinearId id, const std::string& rows) {
    const bool turned = c.architecture == Architecture::mixtral || c.architecture == Architecture::granite_moe;
    if (!turned || (id.role != Role::q && id.role != Role::k)) return rows;
    const size_t count = static_cast<size_t>(shape_of(c, id)[0]), size = rows.size() / count,
                 e = static_cast<size_t>(c.e);
    std::string paired;
    for (size_t row = 0; row < count; ++row) {
      const size_t j = row % e;
      paired += rows.substr((row / e * e + j % 2 * (e / 2) + j / 2) * size, size);
    }
    return paired;
  }

  // Returns every tensor's bytes by the name that it has there.
  static std::map<std::string, std::string> data_of(const Checkpoint& model) {
    constexpr const char* kNames[] = {"token_embd", "attn_q", "attn_k",   "attn_v", "attn_output",
                                      "ffn_gate",   "ffn_up", "ffn_down", "output"};
    const ModelConfig& c = model.config();
    std::map<std::string, std::string> data;
    for (LinearId id : linears_of(c)) {
      const std::string_view role = name_of(id.role);
      const char* const order[] = {"embedding", "q", "k", "v", "o", "gate", "up", "down", "head"};
      const auto at = std::find(std::begin(order), std::end(order), role) - std::begin(order);
      const std::string layer = id.layer < 0 ? "" : fmt::format("blk.{}.", id.layer),
                        name = layer + kNames[at] + (id.expert < 0 ? "" : "_exps");
      const LinearWeight w = model.linear(id);
      data[name + ".weight"] += in_pairs(c, id, bytes_of(std::get<Dense>(w.main).w.view));
      if (w.bias) data[name + ".bias"] = in_pairs(c, id, bytes_of(w.bias.view));
    }
    const std::map<Norm, const char*> norms = {
        {Norm::attn, "attn_norm"}, {Norm::mlp, "ffn_norm"}, {Norm::q, "attn_q_norm"}, {Norm::k, "attn_k_norm"}};
    for (auto [layer, which] : norms_of(c))
      data[layer < 0 ? "output_norm.weight" : fmt::format("blk.{}.{}.weight", layer, norms.at(which))] =
          bytes_of(model.norm(layer, which));
    for (int layer = 0; layer < c.L; ++layer)
      data[fmt::format("blk.{}.ffn_gate_inp.weight", layer)] =
          bytes_of(std::get<Dense>(model.router(layer).main).w.view);
    return data;
  }

  Parts parts_of(const Checkpoint& model) const {
    const std::string header = unhex(golden_["header"].get<std::string>());
    std::string whole = header;
    whole.resize(golden_["bytes"].get<size_t>());
    write(whole);
    const auto file = gguf::File::open(path());
    const std::map<std::string, std::string> data = data_of(model);
    Parts parts;
    size_t infos = header.size();
    std::map<size_t, StoredTensor> by_place;
    for (const auto& [name, m] : file->tensors()) {
      const std::string& bytes = data.at(name);
      const auto begin = static_cast<size_t>(m.data - file->mapped()->bytes().data());
      EXPECT_EQ(static_cast<int64_t>(bytes.size()), m.bytes()) << name;
      whole.replace(begin, bytes.size(), bytes);
      infos = std::min(infos, header.find(text(name)));
      std::vector<uint64_t> sizes = {static_cast<uint64_t>(m.columns)};
      if (m.dimensions > 1) sizes.push_back(static_cast<uint64_t>(m.rows_each));
      if (m.dimensions > 2) sizes.push_back(static_cast<uint64_t>(m.rows / m.rows_each));
      by_place[begin] = {name, sizes, m.type->number, bytes};
    }
    EXPECT_EQ(sha256_hex(whole), golden_["sha256"].get<std::string>());
    for (auto& [begin, tensor] : by_place) parts.tensors.push_back(std::move(tensor));
    std::memcpy(&parts.key_count, header.data() + 16, 8);
    parts.keys = header.substr(24, infos - 24);
    EXPECT_EQ(sha256_hex(parts.bytes()), golden_["sha256"].get<std::string>());
    return parts;
  }

  std::string path() const { return folder_ / "model.gguf"; }
  void write(const std::string& bytes) const { std::ofstream(path(), std::ios::binary) << bytes; }
  std::vector<float> logits_of(const std::string& model) const {
    const Checkpoint checkpoint = Checkpoint::open(model);
    const auto ids = golden_json("mixtral")["ids"].get<std::vector<int32_t>>();
    return run_whole(*make_cpu_runner(checkpoint, exact_options()), ids, Activations::f32);
  }
  // Returns the message of opening a changed file.
  std::string message(const std::function<void(Parts&)>& change) const {
    Parts parts = parts_;
    change(parts);
    write(parts.bytes());
    try {
      Checkpoint::open(path());
    } catch (const Error& e) {
      return e.what();
    }
    return "opened";
  }

  TestFolder folder_;
  std::string source_;
  json golden_;
  Parts parts_;
};
INSTANTIATE_TEST_SUITE_P(All, GgufExperts, testing::ValuesIn(kExpertModels),
                         [](const auto& info) { return info.param; });

TEST_P(GgufExperts, AreTheModelOfTheFolder) {
  write(parts_.bytes());
  const Checkpoint ours = Checkpoint::open(source_), read = Checkpoint::open(path());
  EXPECT_THAT(read.notes(), testing::IsEmpty());
  EXPECT_EQ(read.config().architecture, ours.config().architecture);
  EXPECT_EQ(read.config().renormalised, ours.config().renormalised);
  EXPECT_EQ(logits_of(path()), logits_of(source_));
}

// Older files have one tensor for each expert instead of one for the layer's experts. Others have gate and up in one.
TEST_P(GgufExperts, AreReadHoweverTheyAreKept) {
  const ModelConfig c = Checkpoint::open(source_).config();
  Parts each = parts_, both = parts_;
  for (int layer = 0; layer < c.L; ++layer)
    for (const char* role : {"gate", "up", "down"}) {
      const std::string name = fmt::format("blk.{}.ffn_{}", layer, role);
      const StoredTensor all = each.at(name + "_exps.weight");
      each.drop(all.name);
      const size_t size = all.data.size() / static_cast<size_t>(c.experts);
      for (int expert = 0; expert < c.experts; ++expert)
        each.tensors.push_back({fmt::format("{}.{}.weight", name, expert),
                                {all.sizes[0], all.sizes[1]},
                                all.type,
                                all.data.substr(static_cast<size_t>(expert) * size, size)});
    }
  for (int layer = 0; layer < c.L; ++layer) {
    const StoredTensor gate = both.at(fmt::format("blk.{}.ffn_gate_exps.weight", layer)),
                       up = both.at(fmt::format("blk.{}.ffn_up_exps.weight", layer));
    both.drop(gate.name), both.drop(up.name);
    StoredTensor all{fmt::format("blk.{}.ffn_gate_up_exps.weight", layer),
                     {gate.sizes[0], 2 * gate.sizes[1], gate.sizes[2]},
                     gate.type,
                     ""};
    const size_t size = gate.data.size() / static_cast<size_t>(c.experts);
    for (size_t at = 0; at < gate.data.size(); at += size)
      all.data += gate.data.substr(at, size) + up.data.substr(at, size);
    both.tensors.push_back(std::move(all));
  }
  for (const Parts& parts : {each, both}) {
    write(parts.bytes());
    EXPECT_EQ(logits_of(path()), logits_of(source_));
  }
}

TEST_P(GgufExperts, WhatIsWrongWithThemIsNamed) {
  const ModelConfig c = Checkpoint::open(source_).config();
  const std::string arch = GetParam() == "mixtral" ? "llama" : GetParam() == "qwen3_moe" ? "qwen3moe" : GetParam();
  const std::string gate = "blk.0.ffn_gate_exps.weight", router = "blk.1.ffn_gate_inp.weight";
  const auto experts = static_cast<uint32_t>(c.experts);
  const auto with = [&](const std::string& key, uint32_t value) {
    return message([&](Parts& p) { p.set_key(arch + "." + key, value); });
  };
  const auto added = [&](const std::string& key, uint32_t type, const std::string& value) {
    return message([&](Parts& p) { p.add_key(arch + "." + key, type, value); });
  };
  EXPECT_EQ(message([](Parts&) {}), "opened");
  EXPECT_THAT(with("expert_count", 0), HasSubstr("expert"));
  EXPECT_THAT(with("expert_count", 1'000'000'000), HasSubstr(arch + ".expert_count\": expected 1 to 32768"));
  EXPECT_THAT(with("expert_count", experts + 1), HasSubstr(gate));
  EXPECT_THAT(with("expert_used_count", 0), HasSubstr("expert_used_count"));
  EXPECT_THAT(with("expert_used_count", experts + 1), HasSubstr(fmt::format("all of the {} experts", experts)));
  EXPECT_EQ(added("expert_weights_norm", 7, std::string(1, static_cast<char>(c.renormalised))), "opened");
  EXPECT_THAT(added("expert_weights_norm", 7, std::string(1, static_cast<char>(!c.renormalised))),
              HasSubstr("expert_weights_norm"));
  EXPECT_EQ(added("expert_weights_scale", 6, u32(std::bit_cast<uint32_t>(1.0f))), "opened");
  EXPECT_THAT(added("expert_weights_scale", 6, u32(std::bit_cast<uint32_t>(2.5f))), HasSubstr("expert_weights_scale"));
  EXPECT_EQ(added("expert_gating_func", 4, u32(1)), "opened");
  EXPECT_THAT(added("expert_gating_func", 4, u32(2)), HasSubstr("expert_gating_func"));
  EXPECT_THAT(added("expert_group_count", 4, u32(2)), HasSubstr("expert_group_count"));
  EXPECT_THAT(added("expert_shared_feed_forward_length", 4, u32(64)), HasSubstr("every row passes"));
  EXPECT_THAT(added("leading_dense_block_count", 4, u32(1)), HasSubstr("leading_dense_block_count"));
  EXPECT_THAT(message([&](Parts& p) { p.drop(gate); }), HasSubstr(gate));
  EXPECT_THAT(message([&](Parts& p) { p.drop(router); }), HasSubstr(router));
  EXPECT_THAT(message([&](Parts& p) {
                p.at(gate).sizes = {p.at(gate).sizes[0], p.at(gate).sizes[1] * experts};
              }),
              HasSubstr(gate));
  EXPECT_THAT(message([&](Parts& p) { std::swap(p.at(gate).sizes[1], p.at(gate).sizes[2]); }), HasSubstr(gate));
  EXPECT_THAT(message([&](Parts& p) { std::swap(p.at(router).sizes[0], p.at(router).sizes[1]); }), HasSubstr(router));
  EXPECT_THAT(message([&](Parts& p) { p.at(gate).sizes = {40, 1ull << 62, 1ull << 62}; }), HasSubstr("2^63 rows"));
  EXPECT_THAT(message([&](Parts& p) {
                p.at(gate).sizes = {1ull << 40, 1ull << 12, 1ull << 12};
              }),
              HasSubstr("2^63 bytes"));
  for (const std::string name : {"blk.0.ffn_gate_shexp.weight", "blk.0.ffn_gate_exps.bias", "blk.0.exp_probs_b.bias",
                                 "blk.0.ffn_gate.0.weight", "blk.0.ffn_gate.weight"})
    EXPECT_THAT(message([&](Parts& p) {
                  p.tensors.push_back({name, {8}, 0, std::string(32, '\0')});
                }),
                HasSubstr(name));
}

// A file with any changed bytes in its header is refused with an Error or read; it never ends the program.
TEST_P(GgufExperts, AnyDamageIsAnError) {
  Rng rng(11, 0);
  const std::string whole = parts_.bytes();
  const size_t header = golden_["header"].get<std::string>().size() / 2;
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    std::string bytes = whole;
    for (int n = 0; n < 1 + i % 3; ++n)
      bytes[static_cast<size_t>(rng.uniform() * static_cast<double>(header))] =
          static_cast<char>(static_cast<int>(rng.uniform() * 256));
    write(bytes);
    try {
      Checkpoint::open(path());
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace fidelio
