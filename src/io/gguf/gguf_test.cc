// These tests compare GGUF blocks with the gguf Python package (tools/make_gguf_goldens.py), and damage files.
#include <gmock/gmock.h>

#include <bit>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/rng.h"
#include "io/export/export_fixture.h"
#include "io/gguf/file.h"
#include "io/gguf/tokenizer.h"

namespace fidelio::gguf {
namespace {

using testing::HasSubstr;

std::vector<uint8_t> bytes_of_hex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

TEST(GgufBlocks, DecodeToTheBitsOfTheOtherReader) {
  const json goldens = json::parse(read_text_file(FIDELIO_SOURCE_DIR "/src/io/testdata/gguf_blocks.json"));
  EXPECT_EQ(goldens.size(), 26u);
  for (const json& golden : goldens) {
    const BlockType* type = block_type(golden["type"].get<uint32_t>());
    ASSERT_NE(type, nullptr) << golden["type"];
    EXPECT_EQ(type->name, golden["name"].get<std::string>());
    const std::vector<uint8_t> blocks = bytes_of_hex(golden["blocks"]), values = bytes_of_hex(golden["values"]);
    std::vector<float> expected(values.size() / 4), decoded(expected.size());
    std::memcpy(expected.data(), values.data(), values.size());
    ASSERT_EQ(static_cast<int64_t>(blocks.size()) * type->elements,
              static_cast<int64_t>(expected.size()) * type->bytes);
    decode_row(*type, blocks.data(), decoded);
    EXPECT_EQ(decoded, expected) << type->name;
  }
}

TEST(GgufBlocks, AMinimumIsAZeroPointOnlyIfItIsAWholeNumberOfSteps) {
  EXPECT_EQ(exact_zero(0.5f, -3.5f, 4), 7);
  EXPECT_EQ(exact_zero(-0.5f, 1.0f, 4), 2);
  EXPECT_EQ(exact_zero(0.5f, -8.0f, 4), std::nullopt);  // 16 is beyond 4 bits.
  EXPECT_EQ(exact_zero(0.5f, 0.5f, 4), std::nullopt);
  EXPECT_EQ(exact_zero(0.5f, -3.501953125f, 4), std::nullopt);
  EXPECT_EQ(exact_zero(0.0f, 0.0f, 4), 0);
  EXPECT_EQ(exact_zero(0.0f, -1.0f, 4), std::nullopt);
}

class GgufFiles : public ExportTest {
 protected:
  GgufFiles() {
    const Checkpoint ours = make({{"layers.0.o", "int4g32"}, {"layers.0.down", "int8g32"}});
    export_gguf(ours, path(), false);
    whole_ = read_text_file(path());
  }
  std::string path() const { return root_ + "/model.gguf"; }
  // Returns the message of opening a file of these bytes.
  std::string message(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary) << bytes;
    try {
      Checkpoint::open(path());
    } catch (const Error& e) {
      return e.what();
    }
    return "opened";
  }
  // Returns the bytes of the file with the value of `key` (after its name and type) replaced.
  std::string with_value(const std::string& key, const std::string& value) const {
    const size_t at = whole_.find(key);
    EXPECT_NE(at, std::string::npos) << key;
    std::string bytes = whole_;
    return bytes.replace(at + key.size() + 4, value.size(), value);
  }
  static std::string u64(uint64_t value) { return {reinterpret_cast<const char*>(&value), 8}; }
  static std::string u32(uint32_t value) { return {reinterpret_cast<const char*>(&value), 4}; }
  std::string whole_;
};

TEST_F(GgufFiles, DamageIsNamed) {
  EXPECT_EQ(message(whole_), "opened");
  EXPECT_THAT(message(whole_.substr(0, 3)), HasSubstr("truncated"));
  EXPECT_THAT(message("GGML" + whole_.substr(4)), HasSubstr("no GGUF file"));
  EXPECT_THAT(message("GGUF" + u32(1) + whole_.substr(8)), HasSubstr("version 1"));
  EXPECT_THAT(message(whole_.substr(0, 8) + u64(1ull << 62) + whole_.substr(16)), HasSubstr("no room"));
  EXPECT_THAT(message(whole_.substr(0, 16) + u64(1ull << 62) + whole_.substr(24)), HasSubstr("no room"));
  EXPECT_THAT(message(with_value("general.name", u64(~0ull))), HasSubstr("truncated"));
  EXPECT_THAT(message(with_value("tokenizer.ggml.merges", u32(8) + u64(~0ull))), HasSubstr("truncated"));
  EXPECT_THAT(message(with_value("llama.block_count", u32(3))), HasSubstr("blk.2.attn_q"));
  EXPECT_THAT(message(with_value("llama.block_count", u32(1))), HasSubstr("blk.1."));
  EXPECT_THAT(message(with_value("llama.block_count", u32(0))), HasSubstr("block_count"));
  EXPECT_THAT(message(with_value("llama.attention.head_count", u32(0))), HasSubstr("heads"));
  EXPECT_THAT(message(with_value("general.alignment", u32(0))), HasSubstr("general.alignment"));
  EXPECT_THAT(message(with_value("tokenizer.ggml.eos_token_id", u32(99))), HasSubstr("99"));
  EXPECT_THAT(message(whole_.substr(0, whole_.size() - 64)), HasSubstr("truncated?"));
  std::string other = whole_;
  other.replace(other.find("llama.vocab_size"), 16, "llama.vocab_sizf");
  EXPECT_THAT(message(other), HasSubstr("llama.vocab_sizf"));
  // A tensor's name is followed by u32 dimensions, two sizes, u32 type and u64 offset.
  const std::string name = "blk.0.attn_output.weight";
  EXPECT_THAT(message(with_value(name, u64(1ull << 63))), HasSubstr("dimension"));
  EXPECT_THAT(message(with_value(name, u64(1ull << 62) + u64(1ull << 62))), HasSubstr("2^63"));
  EXPECT_THAT(message(with_value(name, u64(64) + u64(64) + u32(15))), HasSubstr("Q8_K"));
  EXPECT_THAT(message(with_value(name, u64(64) + u64(64) + u32(2) + u64(~0ull))), HasSubstr("offset"));
  EXPECT_THAT(message(with_value(name, u64(64) + u64(64) + u32(2) + u64(0))), HasSubstr("overlap"));
  EXPECT_THAT(message(with_value(name, u64(32) + u64(64))), HasSubstr("layers.0.o"));
}

// Hugging Face's reader of tokenizer.json (tokenizers 0.23) refuses a step that lacks a field, even one with a default.
TEST_F(GgufFiles, EveryByteLevelStepHasTheFieldsThatOtherReadersWant) {
  const json tokenizer = json::parse(tokenizer_files(*File::open(path())).at("tokenizer.json"));
  std::vector<json> steps = tokenizer["pre_tokenizer"]["pretokenizers"];
  steps.push_back(tokenizer["decoder"]);
  int64_t found = 0;
  for (const json& step : steps) {
    if (step["type"] != "ByteLevel") continue;
    ++found;
    for (const char* field : {"add_prefix_space", "trim_offsets", "use_regex"})
      EXPECT_TRUE(step.contains(field)) << step << " lacks " << field;
  }
  EXPECT_EQ(found, 2);
}

// The sampling that the makers of a model recommend is written into the file and read back.
TEST_F(GgufFiles, RecommendedSamplingGoesBothWays) {
  const auto exported = [&](const char* generation_config) {
    for (const char* name : {"/ours", "/source/model.safetensors", "/model.gguf"})
      std::filesystem::remove_all(root_ + name);
    write("generation_config.json", generation_config);
    export_gguf(make({}), path(), true);
    return json::parse(tokenizer_files(*File::open(path())).at("generation_config.json"));
  };
  const json all = {{"do_sample", true}, {"temperature", 0.6}, {"top_k", 20},
                    {"top_p", 0.95},     {"min_p", 0.05},      {"repetition_penalty", 1.1}};
  json read = exported(all.dump().c_str());
  EXPECT_THAT(Checkpoint::open(path()).notes(), testing::IsEmpty());
  const json keys = Gguf(path()).keys;
  EXPECT_EQ(keys["general.sampling.temp"], 0.6f);
  EXPECT_EQ(keys["general.sampling.top_k"], 20);
  EXPECT_EQ(keys["general.sampling.penalty_last_n"], -1);  // It covers the whole context, as in transformers.
  read.erase("eos_token_id");
  EXPECT_EQ(read, all);
  EXPECT_EQ(exported(R"({"do_sample": false, "temperature": 0.6, "top_k": 20})")["do_sample"], false);
  EXPECT_FALSE(Gguf(path()).keys.contains("general.sampling.top_k"));
  EXPECT_EQ(exported(R"({"eos_token_id": 4})"), (json{{"eos_token_id", {4}}}));
}

// Some keys are llama.cpp's own, and their effect must not be dropped without a word.
TEST_F(GgufFiles, SamplingThatIsNotDoneHereIsNamed) {
  const auto notes = [&](const std::string& keys, uint64_t count) {
    const uint64_t all = Gguf(path()).keys.size() + count;
    std::ofstream(path(), std::ios::binary) << whole_.substr(0, 16) + u64(all) + keys + whole_.substr(24);
    const std::vector<std::string> said = Checkpoint::open(path()).notes();
    std::ofstream(path(), std::ios::binary) << whole_;
    return said;
  };
  const auto f32 = [](const std::string& name, float value) {
    const std::string key = "general.sampling." + name;
    return u64(key.size()) + key + u32(6) + u32(std::bit_cast<uint32_t>(value));
  };
  const auto i32 = [](const std::string& name, uint32_t value) {
    const std::string key = "general.sampling." + name;
    return u64(key.size()) + key + u32(5) + u32(value);
  };
  // The alignment of the data depends on the length of the header, so keys are added in multiples of 32 bytes.
  const auto padded = [](std::string keys) {
    const size_t empty = 8 + 1 + 4 + 8, rest = (keys.size() + empty) % 32;
    return keys + u64(1) + "x" + u32(8) + u64((32 - rest) % 32) + std::string((32 - rest) % 32, ' ');
  };
  EXPECT_THAT(notes(padded(i32("top_k", 1)), 2), testing::IsEmpty());
  EXPECT_THAT(notes(padded(i32("mirostat", 0) + f32("mirostat_tau", 5) + i32("penalty_last_n", 64)), 4),
              testing::IsEmpty());
  EXPECT_THAT(notes(padded(i32("mirostat", 2) + f32("mirostat_tau", 5)), 3),
              testing::ElementsAre(
                  AllOf(HasSubstr("not done here"), HasSubstr("mirostat\", \"general.sampling.mirostat_tau"))));
  EXPECT_THAT(notes(padded(f32("xtc_probability", 0.5f)), 2), testing::ElementsAre(HasSubstr("xtc_probability")));
  EXPECT_THAT(notes(padded(i32("penalty_last_n", 64) + f32("penalty_repeat", 1.1f)), 3),
              testing::ElementsAre(HasSubstr("penalty_last_n")));
  EXPECT_THAT(notes(padded(i32("novelty", 64)), 2), testing::ElementsAre(HasSubstr("novelty")));
}

// A file that is cut anywhere or has any byte changed is refused with an Error or read; it never ends the program.
TEST_F(GgufFiles, AnyDamageIsAnError) {
  size_t refused = 0, tried = 0;
  for (size_t size = 0; size < whole_.size(); size += 37, ++tried)
    refused += message(whole_.substr(0, size)) != "opened";
  EXPECT_EQ(refused, tried);
  const size_t header = whole_.find("blk.1.ffn_down.weight") + 64;
  for (int i = 0; i < 600; ++i) {
    std::string bytes = whole_;
    for (int n = 0; n < 1 + i % 3; ++n)
      bytes[static_cast<size_t>(rng_.uniform() * static_cast<double>(header))] = static_cast<char>(random_code(8));
    message(bytes);
  }
}

}  // namespace
}  // namespace fidelio::gguf
