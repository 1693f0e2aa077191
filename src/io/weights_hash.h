// SHA-256 of "NAME SHA256-OF-BYTES\n" of all tensors by name, which does not depend on their order or files.
#pragma once
#include <map>
#include <span>
#include <string>

#include "core/hash.h"
#include "io/safetensors.h"

namespace fidelio {

class WeightsHash {
 public:
  void add(const std::string& name, std::span<const std::byte> bytes) {
    Sha256 hash;
    hash.update(bytes);
    tensors_[name] = hash.hex();
  }
  void add(const TensorToWrite& tensor) {
    Sha256 hash;
    tensor.produce([&](std::span<const std::byte> bytes) { hash.update(bytes); });
    tensors_[tensor.name] = hash.hex();
  }
  std::string hex() const {
    Sha256 all;
    for (const auto& [name, hash] : tensors_) all.update(name + " " + hash + "\n");
    return all.hex();
  }

 private:
  std::map<std::string, std::string> tensors_;
};

}  // namespace fidelio
