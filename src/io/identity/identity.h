// Identity: hashes of everything in a checkpoint that decides an answer, so that what a certificate vouches for is what
// is served. They stand beside the weights' own hash in the "fidelio" metadata (docs/formats.md):
//
//   weights_sha256   of all tensors together
//   tensors          of each tensor, so that one that was changed can be named
//   files            of config.json, the tokenizer's files, chat templates and generation_config.json; of a GGUF file of
//                    its keys
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/foreign/text_files.h"

namespace fidelio {

class Checkpoint;
using Hashes = std::map<std::string, std::string>;  // SHA-256 by name

// Returns the SHA-256 of "NAME SHA256\n" of all tensors by name, which does not depend on their order or files.
std::string sha256_of_weights(const Hashes& tensors);

// Returns the first kTensorDigits digits of each tensor's SHA-256, by name, without anything between: the names stand in
// the file already, and a model has thousands of tensors.
inline constexpr size_t kTensorDigits = 16;
std::string tensor_digits(const Hashes& tensors);

// Returns the hashes of those text files that decide a model's answers, by name. config.json counts as the JSON that it
// is, without what says nothing of the model: "fidelio" (which these hashes stand in, in an export), the version of
// transformers and the folder's name.
Hashes deciding_files(const TextFiles& files);
Hashes deciding_files(const TextFiles& files, const nlohmann::json& config);  // with this config.json

// A WrittenIdentity is what fidelio noted when it wrote a checkpoint; all of it is empty in a model that somebody else
// wrote, and tensors and files in one that an earlier fidelio wrote.
struct WrittenIdentity {
  std::string weights_sha256, tensors;
  Hashes files;
};
nlohmann::json to_json(const WrittenIdentity& written);

// Compares a checkpoint with what was noted when it was written, and reads every byte of it once for that. Each is half
// a sentence that names tensors or files ("tensor model.norm.weight was changed"), or "" where nothing differs.
struct ChangedSinceWritten {
  std::string weights, files;
};
ChangedSinceWritten changed_since_written(const Checkpoint& checkpoint);

}  // namespace fidelio
