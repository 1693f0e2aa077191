#include "io/left_out.h"

#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/test_support.h"
#include "io/checkpoint.h"

namespace fidelio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// This is a tiny model with biases that its config.json does not mention.
TEST(LeftOut, BiasesThatAConfigDoesNotNameAreNamed) {
  const std::string model = FIDELIO_SOURCE_DIR "/tests/models/linear_rope";
  EXPECT_THAT(Checkpoint::open(model).notes(), IsEmpty());
  const ScratchFolder scratch;
  const std::string folder = scratch.path() + "/model";
  std::filesystem::copy(model, folder);
  nlohmann::json config = nlohmann::json::parse(read_text_file(model + "/config.json"));
  config.erase("attention_bias");
  write_file_atomically(folder + "/config.json", config.dump());
  EXPECT_THAT(Checkpoint::open(folder).notes(),
              ElementsAre(HasSubstr("8 tensors are no part of the model that its config.json describes")));

  // Zeros, which writers of GPTQ put everywhere, are not missed, nor are buffers and further layers.
  const Safetensors files = Safetensors::open(model);
  const OwnedTensor zeros = OwnedTensor::allocate(DType::bf16, {64});
  std::memset(zeros.view.data, 0, static_cast<size_t>(zeros.view.bytes()));
  std::vector<TensorToWrite> tensors;
  for (const std::string& name : files.names())
    tensors.push_back(
        to_write(name, name.find("self_attn") != name.npos && name.ends_with("bias") ? zeros : files.get(name)));
  for (const char* name : {"model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.2.mlp.up_proj.weight"})
    tensors.push_back(to_write(name, zeros));
  write_safetensors(folder + "/model.safetensors", tensors);
  EXPECT_THAT(Checkpoint::open(folder).notes(), IsEmpty());
}

// The file of a model that sees images has a vision tower, and this one a part of a block that predicts further tokens.
TEST(LeftOut, PartsBesideTheTextModelAreNamed) {
  EXPECT_THAT(
      Checkpoint::open(FIDELIO_SOURCE_DIR "/tests/models/qwen3_5_image").notes(),
      ElementsAre("the part that sees images (0.0 kB) is left out: text is the same without it",
                  "the part that predicts further tokens (mtp) (0.0 kB) is left out: text is the same without it"));
}

}  // namespace
}  // namespace fidelio
