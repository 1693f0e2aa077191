// This file reads a memory-mapped GGUF file, which has keys with values and tensors of blocks. It is written from the
// public description of the format.
//
//   "GGUF" | u32 version 2 or 3 | u64 tensors | u64 keys | keys | tensor infos | padding to the alignment | data
//   key:          string name | u32 type | value          string: u64 length | bytes
//   array value:  u32 element type | u64 length | elements
//   tensor info:  string name | u32 dimensions | u64 sizes, the fastest first | u32 type | u64 offset in the data
//
// The file is a stranger's. Every length is checked against the remaining bytes before it is used, and nothing is
// allocated that the size of the file does not justify. Errors name the file and the key or tensor.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "io/gguf/blocks.h"

namespace fidelio::gguf {

// These are the numbers of value types.
enum ValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12
};

// This is a matrix (rows, columns) of blocks along the columns. A vector is one row, and a tensor of three dimensions
// is several matrices one below the other.
struct StoredMatrix {
  const BlockType* type = nullptr;
  int64_t rows = 1, columns = 0;
  int64_t rows_each = 1;  // Each of the matrices has this many rows.
  int dimensions = 0;     // The file gives this number.
  const std::byte* data = nullptr;

  int64_t row_bytes() const { return columns / type->elements * type->bytes; }
  int64_t bytes() const { return rows * row_bytes(); }
  const uint8_t* row(int64_t r) const { return reinterpret_cast<const uint8_t*>(data) + r * row_bytes(); }
};

class File {
 public:
  static std::shared_ptr<const File> open(const std::string& path);

  const std::string& path() const { return mapped_->path(); }
  const std::shared_ptr<const MappedFile>& mapped() const { return mapped_; }

  // These return the value of a key, or nothing where there is no such key. They throw Error if it has another type.
  bool has(std::string_view key) const { return keys_.contains(key); }
  std::optional<int64_t> integer(std::string_view key) const;  // The integer may have any width.
  std::optional<double> number(std::string_view key) const;    // It is F32 or F64, and finite.
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> text(std::string_view key) const;
  std::optional<std::vector<std::string_view>> texts(std::string_view key) const;
  std::optional<std::vector<int64_t>> integers(std::string_view key) const;
  bool is_array(std::string_view key) const;  // false too if there is no such key
  std::optional<std::vector<bool>> booleans(std::string_view key) const;
  std::optional<std::vector<double>> numbers(std::string_view key) const;
  std::vector<std::string> keys_under(std::string_view prefix) const;

  const std::map<std::string, StoredMatrix, std::less<>>& tensors() const { return tensors_; }
  // Returns the SHA-256 of the type and value of each key as they stand in the file. Keys that fidelio writes about
  // itself are left out.
  std::map<std::string, std::string> key_hashes() const;

 private:
  struct Value {
    uint32_t type = 0, element = 0;  // `element` and `count` belong to an array.
    uint64_t count = 0;
    std::span<const std::byte> bytes, stored;  // `stored` starts at the type.
  };
  class Reader;
  const Value* find(std::string_view key) const { return keys_.contains(key) ? &keys_.find(key)->second : nullptr; }
  const Value* find_array(std::string_view key, std::string_view of) const;
  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const;
  static std::optional<int64_t> integer_of(uint32_t type, const std::byte* data);
  static std::optional<double> number_of(uint32_t type, const std::byte* data);
  void read_keys(Reader& reader, uint64_t count);
  void read_tensors(Reader& reader, uint64_t count);

  std::shared_ptr<const MappedFile> mapped_;
  std::map<std::string, Value, std::less<>> keys_;
  std::map<std::string, StoredMatrix, std::less<>> tensors_;
};

// Returns a stranger's name as a message shows it: in quotes, escaped and cut where it is long
// (core/foreign/foreign_text.h).
std::string shown(std::string_view text);

}  // namespace fidelio::gguf
