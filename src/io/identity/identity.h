// This file computes hashes of everything in a checkpoint that decides an answer, so users can check that the certified
// model is the served one. The hashes stand beside the hash of the weights in the "fidelio" metadata (docs/formats.md):
//
//   weights_sha256   of all tensors together
//   tensors          of each tensor, so that one that was changed can be named
//   files            of config.json, the tokenizer's files, chat templates and generation_config.json, or of a GGUF
//                    file's keys
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/foreign/text_files.h"

namespace fidelio {

class Checkpoint;
using Hashes = std::map<std::string, std::string>;  // It maps a name to its SHA-256.

// Returns the SHA-256 of "NAME SHA256\n" for all tensors by name. It does not depend on their order or files.
std::string sha256_of_weights(const Hashes& tensors);

// Returns the first kTensorDigits digits of each tensor's SHA-256, by name, with nothing in between. The names are in
// the file already, and a model has thousands of tensors.
inline constexpr size_t kTensorDigits = 16;
std::string tensor_digits(const Hashes& tensors);

// Returns the hashes of the text files that decide a model's answers, by name. config.json counts as JSON and without
// keys that are not about the model: "fidelio" (which holds these hashes in an export), the version of transformers and
// the name of the folder.
Hashes deciding_files(const TextFiles& files);
Hashes deciding_files(const TextFiles& files, const nlohmann::json& config);  // It uses this config.json.

// This is what fidelio noted when it wrote a checkpoint. All of it is empty for a model that another program wrote, and
// `tensors` and `files` are empty for one that an earlier fidelio wrote.
struct WrittenIdentity {
  std::string weights_sha256, tensors;
  Hashes files;
};
nlohmann::json to_json(const WrittenIdentity& written);

// Compares a checkpoint with what was noted when it was written, and reads every byte of it once for that. Each field
// is half a sentence that names tensors or files ("tensor model.norm.weight was changed"), or "" where nothing differs.
struct ChangedSinceWritten {
  std::string weights, files;
};
ChangedSinceWritten changed_since_written(const Checkpoint& checkpoint);

}  // namespace fidelio
