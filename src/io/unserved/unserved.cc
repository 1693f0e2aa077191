#include "io/unserved/unserved.h"

#include <fmt/format.h>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <span>
#include <system_error>
#include <vector>

namespace fidelio {
namespace {

namespace fs = std::filesystem;

// Names are compared in lower case and without "_", "-", "." and blanks, so Qwen4ExpForCausalLM, qwen4_exp and
// qwen4exp begin alike.
std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)))
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return plain;
}

constexpr std::string_view kSmall = "Qwen2.5 (0.5B to 72B), SmolLM2 or Llama 3.2";
constexpr std::string_view kMixture = "Qwen3-30B-A3B (Qwen3MoeForCausalLM) or Mixtral";
constexpr std::string_view kShared = "GLM-4.5-Air (Glm4MoeForCausalLM) or Qwen3-30B-A3B (Qwen3MoeForCausalLM)";
constexpr std::string_view kDelta = "Qwen3.5 (Qwen3_5ForCausalLM) or Qwen3-Next (Qwen3NextForCausalLM)";

struct Unserved {
  // These are beginnings of plain names, separated by blanks; one that ends in $ is a whole name. If several rows
  // match, the longest counts.
  std::string_view begins;
  std::string_view what;     // It follows "it".
  std::string_view nearest;  // It follows "The nearest that works:".
};

