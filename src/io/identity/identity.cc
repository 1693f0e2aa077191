#include "io/identity/identity.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/foreign/json.h"
#include "core/hash.h"
#include "io/checkpoint.h"
#include "io/checkpoint_files.h"

namespace fidelio {

std::string sha256_of_weights(const Hashes& tensors) {
  Sha256 all;
  for (const auto& [name, hash] : tensors) all.update(name + " " + hash + "\n");
  return all.hex();
}

std::string tensor_digits(const Hashes& tensors) {
  std::string digits;
  for (const auto& [name, hash] : tensors) digits += hash.substr(0, kTensorDigits);
  return digits;
}

Hashes deciding_files(const TextFiles& files, const nlohmann::json& config) {
  Hashes hashes;
  for (const std::string& name : companion_names(files))
    if (const auto text = files.read(name)) hashes[name] = sha256_hex(*text);
  nlohmann::json of_model = config;
  for (const char* key : {"fidelio", "transformers_version", "_name_or_path"}) of_model.erase(key);
  hashes["config.json"] = sha256_hex(of_model.dump());
  return hashes;
}

Hashes deciding_files(const TextFiles& files) {
  return deciding_files(files, parse_json(files.require("config.json"), files.path("config.json")));
}

nlohmann::json to_json(const WrittenIdentity& written) {
  return {{"weights_sha256", written.weights_sha256}, {"tensors", written.tensors}, {"files", written.files}};
}

namespace {

// Returns "tensor a was changed" or "tensors a, b and 5 more were changed".
std::string changed_tensors(const Hashes& now, const std::string& written) {
  if (now.size() * kTensorDigits != written.size())
    return fmt::format("it holds {} tensors, and {} were written", now.size(), written.size() / kTensorDigits);
  constexpr size_t kNamed = 3;
  std::string names;
  size_t changed = 0, at = 0;
  for (const auto& [name, hash] : now) {
    if (written.compare(at, kTensorDigits, hash, 0, kTensorDigits) != 0 && ++changed <= kNamed)
      names += (changed > 1 ? ", " : "") + name;
    at += kTensorDigits;
  }
  if (changed == 0) return "";
  if (changed == 1) return fmt::format("tensor {} was changed", names);
  return fmt::format("tensors {}{} were changed", names,
                     changed > kNamed ? fmt::format(" and {} more", changed - kNamed) : "");
}

std::string changed_files(const Hashes& now, const Hashes& written) {
  std::string changes;
  const auto add = [&](const std::string& name, const char* how) {
    changes += fmt::format("{}{} was {}", changes.empty() ? "" : ", ", name, how);
  };
  for (const auto& [name, hash] : written) {
    const auto there = now.find(name);
    if (there == now.end())
      add(name, "removed");
    else if (there->second != hash)
      add(name, "changed");
  }
  for (const auto& [name, hash] : now)
    if (!written.contains(name)) add(name, "added");
  return changes;
}

}  // namespace

ChangedSinceWritten changed_since_written(const Checkpoint& checkpoint) {
  const WrittenIdentity& written = checkpoint.written();
  const Hashes tensors = checkpoint.tensor_hashes();
  ChangedSinceWritten changed;
  if (!written.tensors.empty()) changed.weights = changed_tensors(tensors, written.tensors);
  // A renamed tensor, or a change beyond the stored digits of its hash, shows only here.
  if (changed.weights.empty() && sha256_of_weights(tensors) != written.weights_sha256)
    changed.weights = "which tensor was changed is not known";
  if (!written.files.empty()) changed.files = changed_files(checkpoint.file_hashes(), written.files);
  return changed;
}

}  // namespace fidelio
