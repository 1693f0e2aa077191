// The tensors of a checkpoint by name, in whatever files they lie.
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
  // Do not write to it: it may be a view into a mapping, which it keeps alive.
  virtual OwnedTensor get(std::string_view name) const = 0;
  virtual OwnedTensor get(std::string_view name, DType dtype, const Shape& shape) const = 0;  // throws if it is not so
  virtual std::vector<std::string> names() const = 0;                                         // sorted
  virtual const std::map<std::string, std::string>& metadata() const = 0;  // texts beside the tensors
  virtual std::vector<std::string> files() const = 0;                      // paths, sorted
  virtual int64_t file_bytes() const = 0;                                  // of all files
  virtual void drop(const Tensor& tensor) const = 0;  // the pages of this view are not needed in memory any more
  virtual Hashes tensor_hashes() const = 0;           // of all stored tensors; reads every byte of them
  std::string weights_sha256() const { return sha256_of_weights(tensor_hashes()); }
  // A GGUF file's keys stand in the place of text files, and decide answers as these do. Other files have none.
  virtual Hashes key_hashes() const { return {}; }
};

}  // namespace fidelio