constexpr Unserved kModels[] = {
    {"qwen4exp", "keeps four streams, looks up n-grams and attends sparsely",
     "Qwen3.5, dense (Qwen3_5ForCausalLM) or mixtures (Qwen3_5MoeForCausalLM)"},
    {"qwen3vlmoe", "sees images and has experts", "Qwen3-VL without experts (its text model is read) or Qwen3-30B-A3B"},
    {"qwen2vl qwen25vl qwen3vl", "is a GGUF file of a model that sees images",
     "its Hugging Face folder, whose text model is read"},
    {"qwen3omni qwen25omni qwen2audio", "hears, sees or speaks", "Qwen3 or Qwen2.5 of the same size"},
    {"qwen$ qwenlm", "is the first Qwen, whose code came with its weights", "Qwen2.5 or Qwen3"},
    {"gemma4assistant gemma4unifiedassistant", "is a drafter, which reads what a larger model keeps",
     "the larger model (Gemma4ForCausalLM)"},
    {"gemma3n", "has embeddings in every layer and keeps several streams (AltUp)", "Gemma 4 (Gemma4ForCausalLM)"},
    {"gemma2", "caps its scores and logits", "Gemma 3 (Gemma3ForCausalLM)"},
    {"gemma t5gemma recurrentgemma codegemma", "is a Gemma of another design than the third",
     "Gemma 3 (Gemma3ForCausalLM)"},
    {"deepseekv2 deepseekv3 deepseekv32 deepseekv4 deepseek2 deepseek32 deepseek4 kimik2 kimik25 kimivl longcat",
     "has multi-head latent attention",
     "GLM-4.5-Air (Glm4MoeForCausalLM) or DeepSeek's distilled models (DeepSeek-R1-Distill-Qwen and -Llama)"},
    {"deepseek", "has code of its own, with shared experts under other names than those that are read", kShared},
    {"glm4moelite glm47flash", "has multi-head latent attention", kShared},
    {"glmmoedsa glmdsa glm5", "has multi-head latent attention that reads a part of the positions", kShared},
    {"glm4vmoe glm4v", "sees images, and its text model is not read from within", kShared},
    {"glm chatglm", "turns half of each head in pairs of neighbours", "Qwen3"},
    {"minimax", "has layers of lightning attention or sees images", "MiniMax-M2 (MiniMaxM2ForCausalLM)"},
    {"llama4", "attends in chunks and scales what experts read", "Llama 3.3 (LlamaForCausalLM) or Mixtral"},
    {"mllama", "sees images by layers of their own", "Llama 3.1 or 3.2 without images (LlamaForCausalLM)"},
    {"phimoe", "is Phi-3.5-MoE, whose router and norms are its own", "Phi-3.5-mini or Phi-4 (Phi3ForCausalLM)"},
    {"phi4mm phi4multimodal phi3v", "sees or hears", "Phi-4-mini or Phi-3.5-mini (Phi3ForCausalLM)"},
    {"phi$ phifor phi2 phi3small phimsft mixformer", "is a Phi before the third or a small Phi-3, of another design",
     "Phi-3.5-mini or Phi-4 (Phi3ForCausalLM)"},
    {"mamba falconmamba rwkv arwkv xlstm", "is recurrent and has no attention", kSmall},
    {"falconh1", "has Mamba layers beside attention", "Falcon 3 (LlamaForCausalLM)"},
    {"granitemoehybrid granitehybrid",
     "has Mamba layers beside attention, or a shared expert whose gate and up are one",
     "Granite 3.3 (GraniteForCausalLM) or 3.1-MoE"},
    {"granitemoeshared", "has a shared expert whose gate and up are one matrix",
     "Granite 3.1-MoE (GraniteMoeForCausalLM)"},
    {"jamba bamba zamba plamo2 plamo3 hymba", "has Mamba layers, which are recurrent, beside attention", kDelta},
    {"nemotronh", "has Mamba layers, which are recurrent, beside attention, and a squared ReLU in its MLPs", kDelta},
    {"lfm2", "has layers of short convolutions, with a gate, in place of attention", kDelta},
    {"kimilinear", "has delta nets whose decay differs from column to column, and multi-head latent attention", kDelta},
    {"olmohybrid", "has delta nets that are normed and projected in a way of their own", kDelta},
    {"nemotronnas decilm deci", "has layers that differ in shape or are left out",
     "Llama 3.1 or 3.3 (LlamaForCausalLM)"},
    {"nemotron", "has a squared ReLU in place of a gated MLP", "Llama 3.1 (LlamaForCausalLM)"},
    {"cohere commandr command", "has layers whose attention and MLP stand side by side behind one LayerNorm",
     "Mistral-Small (MistralForCausalLM)"},
    {"falcon$ falconfor refinedweb rwfor", "is Falcon 1 or 2, whose attention and MLP stand side by side",
     "Falcon 3 (LlamaForCausalLM)"},
    {"gptneox gptneo gptj gpt2 gptbigcode codegen opt$ optfor bloom mpt xglm biogpt persimmon openaigpt codeshell",
     "is of an older design: LayerNorm, an MLP without a gate, often learned positions", kSmall},
    {"starcoder stablecode", "is of an older design: LayerNorm and an MLP without a gate", "Qwen2.5-Coder"},
    {"stablelm", "has LayerNorm and turns a part of each head", kSmall},
    {"olmo$ olmofor", "is the first OLMo, whose norms have no weights", "OLMo 2 (Olmo2ForCausalLM)"},
    {"flexolmo", "is a mixture made of OLMo 2 models", "OLMo 2 (Olmo2ForCausalLM) or OLMoE"},
    {"mistral3 ministral3 ministral", "is read as a Hugging Face folder alone", "that folder"},
    {"internlm baichuan xverse orion aquila yuan telechat plamo",
     "has code of its own, with other names or norms than Llama", "Qwen2.5 or Qwen3 of the same size"},
    {"exaone", "has norms or positions of its own", "Qwen3 of the same size"},
    {"minicpm", "scales its layers or has latent attention", "Qwen3 of the same size"},
    {"dbrx arctic grok jetmoe", "is a mixture of experts of a design of its own", kMixture},
    {"ernie45moe hunyuanv1moe hunyuanmoe dots1 bailingmoe bailingmoev2 afmoe step3 mimo solaropen",
     "is a mixture whose router, norms or names are its own", kShared},
    {"hunyuan ernie45 seedoss apertus arcee helium smallthinker bailing",
     "is close to Llama or Qwen3 and differs in a few operations or names", "Qwen3 or Llama 3.1 of the same size"},
    {"bitnet", "has weights of three values and norms inside its layers", kSmall},
    {"openelm", "has layers that differ in width", kSmall},
    {"llada dream", "writes by diffusion and not token after token", "Qwen3"},
    {"bert roberta xlmroberta xlm distilbert deberta modernbert electra albert mpnet nomicbert jinabert camembert "
     "gteqwen eurobert",
     "is an encoder: it reads a text and writes none", "a model that writes, such as Qwen3 or Llama 3.2"},
    {"t5 mt5 umt5 t5encoder bart mbart pegasus marian m2m100 nllb whisper speecht5 bigbirdpegasus led fsmt",
     "has an encoder beside its decoder", "a model that writes, such as Qwen3 or Llama 3.2"},
    {"clip siglip vit dinov2 dinov3 sam detr swin convnext resnet beit yolos wav2vec2 hubert",
     "reads images or sounds and writes no text", "a model that writes, such as Qwen3 or Llama 3.2"},
    {"llava internvl idefics paligemma molmo pixtral ovis smolvlm aria blip instructblip fuyu kosmos florence janus "
     "aya",
     "sees images, and its text model is not read from within",
     "Gemma 3, Mistral-Small 3.1, Qwen2.5-VL and Qwen3-VL, whose text models are"},
};

constexpr Unserved kQuantisers[] = {
    {"ptpcfp8 deepspeedfp", "keeps weights in FP8 of its own",
     "the BF16 repository of the same model, from which `quantize --format fp8` makes FP8 here"},
    {"mxfp4", "keeps weights in MXFP4, which is read of gpt-oss's experts alone",
     "a BF16 copy of the model, if there is one"},
    {"exl2 exl3 exllama", "is exllama's own, which exllama alone reads", "the repository it was made from"},
    {"hqq", "keeps groups along either axis, with zero points that are no integers", "the repository it was made from"},
    {"aqlm vptq quip quipsharp higgs spqr qtip", "keeps vectors of a codebook or lattice of its own",
     "the original repository, from which `quantize --format vq8k16s4` makes vector codes here"},
    {"torchao quanto eetq quark ipex tpuint8 sinq fouroversix metal", "keeps weights in tensors of its own",
     "the repository it was made from"},
    {"autoround intelautoround", "is AutoRound's own form",
     "the same exported with --format auto_gptq or auto_awq, or the original"},
    {"marlin gptqmarlin awqmarlin bitblas squeezellm", "has codes in the order of one kernel",
     "the same as plain GPTQ or AWQ, or the original"},
    {"gguf", "is a GGUF file that transformers expands", "that .gguf file itself"},
    {"mlx", "is MLX's, with scales and biases beside packed weights", "the repository it was made from"},
    {"bitnet", "has weights of three values", "the GGUF file of it, if its architecture is one that is read"},
};

