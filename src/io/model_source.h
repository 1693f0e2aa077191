// A model as it lies on disk, whoever made it, brought to one form: the text files of a Hugging Face folder, tensors by
// Hugging Face's names, and linears in our formats where somebody else's codes had to be read.
//
//   what PATH is                                   what becomes of it
//   a Hugging Face folder, or one of ours          as it is
//   the same, quantised (compressed-tensors,       codes that int<b>g<k> and int<b>g<k>z hold exactly become those;
//     GPTQ, AWQ)                                   others are decoded to F32, with a note
//   a .gguf file, or a folder with one and no      the same; config.json, tokenizer.json and the chat template are made
//     config.json                                  from its metadata
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "arch/weight_names.h"
#include "core/foreign/text_files.h"
#include "formats/linear_weight.h"
#include "io/tensor_files.h"

namespace fidelio {

// A linear that is read by code of its own. `read` gives it in this format, without bias.
struct ForeignLinear {
  FormatSpec format;
  std::function<LinearWeight()> read;
};

struct ModelSource {
  TextFiles texts;  // its name is the path
  std::shared_ptr<const TensorFiles> tensors;
  std::map<LinearId, ForeignLinear> linears;  // empty where the tensors are what weight_names.h says
  std::string quantised_by;                   // "GGUF", "gptq", ...; "" if nobody but us did
  std::vector<std::string> notes;             // a line for each kind of code that no format of ours holds
};

ModelSource open_model_source(const std::string& path);

// Under which name the files hold a tensor of the text model: its own ("model.norm.weight"), or what becomes of that within
// a model that sees images too (Mistral 3, Gemma 3).
std::string stored_name(const TensorFiles& files, const std::string& name);
// The text files alone: what a tokenizer needs.
TextFiles open_text_files(const std::string& path);

}  // namespace fidelio
