#include "io/safetensors.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "core/rng.h"
#include "core/test_support.h"

namespace fidelio {
namespace {

using testing::HasSubstr;

class SafetensorsTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string put(const std::string& name, const std::string& bytes) const {
    std::filesystem::remove(path(name));  // Truncating a file instead makes some file systems flush it, which is slow.
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  static std::string with_length(const std::string& header, const std::string& data) {
    const uint64_t n = header.size();
    return std::string(reinterpret_cast<const char*>(&n), 8) + header + data;
  }
  // Writes a file with this header and `data_bytes` bytes of data.
  std::string file(const std::string& header, size_t data_bytes) const {
    return put("model.safetensors", with_length(header, std::string(data_bytes, 'x')));
  }
  static std::string one(const std::string& fields) { return "{\"a\":{" + fields + "}}"; }
  static std::string message(const std::string& path) {
    try {
      Safetensors::open(path);
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  }
  void refused(const std::string& path, const std::string& reason) const {
    EXPECT_THAT(message(path), HasSubstr(reason));
    EXPECT_THAT(message(path), HasSubstr(folder_));
  }
  const ScratchFolder scratch_;
  const std::string folder_ = scratch_.path();
};

TensorToWrite floats(const std::string& name, std::initializer_list<float> values) {
  OwnedTensor t = OwnedTensor::allocate(DType::f32, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), t.as<float>().begin());
  return to_write(name, t);
}

TEST_F(SafetensorsTest, ReadsWhatTheFormatSays) {
  const auto f = Safetensors::open(file(
      R"({"__metadata__":{"format":"pt","k":"v"},"b":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[8,12]},"none":{"dtype":"I64","shape":[0,3],"data_offsets":[12,12]}}  )",
      12));
  EXPECT_EQ(f.names(), (std::vector<std::string>{"b", "none", "scalar"}));
  EXPECT_EQ(f.metadata().at("k"), "v");
  EXPECT_EQ(f.get("b").view.shape, (Shape{2, 1}));
  EXPECT_EQ(f.get("scalar", DType::f32, Shape{}).view.elements(), 1);
  EXPECT_EQ(f.get("none").view.bytes(), 0);
  EXPECT_TRUE(f.contains("b"));
  EXPECT_FALSE(f.contains("c"));
  EXPECT_EQ(f.file_bytes(), static_cast<int64_t>(std::filesystem::file_size(path("model.safetensors"))));
}

TEST_F(SafetensorsTest, GetSaysWhatIsMissingOrWrong) {
  write_safetensors(path("x.safetensors"), {floats("w", {1, 2})});
  const auto f = Safetensors::open(path("x.safetensors"));
  EXPECT_THAT([&] { f.get("nope"); },
              testing::ThrowsMessage<Error>(testing::AllOf(HasSubstr("\"nope\""), HasSubstr("x.safetensors"))));
  EXPECT_THAT([&] { f.get("w", DType::bf16, {2}); },
              testing::ThrowsMessage<Error>(HasSubstr("expected BF16 [2], got F32 [2]")));
  EXPECT_THAT(
      [&] {
        f.get("w", DType::f32, {2, 1});
      },
      testing::ThrowsMessage<Error>(HasSubstr("expected F32 [2, 1], got F32 [2]")));
}

TEST_F(SafetensorsTest, RefusesBrokenHeaders) {
  refused(put("model.safetensors", "abc"), "truncated");
  refused(put("model.safetensors", ""), "truncated");
  refused(put("model.safetensors", std::string("\xff\xff\0\0\0\0\0\0{}", 10)),
          "truncated: header of 65535 bytes in a file of 10");
  refused(put("model.safetensors", std::string(8, '\xff') + "{}"), "the limit is 100000000");
  refused(file("", 0), "not JSON");
  refused(file("[1]", 0), "not JSON");
  refused(file("{\"a\":", 0), "not valid JSON");
  refused(file("{\"\xff\":1}", 0), "not valid JSON");
  refused(file("{\"a\":" + std::string(100000, '['), 0), "nested more than");
  refused(file("{\"a\":1}", 0), "expected an object");
  refused(file(R"({"__metadata__":[]})", 0), "__metadata__");
  refused(file(R"({"__metadata__":{"k":1}})", 0), "expected a string");
  refused(
      file(
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
          1),
      "\"a\" stands twice");
  refused(file(one(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])"), 1), "\"dtype\" stands twice");
}

TEST_F(SafetensorsTest, RefusesBrokenEntries) {
  refused(file(one(R"("shape":[1],"data_offsets":[0,1])"), 1), "\"dtype\" is missing");
  refused(file(one(R"("dtype":"U8","data_offsets":[0,1])"), 1), "\"shape\" is missing");
  refused(file(one(R"("dtype":"U8","shape":[1])"), 1), "\"data_offsets\" is missing");
  refused(file(one(R"("dtype":"F4","shape":[1],"data_offsets":[0,1])"), 1), "unknown dtype \"F4\"");
  refused(file(one(R"("dtype":7,"shape":[1],"data_offsets":[0,1])"), 1), "\"dtype\" is a JSON number");
  refused(file(one(R"("dtype":"U8","shape":1,"data_offsets":[0,1])"), 1), "\"shape\" is a JSON number");
  for (const char* dim : {"-1", "1.0", "1e400", "9223372036854775808", "99999999999999999999", "null", "\"1\""})
    EXPECT_NE(message(file(one(fmt::format(R"("dtype":"U8","shape":[{}],"data_offsets":[0,1])", dim)), 1)), "accepted")
        << dim;
  refused(file(one(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), 1), "holds -1, expected integers from 0");
  refused(file(one(R"("dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[0,1])"), 1), "tensor \"a\": 5 dimensions");
  // 2^32 * 2^32 = 0 mod 2^64 must not pass for an empty tensor, nor may a zero hide the overflow.
  refused(file(one(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0), "more than 2^63");
  refused(file(one(R"("dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"), 0), "more than 2^63");
  refused(file(one(R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0])"), 0), "more than 2^63");
  refused(file(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4), "do not match 8 bytes of F32 [2]");
  refused(file(one(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])"), 1), "do not match");
  refused(file(one(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), 1), "two integers");
}

TEST_F(SafetensorsTest, RefusesOffsetsThatDoNotTileTheData) {
  const auto two = [](int b0, int e0, int b1, int e1) {
    return fmt::format(
        R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}},"b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
        e0 - b0, b0, e0, e1 - b1, b1, e1);
  };
  EXPECT_EQ(message(file(two(0, 4, 4, 8), 8)), "accepted");
  EXPECT_EQ(message(file(two(4, 8, 0, 4), 8)), "accepted");
  refused(file(two(0, 4, 3, 8), 8), "tensor \"b\" at 3 overlaps \"a\", which ends at 4");
  refused(file(two(0, 4, 2, 2), 4), "overlaps");  // This is an empty tensor inside another.
  refused(file(two(0, 4, 5, 8), 8), "gap of 1 bytes before tensor \"b\"");
  refused(file(two(1, 4, 4, 8), 8), "gap of 1 bytes before tensor \"a\"");
  refused(file(two(0, 4, 4, 8), 7), "truncated");
  refused(file(two(0, 4, 4, 8), 9), "1 bytes after the last tensor");
}

TEST_F(SafetensorsTest, UnalignedTensorsComeAsCopies) {
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F64","shape":[1],"data_offsets":[3,11]}})";
  const double value = 1.25;
  const auto f = Safetensors::open(
      put("u.safetensors", with_length(header, "xyz" + std::string(reinterpret_cast<const char*>(&value), 8))));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(f.get("b").view.data) % 8, 0u);
  EXPECT_EQ(f.get("b").as<double>()[0], value);
}

TEST_F(SafetensorsTest, TensorsOutliveTheObjectAndSurviveDrop) {
  write_safetensors(path("x.safetensors"), {floats("w", {1, 2, 3})});
  OwnedTensor t;
  {
    const auto f = Safetensors::open(path("x.safetensors"));
    t = f.get("w");
    f.drop(t.view);
  }
  EXPECT_EQ(t.as<float>()[2], 3.0f);
}

TEST_F(SafetensorsTest, WritesTheSameBytesAgainAndReadsThemBack) {
  const auto write = [&](const std::string& name) {
    OwnedTensor scalar = OwnedTensor::allocate(DType::i64, {});
    scalar.as<int64_t>()[0] = -5;
    write_safetensors(path(name),
                      {floats("z", {1, 2, 3}), floats("a\"\n\xc3\xa9", {4}), to_write("s", scalar),
                       to_write("empty", OwnedTensor::allocate(DType::f16, {0, 4}))},
                      {{"note", "x"}});
  };
  write("1.safetensors");
  write("2.safetensors");
  const std::string bytes = read_text_file(path("1.safetensors"));
  EXPECT_EQ(bytes, read_text_file(path("2.safetensors")));
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  EXPECT_EQ(header % 8, 0u);
  EXPECT_TRUE(bytes.substr(8).starts_with(
      R"({"__metadata__":{"format":"pt","note":"x"},"z":{"dtype":"F32","shape":[3],"data_offsets":[0,12]})"));
  const auto f = Safetensors::open(path("1.safetensors"));
  EXPECT_THAT(f.get("z").as<float>(), testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(f.get("a\"\n\xc3\xa9").as<float>(), testing::ElementsAre(4));
  EXPECT_EQ(f.get("s", DType::i64, {}).as<int64_t>()[0], -5);
  EXPECT_EQ(f.get("empty").view.shape, (Shape{0, 4}));
  EXPECT_EQ(f.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"note", "x"}}));
}

TEST_F(SafetensorsTest, FailedWritesLeaveNothing) {
  const auto produce = [](size_t n) {
    return [n](const ByteSink& sink) {
      for (size_t i = 0; i < n; ++i) sink(std::as_bytes(std::span("x", 1)));
    };
  };
  const auto fails = [&](const std::vector<TensorToWrite>& tensors, const char* reason,
                         std::map<std::string, std::string> metadata = {}) {
    EXPECT_THAT([&] { write_safetensors(path("x.safetensors"), tensors, metadata); },
                testing::ThrowsMessage<Error>(HasSubstr(reason)));
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
  };
  fails({{"a", DType::u8, {4}, produce(3)}}, "\"a\" of 4 bytes was given 3");
  fails({{"a", DType::u8, {4}, produce(5)}}, "\"a\" of 4 bytes was given 5");
  fails({floats("a", {1}), floats("a", {1})}, "the name is taken");
  fails({floats("__metadata__", {1})}, "the name is taken");
  fails({{"a", DType::u8, {-1}, produce(0)}}, "shape [-1]");
  fails({floats("\xff", {1})}, "UTF-8");
  fails({}, "must be \"pt\"", {{"format", "tf"}});
  EXPECT_THROW(write_safetensors(path("none/x.safetensors"), {}), Error);
}

TEST_F(SafetensorsTest, ShardsAndTheirIndex) {
  const std::vector<TensorToWrite> tensors = {floats("a", {1, 2}), floats("b", {3}), floats("c", {4, 5, 6, 7}),
                                              floats("d", {8})};
  write_sharded_safetensors(folder_, tensors, 12, {{"k", "v"}});
  EXPECT_TRUE(std::filesystem::exists(path("model-00001-of-00003.safetensors")));
  const auto f = Safetensors::open(folder_);
  EXPECT_EQ(f.files().size(), 3u);
  EXPECT_EQ(f.names(), (std::vector<std::string>{"a", "b", "c", "d"}));
  EXPECT_EQ(f.get("c").as<float>()[3], 7.0f);
  EXPECT_EQ(f.metadata().at("k"), "v");
  EXPECT_THAT(read_text_file(path("model.safetensors.index.json")), HasSubstr("\"total_size\": 32"));
  EXPECT_THAT([&] { write_sharded_safetensors(folder_, tensors, 12); },
              testing::ThrowsMessage<Error>(HasSubstr("already")));
  // One file is written over the shards, whose index is left behind.
  write_safetensors(path("model.safetensors"), {floats("new", {9})});
  EXPECT_EQ(Safetensors::open(folder_).names(), std::vector<std::string>{"new"});
  std::filesystem::remove(path("model.safetensors"));
  std::filesystem::remove(path("model.safetensors.index.json"));
  EXPECT_EQ(Safetensors::open(folder_).names().size(), 4u);  // Without an index all files are read.
  std::filesystem::create_directories(path("one"));
  write_sharded_safetensors(path("one"), tensors, 1000);
  EXPECT_EQ(Safetensors::open(path("one")).files(), (std::vector<std::string>{path("one/model.safetensors")}));
}

TEST_F(SafetensorsTest, RefusesBrokenFolders) {
  refused(folder_, "no *.safetensors file");
  refused(path("nowhere"), "cannot open");
  write_safetensors(path("s1.safetensors"), {floats("a", {1})});
  write_safetensors(path("s2.safetensors"), {floats("b", {1})});
  const auto index = [&](const std::string& json) { return put("model.safetensors.index.json", json), folder_; };
  EXPECT_EQ(message(index(R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})")), "accepted");
  refused(index(R"({"weight_map":{"a":"s3.safetensors"}})"), "shard s3.safetensors, which is missing");
  refused(index(R"({"weight_map":{"a":"s1.safetensors","c":"s2.safetensors"}})"),
          "s2.safetensors: lacks the tensor \"c\"");
  refused(index(R"({"weight_map":{"a":"s2.safetensors","b":"s1.safetensors"}})"), "lacks the tensor \"a\"");
  refused(index(R"({"weight_map":{"a":"s1.safetensors","a":"s1.safetensors"}})"), "\"a\" stands twice");
  refused(index(R"({"weight_map":{}})"), "weight_map");
  refused(index(R"({"weight_map":{"a":1}})"), "expected a file name");
  refused(index(R"({})"), "\"weight_map\" is missing");
  refused(index("[]"), "expected a JSON object");
  refused(index("nonsense"), "not valid JSON");
  for (const char* bad : {"../s1.safetensors", "/etc/passwd", "..", "", "x/s1.safetensors", "s1\\u0000.safetensors"})
    refused(index(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", bad)), "in the same folder");
  write_safetensors(path("s2.safetensors"), {floats("a", {1})});
  refused(index(R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})"), "\"a\" is both in");
}

// A valid file is edited at random. It is either refused with an Error, or every tensor lies inside the file.
TEST_F(SafetensorsTest, MutatedFilesAreRefusedOrSafe) {
  write_safetensors(path("seed.safetensors"),
                    {floats("w", {1, 2, 3}), floats("x", {4}), to_write("e", OwnedTensor::allocate(DType::u8, {0}))});
  const std::string seed = read_text_file(path("seed.safetensors"));
  const std::string splice[] = {"-",    "9",       "99999999999999999999", "[", "{", "\"", ",", "\"w\":", "F64", "BOOL",
                                "null", "\\u0000", "4294967296,",          " "};
  int refused = 0, accepted = 0;
  for (uint64_t round = 0; round < 4000; ++round) {
    Rng rng(3, round);
    std::string bytes = seed;
    for (uint64_t edits = 1 + rng.below(3); edits > 0; --edits) {
      const size_t at = rng.below(bytes.size());
      switch (rng.below(5)) {
        case 0:
          bytes[at] = static_cast<char>(rng.below(256));
          break;
        case 1:
          bytes[at] ^= static_cast<char>(1 << rng.below(8));
          break;
        case 2:
          bytes.erase(at, 1 + rng.below(8));
          break;
        case 3:
          bytes.resize(at);
          break;
        default: {
          const std::string& piece = splice[rng.below(std::size(splice))];
          bytes.replace(at, std::min(piece.size(), bytes.size() - at), piece);
        }
      }
      if (bytes.empty()) break;
    }
    put("m.safetensors", bytes);
    try {
      const auto f = Safetensors::open(path("m.safetensors"));
      uint64_t sum = 0;
      for (const auto& name : f.names()) {
        const OwnedTensor t = f.get(name);
        ASSERT_LE(t.view.bytes(), static_cast<int64_t>(bytes.size()));
        for (int64_t i = 0; i < t.view.bytes(); ++i) sum += static_cast<uint64_t>(t.view.data[i]);
      }
      ++accepted;
      ASSERT_LT(sum, 256 * bytes.size());
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);  // The edits reach both outcomes.
  EXPECT_GT(accepted, 20);
}

TEST(SafetensorsFiles, BundledModels) {
  const auto large = Safetensors::open(FIDELIO_SOURCE_DIR "/models/quill-26m");
  EXPECT_EQ(large.files().size(), 4u);
  // Qwen3 has 11 tensors a layer, the embedding and the final norm; its head is tied.
  EXPECT_EQ(large.names().size(), 8u * 11 + 2);
  EXPECT_EQ(large.get("model.embed_tokens.weight", DType::bf16, {8192, 512}).view.bytes(), 8192 * 512 * 2);
  EXPECT_EQ(large.get("model.layers.7.self_attn.q_norm.weight").view.shape, Shape{64});
  int64_t bytes = 0;
  for (const auto& name : large.names()) bytes += large.get(name).view.bytes();
  EXPECT_EQ(bytes, 52448256);  // This is the total_size of its index.
  EXPECT_GT(large.file_bytes(), bytes);
  const auto small = Safetensors::open(FIDELIO_SOURCE_DIR "/models/quill-1m/model.safetensors");
  EXPECT_EQ(small.names().size(), 4u * 9 + 3);
  EXPECT_EQ(small.metadata().at("format"), "pt");
}

}  // namespace
}  // namespace fidelio