const Unserved* find_row(std::span<const Unserved> rows, std::string_view name) {
  const std::string plain = plain_name(name);
  const Unserved* best = nullptr;
  size_t longest = 0;
  for (const Unserved& row : rows)
    for (std::string_view rest = row.begins; !rest.empty();) {
      const std::string_view one = rest.substr(0, rest.find(' '));
      const bool whole = one.ends_with('$'),
                 fits = whole ? plain == one.substr(0, one.size() - 1) : plain.starts_with(one);
      if (one.size() > longest && fits) best = &row, longest = one.size();
      rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    }
  return best;
}

constexpr std::string_view kAdd = "CONTRIBUTING.md (\"A model family\") says how to add one";

// This table tells what the files of other programs hold, and how to convert them to safetensors. The first row that
// matches is used.
struct OtherFiles {
  std::string_view begins, ends;  // They match the name of a file.
  std::string_view what, remedy;
};
constexpr std::string_view kConvert =
    "convert it by transformers: python3 -c 'from transformers import AutoModelForCausalLM as M; "
    "M.from_pretrained(\"IN\", dtype=\"auto\").save_pretrained(\"OUT\")', and copy the tokenizer's files to OUT";
constexpr OtherFiles kOthers[] = {
    {"adapter_model", "", "a LoRA adapter", "merge it into its base model (peft: merge_and_unload) and give that"},
    {"consolidated", ".safetensors", "weights under the names of Mistral's own code",
     "take the repository's model-*.safetensors and config.json, or one in transformers' form"},
    {"consolidated", ".pth", "weights of Meta's own code",
     "take the repository in transformers' form (its name often ends in -hf)"},
    {"pytorch_model", ".bin", "weights as PyTorch pickles them, which can run code and are not read", kConvert},
    {"weights", ".npz", "weights of MLX", "take the repository it was made from"},
    {"model_index", ".json", "a diffusion pipeline, which makes images", "give a model of text"},
    {"", ".onnx", "an ONNX graph", "take the repository it was made from"},
    {"flax_model", ".msgpack", "weights of Flax", kConvert},
    {"tf_model", ".h5", "weights of TensorFlow", kConvert},
    {"", ".gguf", "GGUF files beside a config.json", "name the .gguf file that is meant"},
    {"", ".pth", "weights as PyTorch pickles them, which can run code and are not read", kConvert},
    {"", ".pt", "weights as PyTorch pickles them, which can run code and are not read", kConvert},
    {"", ".bin", "weights as PyTorch pickles them, which can run code and are not read", kConvert},
    {"", ".nemo", "an archive of NeMo", "convert it to transformers' form by NeMo"},
    {"", ".incomplete", "a download that has not ended", "run it again"},
};

std::set<std::string> file_names(const std::string& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end && names.size() < 10'000; at.increment(error))
    names.insert(at->path().filename().string());
  return names;
}

// Returns the first inner folder that holds a model.
std::string model_within(const std::string& folder, const std::set<std::string>& names) {
  std::error_code ignored;
  for (const std::string& name : names)
    if (fs::exists(fs::path(folder) / name / "config.json", ignored)) return (fs::path(folder) / name).string();
  return "";
}

}  // namespace

std::string about_unserved_model(std::string_view name, std::string_view supported) {
  if (const Unserved* row = find_row(kModels, name))
    return fmt::format(": it {}. The nearest that works: {}. {}", row->what, row->nearest, kAdd);
  return fmt::format("; supported are {}; {}", supported, kAdd);
}

std::string about_unread_quantiser(std::string_view method) {
  const Unserved* row = find_row(kQuantisers, method);
  const std::string what =
      row ? fmt::format(": it {}. Give {}.", row->what, row->nearest) : "; give the repository it was made from.";
  return what +
         " Read are gptq, awq, compressed-tensors, fp8, fbgemm_fp8, modelopt, bitsandbytes in 4 bits, mxfp4 of "
         "gpt-oss, and GGUF";
}

std::string about_folder(const std::string& folder) {
  const std::set<std::string> names = file_names(folder);
  for (const OtherFiles& other : kOthers)
    for (const std::string& name : names)
      if (name.starts_with(other.begins) && name.ends_with(other.ends))
        return fmt::format("it holds {}: {}; {}", name, other.what, other.remedy);
  if (const std::string within = model_within(folder, names); !within.empty())
    return fmt::format("a model is in {}; give that", within);
  return "";
}

}  // namespace fidelio
