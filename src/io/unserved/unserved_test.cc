// These tests check the messages for people whose model cannot be served here.
#include "io/unserved/unserved.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "arch/model_config.h"
#include "core/error.h"
#include "io/hf_config.h"
#include "io/model_source.h"

namespace fidelio {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string refusal_of_config(const std::string& config) {
  try {
    parse_config(config, "m/config.json");
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

// The class, the model_type and GGUF's name of a model lead to the same row.
TEST(Unserved, ModelsAreKnownByEachOfTheirNames) {
  const auto about = [](const char* name) { return about_unserved_model(name, "those"); };
  for (const char* name : {"DbrxForCausalLM", "dbrx", "DBRX"}) {
    EXPECT_EQ(about(name), about("dbrx")) << name;
    EXPECT_THAT(about(name), AllOf(HasSubstr("design of its own"), HasSubstr("The nearest that works: Qwen3-30B-A3B"),
                                   HasSubstr("CONTRIBUTING.md")));
  }
  const std::pair<const char*, const char*> names[] = {{"Qwen4ExpForConditionalGeneration", "n-grams"},
                                                       {"DeepseekV3ForCausalLM", "latent"},
                                                       {"deepseek2", "latent"},
                                                       {"deepseek", "GLM-4.5-Air"},
                                                       {"Gemma3nForConditionalGeneration", "AltUp"},
                                                       {"Gemma2ForCausalLM", "caps"},
                                                       {"GemmaForCausalLM", "another design"},
                                                       {"gemma4_assistant", "Gemma4ForCausalLM"},
                                                       {"Glm4MoeLiteForCausalLM", "latent"},
                                                       {"GlmMoeDsaForCausalLM", "a part of the positions"},
                                                       {"Glm4vMoeForConditionalGeneration", "sees images"},
                                                       {"Glm4ForCausalLM", "half of each head"},
                                                       {"MiniMaxM1ForCausalLM", "lightning attention"},
                                                       {"Llama4ForConditionalGeneration", "Llama 3.3"},
                                                       {"PhiMoEForCausalLM", "Phi-3.5-MoE"},
                                                       {"PhiForCausalLM", "Phi-4"},
                                                       {"MambaForCausalLM", "recurrent"},
                                                       {"FalconH1ForCausalLM", "Mamba"},
                                                       {"FalconForCausalLM", "Falcon 3"},
                                                       {"FalconMambaForCausalLM", "no attention"},
                                                       {"NemotronHForCausalLM", "squared ReLU"},
                                                       {"OlmoHybridForCausalLM", "Qwen3.5"},
                                                       {"KimiLinearForCausalLM", "latent"},
                                                       {"Lfm2ForCausalLM", "short convolutions"},
                                                       {"lfm2moe", "short convolutions"},
                                                       {"Mamba2ForCausalLM", "recurrent"},
                                                       {"Cohere2ForCausalLM", "side by side"},
                                                       {"NemotronForCausalLM", "squared ReLU"},
                                                       {"JambaForCausalLM", "Mamba layers"},
                                                       {"Dots1ForCausalLM", "GLM-4.5-Air"},
                                                       {"CohereForCausalLM", "side by side"},
                                                       {"command-r", "side by side"},
                                                       {"GPTNeoXForCausalLM", "LayerNorm"},
                                                       {"GPT2LMHeadModel", "LayerNorm"},
                                                       {"BertModel", "encoder"},
                                                       {"T5ForConditionalGeneration", "beside its decoder"},
                                                       {"ViTForImageClassification", "no text"},
                                                       {"LlavaForConditionalGeneration", "sees images"},
                                                       {"OlmoForCausalLM", "OLMo 2"},
                                                       {"Starcoder2ForCausalLM", "Qwen2.5-Coder"},
                                                       {"granitemoehybrid", "Granite 3.3"},
                                                       {"GraniteMoeSharedForCausalLM", "3.1-MoE"},
                                                       {"LLaDAModelLM", "diffusion"}};
  for (const auto& [name, says] : names) EXPECT_THAT(about(name), HasSubstr(says)) << name;
  for (const char* later : {"Qwen9ForCausalLM", "qwen9", "falcon9", "olmo9", "phi9"})
    EXPECT_THAT(about(later), HasSubstr("supported are those")) << later;
  EXPECT_EQ(about("NovelForCausalLM"),
            "; supported are those; CONTRIBUTING.md (\"A model family\") says how to add one");
}

// A row that begins like the name of a supported family would be shown for a model that can be read.
TEST(Unserved, NoSupportedFamilyIsTakenForAnother) {
  for (const Family& family : families()) {
    const std::string config = R"({"architectures":[")" + std::string(family.class_name) + R"("],"model_type":")" +
                               std::string(family.model_type) + "\"}";
    EXPECT_THAT(refusal_of_config(config), Not(HasSubstr("not supported"))) << family.class_name;
  }
}

TEST(Unserved, ConfigsAreRefusedWithIt) {
  EXPECT_THAT(
      refusal_of_config(R"({"architectures":["DbrxForCausalLM"],"model_type":"dbrx"})"),
      AllOf(HasSubstr("m/config.json: architecture DbrxForCausalLM is not supported: it is a mixture of experts"),
            HasSubstr("nearest that works: Qwen3")));
  // The class has an unknown name, and the family is recognised by its type.
  EXPECT_THAT(refusal_of_config(R"({"architectures":["OwnForCausalLM"],"model_type":"deepseek_v2"})"),
              AllOf(HasSubstr("OwnForCausalLM"), HasSubstr("latent attention")));
  EXPECT_THAT(refusal_of_config(R"({"architectures":["LlamaForSequenceClassification"],"model_type":"llama"})"),
              AllOf(HasSubstr("is a llama that does not end in a head"), HasSubstr("Supported is LlamaForCausalLM")));
}

TEST(Unserved, QuantisersAreNamedWithWhatToDo) {
  const auto refusal = [](const std::string& quantisation) {
    return refusal_of_config(R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",)" + quantisation + "}");
  };
  const auto by = [&](const std::string& method) {
    return refusal(R"("quantization_config":{"quant_method":")" + method + "\"}");
  };
  const std::pair<const char*, const char*> methods[] = {{"ptpc_fp8", "quantize --format fp8"},
                                                         {"mxfp4", "gpt-oss"},
                                                         {"exl2", "exllama"},
                                                         {"exl3", "exllama"},
                                                         {"hqq", "axis"},
                                                         {"aqlm", "codebook"},
                                                         {"quip", "codebook"},
                                                         {"torchao", "tensors of its own"},
                                                         {"quark", "tensors of its own"},
                                                         {"gguf", ".gguf file itself"},
                                                         {"auto-round", "auto_gptq"},
                                                         {"marlin", "plain GPTQ"},
                                                         {"unheard-of", "the repository it was made from"}};
  for (const auto& [method, says] : methods)
    EXPECT_THAT(by(method), AllOf(HasSubstr(std::string("quantised already, by ") + method), HasSubstr(says),
                                  HasSubstr("Read are gptq, awq, compressed-tensors, fp8, fbgemm_fp8, modelopt, "
                                            "bitsandbytes in 4 bits, mxfp4 of gpt-oss, and GGUF")));
  // MLX writes the same object twice, without a method.
  EXPECT_THAT(refusal(R"("quantization":{"group_size":64,"bits":4},"quantization_config":{"group_size":64,"bits":4})"),
              AllOf(HasSubstr("by mlx"), HasSubstr("MLX's")));
  EXPECT_THAT(refusal(R"("quantization":{"group_size":64,"bits":4})"), HasSubstr("by mlx (key \"quantization\")"));
}

class UnservedFolder : public testing::Test {
 protected:
  UnservedFolder() { fs::remove_all(folder_), fs::create_directories(folder_); }
  ~UnservedFolder() override { fs::remove_all(folder_); }
  void put(const std::string& name, const std::string& text = "") const { std::ofstream(folder_ + "/" + name) << text; }
  std::string message() const {
    try {
      open_model_source(folder_);
    } catch (const Error& e) {
      return e.what();
    }
    return "opened";
  }
  const std::string folder_ = FIDELIO_BINARY_DIR "/io_test_unserved";
};

constexpr const char* kSmallLlama =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":64,"intermediate_size":96,
        "num_hidden_layers":1,"num_attention_heads":4,"vocab_size":8})";

