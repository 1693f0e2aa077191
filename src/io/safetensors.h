// This file reads safetensors files (one file, or all shards of a folder, memory-mapped) and writes them.
//
//   +--------+------------------------------------------+---------------------------------------+
//   | u64 LE | header: N bytes of JSON, starts with '{', | tensor bytes, row-major, little-endian |
//   |   N    | may end in spaces; N <= 100 MB            | in the order of their offsets          |
//   +--------+------------------------------------------+---------------------------------------+
//   {"__metadata__": {string: string}, NAME: {"dtype": "BF16", "shape": [4, 8], "data_offsets": [begin, end]}, ...}
//
// Offsets count from the end of the header and must cover the data exactly: no gap, no overlap, nothing left over. A
// file that breaks any rule is refused with its name and the reason. A sharded folder has model.safetensors.index.json,
// {"metadata": {"total_size": bytes}, "weight_map": {NAME: FILE}}.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "core/tensor.h"
#include "io/tensor_files.h"

namespace fidelio {

// This is one file, or all shards of a folder: the files that its index names, else model.safetensors, else every
// *.safetensors. Copies share the mappings.
class Safetensors : public TensorFiles {
 public:
  static Safetensors open(const std::string& path);  // The path is a folder or one file.

  bool contains(std::string_view name) const override;
  // Returns a view into the mapping, which it keeps alive and which must not be written to. The format does not align
  // tensors: one that is not aligned to its element size (an odd header, or a byte tensor of odd length before it) is
  // returned as a copy in memory.
  OwnedTensor get(std::string_view name) const override;
  OwnedTensor get(std::string_view name, DType dtype, const Shape& shape) const override;
  std::vector<std::string> names() const override;
  // Returns the __metadata__ of all files. If several shards have a key, the value is that of the first file by name.
  const std::map<std::string, std::string>& metadata() const override;
  std::vector<std::string> files() const override;
  int64_t file_bytes() const override;
  void drop(const Tensor& tensor) const override;
  Hashes tensor_hashes() const override;

 private:
  struct Contents;
  explicit Safetensors(std::shared_ptr<const Contents> contents) : contents_(std::move(contents)) {}
  std::shared_ptr<const Contents> contents_;
};

using ByteSink = std::function<void(std::span<const std::byte>)>;

struct TensorToWrite {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  // This function passes the tensor's bytes to the sink, in pieces of any size. The writer calls it once, when the
  // tensor's turn in the file has come, so a checkpoint larger than memory can be made tensor by tensor.
  std::function<void(const ByteSink&)> produce;
};
TensorToWrite to_write(std::string name, OwnedTensor tensor);  // It writes a tensor that exists already.

// Writes one file atomically (core/file.h). Tensors stand in the given order, the header is padded with spaces to a
// multiple of 8 bytes, and "format": "pt" is added to `metadata`, so equal arguments give equal bytes. Tensors whose
// size is no multiple of 8 bytes should come last, as those after them are read as copies. Throws Error for a name
// given twice, or if more or fewer bytes are produced than the shape needs; then nothing is left behind.
void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// Writes model.safetensors into `folder` or, if there are more than `max_shard_bytes` of tensors, shards
// model-00001-of-0000N.safetensors (a tensor is never split) and then the index, which makes them a checkpoint. Throws
// Error for a folder that holds safetensors files already, because a stale shard or index would be read with the new
// ones.
void write_sharded_safetensors(const std::string& folder, const std::vector<TensorToWrite>& tensors,
                               int64_t max_shard_bytes, const std::map<std::string, std::string>& metadata = {});

}  // namespace fidelio
