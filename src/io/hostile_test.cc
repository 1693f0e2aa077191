// These tests check what a stranger's model folder can do: nested JSON in its files, links out of it, pipes
// (core/test_support.h).
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <limits>

#include "core/test_support.h"
#include "formats/finite.h"
#include "io/checkpoint.h"
#include "io/export/gguf.h"
#include "io/hf_config.h"
#include "io/model_source.h"
#include "io/safetensors.h"

namespace fidelio {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class HostileFolder : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "fidelio-io-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    fs::create_directories(folder_ / "model");
    fs::create_directories(folder_ / "out");
    write_file_atomically((folder_ / "secret").string(), "private");
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string operator/(const std::string& name) const { return (folder_ / name).string(); }
  std::string copied(const std::string& from) const {
    return message_of_hostile(0, [&] { copy_companions((folder_ / from).string(), (folder_ / "out").string()); });
  }
  fs::path folder_;
};

TEST_F(HostileFolder, LinksOutOfItAreNotCopied) {
  fs::create_symlink("../secret", folder_ / "model/vocab.json");
  EXPECT_THAT(copied("model"), HasSubstr("vocab.json is a link to"));
  EXPECT_TRUE(fs::is_empty(folder_ / "out"));
  fs::remove(folder_ / "model/vocab.json");
  fs::create_symlink(folder_ / "secret", folder_ / "model/inner");
  fs::create_symlink("inner", folder_ / "model/vocab.json");  // It leaves the folder through a link inside.
  EXPECT_THAT(copied("model"), HasSubstr("outside"));
  fs::remove(folder_ / "model/inner");
  write_file_atomically(*this / "model/inner", "own");
  EXPECT_EQ(copied("model"), "");
  EXPECT_EQ(read_text_file(*this / "out/vocab.json"), "own");
  fs::create_symlink("model", folder_ / "other");  // The folder itself may be reached by a link.
  EXPECT_EQ(copied("other"), "");
}

TEST_F(HostileFolder, LinksOfAHuggingFaceCacheAreFollowedIntoItsBlobs) {
  fs::create_directories(folder_ / "models--a--b/snapshots/123");
  fs::create_directories(folder_ / "models--a--b/blobs");
  write_file_atomically(*this / "models--a--b/blobs/456", "merges");
  fs::create_symlink("../../blobs/456", folder_ / "models--a--b/snapshots/123/merges.txt");
  EXPECT_EQ(copied("models--a--b/snapshots/123"), "");
  EXPECT_EQ(read_text_file(*this / "out/merges.txt"), "merges");
  fs::create_symlink("../../../secret", folder_ / "models--a--b/snapshots/123/vocab.json");
  EXPECT_THAT(copied("models--a--b/snapshots/123"), HasSubstr("outside"));
}

TEST_F(HostileFolder, PipesAreRefused) {
  ASSERT_EQ(::mkfifo((folder_ / "model/config.json").c_str(), 0600), 0);
  ASSERT_EQ(::mkfifo((folder_ / "model/merges.txt").c_str(), 0600), 0);
  EXPECT_THAT(message_of_hostile(0, [&] { Checkpoint::open(*this / "model"); }), HasSubstr("not a regular file"));
  EXPECT_THAT(copied("model"), HasSubstr("not a regular file"));
}

TEST_F(HostileFolder, NestedJsonIsRefused) {
  for (size_t depth : {40'000u, 300'000u}) {
    const std::string nest = repeated("[", depth) + repeated("]", depth);
    EXPECT_THAT(message_of_hostile(nest.size(), [&] { parse_config("{\"a\": " + nest + "}", "config.json"); }),
                HasSubstr("nested"));
    std::string header = "{\"__metadata__\": {\"a\": " + nest + "}}";
    const uint64_t length = header.size();
    header.insert(0, reinterpret_cast<const char*>(&length), 8);
    write_file_atomically(*this / "deep.safetensors", header);
    EXPECT_THAT(message_of_hostile(header.size(), [&] { Safetensors::open(*this / "deep.safetensors"); }),
                HasSubstr("nested"));
    // This nests JSON in the metadata, which is a text to the header.
    for (const auto& item : fs::directory_iterator(FIDELIO_SOURCE_DIR "/models/quill-1m"))
      if (item.path().extension() != ".safetensors")
        fs::copy_file(item.path(), folder_ / "model" / item.path().filename(), fs::copy_options::overwrite_existing);
    fs::remove(folder_ / "model/model.safetensors");
    write_safetensors(*this / "model/model.safetensors", {},
                      {{"fidelio", "{\"formats\": {}, \"provenance\": " + nest + "}"}});
    EXPECT_THAT(message_of_hostile(nest.size(), [&] { Checkpoint::open(*this / "model"); }), HasSubstr("nested"));
  }
}

TEST(Finite, TheFirstOfAnyKindIsFoundAnywhere) {
  for (int64_t at : {0, 1, 4095, 4096, 9999}) {
    OwnedTensor f = OwnedTensor::allocate(DType::f32, {10'000}), h = OwnedTensor::allocate(DType::f16, {10'000}),
                b = OwnedTensor::allocate(DType::bf16, {10'000});
    EXPECT_EQ(first_not_finite(f.view), -1);
    const auto place = static_cast<size_t>(at);
    f.as<float>()[place] = -std::numeric_limits<float>::infinity();
    h.as<f16>()[place].bits = 0x7e00, b.as<bf16>()[place].bits = 0xffc0;
    for (const OwnedTensor* t : {&f, &h, &b}) EXPECT_EQ(first_not_finite(t->view), at);
    f.as<float>()[place] = std::numeric_limits<float>::max();
    h.as<f16>()[place].bits = 0xfbff, b.as<bf16>()[place].bits = 0x7f7f;
    for (const OwnedTensor* t : {&f, &h, &b}) EXPECT_EQ(first_not_finite(t->view), -1);
  }
}

// 100,000 tensors or keys that nothing needs cost only as much as their bytes.
TEST_F(HostileFolder, ManyTensorsTakeTimeByTheirNumber) {
  constexpr int kMany = 100'000;
  std::string header = "{";
  for (int i = 0; i < kMany; ++i)
    header +=
        fmt::format("{}\"t{}\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[{},{}]}}", i ? "," : "", i, i, i + 1);
  header += "}";
  const auto size = static_cast<uint64_t>(header.size());
  const std::string whole = std::string(reinterpret_cast<const char*>(&size), 8) + header + std::string(kMany, '\0');
  write_file_atomically(*this / "model/model.safetensors", whole);
  EXPECT_EQ(message_of_hostile(2 * whole.size(),
                               [&] { EXPECT_EQ(Safetensors::open(*this / "model").names().size(), size_t{kMany}); }),
            "");
}

TEST_F(HostileFolder, ManyKeysOfGgufTakeTimeByTheirNumber) {
  constexpr int kMany = 300'000;
  exporting::GgufKeys keys;
  keys.put_string("general.architecture", "llama");
  for (int i = 0; i < kMany; ++i) keys.put_u32(fmt::format("llama.key{}", i), 1);
  std::string whole = "GGUF";
  exporting::append_u32(whole, 3);
  exporting::append_u64(whole, 0);
  exporting::append_u64(whole, keys.count());
  whole += keys.bytes();
  write_file_atomically(*this / "many.gguf", whole);
  EXPECT_THAT(message_of_hostile(whole.size(), [&] { open_model_source(*this / "many.gguf"); }),
              HasSubstr("many.gguf"));
}

}  // namespace
}  // namespace fidelio