TEST_F(UnservedFolder, OtherProgramsWeightsAreNamedWithTheirRemedy) {
  put("config.json", kSmallLlama);
  EXPECT_THAT(message(), HasSubstr("its weights are missing"));
  const std::pair<const char*, const char*> files[] = {{"pytorch_model-00001-of-00002.bin", "save_pretrained"},
                                                       {"consolidated.safetensors", "Mistral's own code"},
                                                       {"consolidated.00.pth", "Meta's own code"},
                                                       {"model.pth", "save_pretrained"},
                                                       {"weights.npz", "MLX"},
                                                       {"model.onnx", "ONNX"},
                                                       {"flax_model.msgpack", "Flax"},
                                                       {"tf_model.h5", "TensorFlow"},
                                                       {"adapter_model.safetensors", "merge it"}};
  for (const auto& [name, says] : files) {
    put(name);
    EXPECT_THAT(message(),
                AllOf(HasSubstr("no *.safetensors file"), HasSubstr(std::string("it holds ") + name), HasSubstr(says)));
    fs::remove(folder_ + "/" + name);
  }
}

TEST_F(UnservedFolder, AFolderWithoutConfigSaysWhatItIs) {
  EXPECT_THAT(message(), AllOf(HasSubstr("is no model's folder"), Not(HasSubstr(";"))));
  put("adapter_config.json");
  put("adapter_model.safetensors");
  EXPECT_THAT(message(), HasSubstr("a LoRA adapter; merge it"));
  fs::remove(folder_ + "/adapter_model.safetensors");
  put("model_index.json");
  EXPECT_THAT(message(), HasSubstr("diffusion"));
  fs::remove(folder_ + "/model_index.json");
  fs::create_directories(folder_ + "/snapshot");
  put("snapshot/config.json", "{}");
  EXPECT_THAT(message(), HasSubstr("a model is in " + folder_ + "/snapshot; give that"));
}

}  // namespace
}  // namespace fidelio
