#include "io/identity/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "io/checkpoint.h"

namespace fidelio {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

class Identity : public testing::Test {
 protected:
  Identity() { write("models/quill-1m"); }
  ~Identity() override { fs::remove_all(folder_); }

  void write(const std::string& model) const {
    fs::remove_all(folder_);
    const Checkpoint source = Checkpoint::open(FIDELIO_SOURCE_DIR "/" + model);
    write_checkpoint(
        folder_, source, {}, [&](LinearId id) { return source.linear(id); }, nlohmann::json::object());
  }
  void flip_a_bit_of(const std::string& tensor) const {
    const std::string file = folder_ + "/model.safetensors";
    std::string bytes = read_text_file(file);
    const nlohmann::json header =
        nlohmann::json::parse(bytes.substr(8, *reinterpret_cast<const uint64_t*>(bytes.data())));
    const uint64_t data = 8 + *reinterpret_cast<const uint64_t*>(bytes.data());
    bytes[data + header.at(tensor).at("data_offsets")[0].get<uint64_t>()] ^= 1;
    fs::remove(file);
    write_file_atomically(file, bytes);
  }
  ChangedSinceWritten changed(const std::string& path) const { return changed_since_written(Checkpoint::open(path)); }
  // Replaces a text in a file by another of the same length.
  void replace(const std::string& file, const std::string& what, const std::string& with) const {
    std::string bytes = read_text_file(folder_ + "/" + file);
    const size_t at = bytes.find(what);
    ASSERT_NE(at, bytes.npos) << file << " holds no " << what;
    fs::remove(folder_ + "/" + file);
    write_file_atomically(folder_ + "/" + file, bytes.replace(at, what.size(), with));
  }
  const std::string folder_ = testing::TempDir() + "identity_test";
};

TEST_F(Identity, NothingDiffersInWhatWasWritten) {
  EXPECT_THAT(changed(folder_).weights, IsEmpty());
  EXPECT_THAT(changed(folder_).files, IsEmpty());
  const Checkpoint made = Checkpoint::open(folder_);
  EXPECT_THAT(made.written().files, testing::SizeIs(testing::Ge(3u)));
  EXPECT_EQ(made.written().tensors.size(), made.tensor_hashes().size() * kTensorDigits);
}

TEST_F(Identity, AChangedTensorIsNamed) {
  flip_a_bit_of("model.norm.weight");
  EXPECT_EQ(changed(folder_).weights, "tensor model.norm.weight was changed");
  EXPECT_THAT(changed(folder_).files, IsEmpty());
}

// The tensors that a delta net has besides linears are part of the model.
TEST_F(Identity, ATensorThatIsNeverQuantisedIsNamedToo) {
  for (const std::string tensor : {"A_log", "dt_bias", "conv1d.weight", "in_proj_b.weight", "in_proj_a.weight"}) {
    write("tests/models/qwen3_next");
    flip_a_bit_of("model.layers.1.linear_attn." + tensor);
    EXPECT_EQ(changed(folder_).weights, "tensor model.layers.1.linear_attn." + tensor + " was changed");
  }
}

TEST_F(Identity, AChangedFileIsNamed) {
  const std::string config = read_text_file(folder_ + "/config.json");
  replace("config.json", "\"rms_norm_eps\": 1e-0", "\"rms_norm_eps\": 3e-0");
  EXPECT_EQ(changed(folder_).files, "config.json was changed");
  write_file_atomically(folder_ + "/config.json", config);
  // The layout of the file and the program that wrote it do not matter to the model.
  nlohmann::json same = nlohmann::json::parse(config);
  same["transformers_version"] = "9.9";
  write_file_atomically(folder_ + "/config.json", same.dump());
  EXPECT_THAT(changed(folder_).files, IsEmpty());
  write_file_atomically(folder_ + "/chat_template.jinja", "{{ messages }}");
  EXPECT_THAT(changed(folder_).files, HasSubstr("chat_template.jinja was "));
  write_file_atomically(folder_ + "/merges.txt", "a b\n");
  fs::remove(folder_ + "/tokenizer_config.json");
  EXPECT_THAT(changed(folder_).files,
              AllOf(HasSubstr("tokenizer_config.json was removed"), HasSubstr("merges.txt was added")));
}

}  // namespace
}  // namespace fidelio
