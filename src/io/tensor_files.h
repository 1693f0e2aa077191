// This file defines the interface to the tensors of a checkpoint by name, whatever files they are in.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "io/identity/identity.h"

namespace fidelio {

class TensorFiles {
 public:
  virtual ~TensorFiles() = default;

  virtual bool contains(std::string_view name) const = 0;
  // The result must not be written to: it may be a view into a mapping, which it keeps alive.
  virtual OwnedTensor get(std::string_view name) const = 0;
  // Throws Error if the tensor has another dtype or shape.
  virtual OwnedTensor get(std::string_view name, DType dtype, const Shape& shape) const = 0;
  virtual std::vector<std::string> names() const = 0;                      // They are sorted.
  virtual const std::map<std::string, std::string>& metadata() const = 0;  // These are texts beside the tensors.
  virtual std::vector<std::string> files() const = 0;                      // These are paths, sorted.
  virtual int64_t file_bytes() const = 0;                                  // It counts all files.
  // Says that the pages of this view are no longer needed in memory.
  virtual void drop(const Tensor& tensor) const = 0;
  virtual Hashes tensor_hashes() const = 0;  // It hashes all stored tensors and reads every byte of them.
  std::string weights_sha256() const { return sha256_of_weights(tensor_hashes()); }
  // The keys of a GGUF file replace text files and decide answers as these do. Other files have none.
  virtual Hashes key_hashes() const { return {}; }
};

}  // namespace fidelio
