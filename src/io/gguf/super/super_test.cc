// These tests compare super-blocks with the blocks of the gguf Python package (tools/make_gguf_goldens.py), and carry
// them through files of ours and of ggml's.
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "io/checkpoint.h"
#include "io/export/export_fixture.h"
#include "io/gguf/super/super_blocks.h"

namespace fidelio::gguf {
namespace {

std::vector<uint8_t> from_hex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

struct GoldenRow {
  const SuperType* type;
  std::vector<uint8_t> bytes;
  std::vector<float> values;
};
// Returns a row of each type that is a super-block.
std::vector<GoldenRow> golden_rows() {
  std::vector<GoldenRow> rows;
  for (const json& golden : json::parse(read_text_file(FIDELIO_SOURCE_DIR "/src/io/testdata/gguf_blocks.json"))) {
    const SuperType* type = super_type(golden["type"].get<uint32_t>());
    if (!type) continue;
    const std::vector<uint8_t> values = from_hex(golden["values"]);
    rows.push_back({type, from_hex(golden["blocks"]), std::vector<float>(values.size() / 4)});
    std::memcpy(rows.back().values.data(), values.data(), values.size());
  }
  return rows;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

LinearWeight read_one(const GoldenRow& row, const FormatSpec& spec, const Order& columns) {
  return read_super(
      *row.type, spec, 1, std::ssize(row.values), [&](int64_t) { return row.bytes.data(); }, columns);
}

TEST(SuperBlocks, AreReadToTheBitsOfTheOtherReaderAndWrittenAsTheyWere) {
  const std::vector<GoldenRow> rows = golden_rows();
  EXPECT_EQ(rows.size(), 9u);
  for (const GoldenRow& row : rows) {
    const FormatSpec spec = super_format(*row.type, {}).value();
    SCOPED_TRACE(to_string(spec));
    EXPECT_EQ(super_type(parse_format(to_string(spec))), row.type);
    const LinearWeight w = read_one(row, spec, {});
    EXPECT_TRUE(same_bits(decode(w), row.values));
    const std::string written = write_super_row(w, 0, {});
    EXPECT_EQ(std::vector<uint8_t>(written.begin(), written.end()), row.bytes);
    // Scales and minima are whole bytes here, which takes a tenth more at most, in Q4_1.
    EXPECT_LE(static_cast<double>(w.stored_bytes()), 1.1 * static_cast<double>(row.bytes.size()));
  }
}

// Heads that change places move 128 columns, half of a super-block; the file's order is restored exactly.
TEST(SuperBlocks, HalvesMayChangePlaces) {
  for (const GoldenRow& row : golden_rows()) {
    if (row.type->spec.super != 256) continue;
    const Order columns = [] {
      Order order(256);
      for (int64_t c = 0; c < 256; ++c) order[static_cast<size_t>(c)] = (c + 128) % 256;
      return order;
    }();
    const std::optional<FormatSpec> spec = super_format(*row.type, columns);
    ASSERT_TRUE(spec.has_value());
    EXPECT_EQ(spec->super, 128);
    const LinearWeight w = read_one(row, *spec, columns);
    std::vector<float> moved(256);
    for (size_t c = 0; c < 256; ++c) moved[c] = row.values[static_cast<size_t>(columns[c])];
    EXPECT_TRUE(same_bits(decode(w), moved)) << to_string(*spec);
    const std::string written = write_super_row(w, 0, inverse(columns));
    EXPECT_EQ(std::vector<uint8_t>(written.begin(), written.end()), row.bytes) << to_string(*spec);
    // Our own halves need not share the FP16 numbers that ggml's block has once.
    LinearWeight apart = take_rows(w, std::vector<int32_t>{0});
    std::get<SuperBlock>(apart.main).super_scale.as<f16>()[0] = f16{0x1234};
    EXPECT_THROW(write_super_row(apart, 0, inverse(columns)), Error);
  }
  Order runs_of_64(256);
  for (int64_t c = 0; c < 256; ++c) runs_of_64[static_cast<size_t>(c)] = (c + 64) % 256;
  EXPECT_FALSE(super_format(*super_type(12), runs_of_64).has_value());
}

TEST(SuperBlocks, AScaleThatGgmlHasNoBitsForIsNotWritten) {
  for (const char* format : {"int3g16k", "int4g32zk", "lut4g32k", "lut4g32k32", "int5g32zk32"}) {
    LinearWeight w = allocate_weight(parse_format(format), 1, 256);
    auto& m = std::get<SuperBlock>(w.main);
    std::fill_n(m.scale.view.data, m.scale.view.bytes(), std::byte{1});
    if (m.minimum) std::fill_n(m.minimum.view.data, m.minimum.view.bytes(), std::byte{1});
    EXPECT_NO_THROW(write_super_row(w, 0, {})) << format;
    m.scale.view.data[0] = std::byte{70};
    EXPECT_THROW(write_super_row(w, 0, {}), Error) << format;
  }
}

class SuperFiles : public ExportTest {
 protected:
  // Every matrix has a multiple of 256 columns; llama.cpp pairs the rows of q and k.
  static json config() {
    json all = llama_config();
    all["hidden_size"] = 256, all["intermediate_size"] = 512, all["head_dim"] = 64;
    return all;
  }
  std::string gguf() const { return root_ + "/model.gguf"; }
  static void expect_same_weights(const Checkpoint& a, const Checkpoint& b) {
    for (const LinearId id : linears_of(a.config())) {
      if (a.format(id).is_dense()) continue;
      ASSERT_EQ(a.format(id), b.format(id)) << to_string(id);
      const LinearWeight of_a = a.linear(id), of_b = b.linear(id);
      const std::vector<StoredTensor> first = stored_tensors(of_a), second = stored_tensors(of_b);
      ASSERT_EQ(first.size(), second.size());
      for (size_t i = 0; i < first.size(); ++i)
        EXPECT_EQ(
            std::memcmp(first[i].tensor.data, second[i].tensor.data, static_cast<size_t>(first[i].tensor.bytes())), 0)
            << to_string(id) << first[i].suffix;
    }
  }
};

TEST_F(SuperFiles, EveryTypeGoesThroughOurFolderAndThroughGguf) {
  const std::map<std::string, std::string> formats = {
      {"layers.0.q", "int4g32zk"},      {"layers.0.k", "int2g16zk"},   {"layers.0.v", "int6g16k"},
      {"layers.0.o", "int5g32zk"},      {"layers.0.gate", "int3g16k"}, {"layers.0.up", "lut4g32k"},
      {"layers.0.down", "int4g32zk"},   {"layers.1.q", "lut4g32k32"},  {"layers.1.o", "int4g32zk32"},
      {"layers.1.down", "int5g32zk32"}, {"embedding", "int6g16k"}};
  const Checkpoint ours = make(formats, config());
  for (const auto& [name, format] : formats) EXPECT_EQ(to_string(ours.format(parse_linear_id(name))), format);
  export_gguf(ours, gguf(), false);
  const Gguf file(gguf());
  EXPECT_EQ(file.tensors.at("blk.0.attn_q.weight").type, 12u);
  EXPECT_EQ(file.tensors.at("blk.0.attn_v.weight").type, 14u);
  EXPECT_EQ(file.tensors.at("token_embd.weight").type, 14u);
  const Checkpoint read = Checkpoint::open(gguf());
  EXPECT_THAT(read.notes(), testing::IsEmpty());
  expect_same_weights(ours, read);
  write_checkpoint(root_ + "/again", read, {}, nullptr, json::object());
  expect_same_weights(ours, Checkpoint::open(root_ + "/again"));
}

// Types that no format holds are still expanded, with a line. IQ3_S has blocks of as many bytes as Q3_K.
TEST_F(SuperFiles, OtherTypesAreExpandedWithALine) {
  export_gguf(make({{"layers.0.o", "int3g16k"}}, config()), gguf(), false);
  std::string bytes = read_text_file(gguf());
  const std::string name = "blk.0.attn_output.weight";
  bytes.at(bytes.find(name) + name.size() + 4 + 2 * 8) = 21;
  std::ofstream(gguf(), std::ios::binary) << bytes;
  const Checkpoint read = Checkpoint::open(gguf());
  EXPECT_EQ(to_string(read.format({0, Role::o})), "f32");
  EXPECT_THAT(read.notes(), testing::ElementsAre(testing::HasSubstr("IQ3_S tensors are expanded to 32 bits")));
}

}  // namespace
}  // namespace fidelio::gguf
