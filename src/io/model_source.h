// This file opens a model on disk, whatever program wrote it, and brings it to one form: the text files of a Hugging
// Face folder, tensors by Hugging Face's names, and linears in our formats where another program's codes had to be
// read.
//
//   what PATH is                                   what becomes of it
//   a Hugging Face folder, or one of ours          as it is
//   the same, quantised (compressed-tensors,       codes that int<b>g<k>, int<b>g<k>z, fp4g16, mxfp4 and fp8 hold
//     GPTQ, AWQ, ModelOpt, FP8)                    exactly become those; others are decoded to F32, with a note
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

// This is a linear that special code reads. `read` returns it in this format, without bias.
struct ForeignLinear {
  FormatSpec format;
  std::function<LinearWeight()> read;
};

struct ModelSource {
  TextFiles texts;  // Its name is the path.
  std::shared_ptr<const TensorFiles> tensors;
  std::map<LinearId, ForeignLinear> linears;  // It is empty where the tensors are named as weight_names.h says.
  std::string quantised_by;                   // It is "GGUF", "gptq", ..., or "" if only fidelio quantised it.
  std::vector<std::string> notes;             // There is a line for each kind of code that no format of ours holds.
};

ModelSource open_model_source(const std::string& path);

// Returns the name under which the files hold a tensor of the text model: its own ("model.norm.weight"), or the one
// that it has inside a model that sees images (Mistral 3, Gemma 3).
std::string stored_name(const TensorFiles& files, const std::string& name);
// Opens the text files alone, which is enough for a tokenizer.
TextFiles open_text_files(const std::string& path);

}  // namespace fidelio
