// This file hashes the weights of a model while they are written, tensor by tensor (io/identity/identity.h).
#pragma once
#include <span>
#include <string>

#include "core/hash.h"
#include "io/identity/identity.h"
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
  std::string hex() const { return sha256_of_weights(tensors_); }
  const Hashes& tensors() const { return tensors_; }

 private:
  Hashes tensors_;
};

// Returns what is noted about a checkpoint that is being written.
inline WrittenIdentity identity_of(const WeightsHash& weights, Hashes files) {
  return {weights.hex(), tensor_digits(weights.tensors()), std::move(files)};
}

}  // namespace fidelio
