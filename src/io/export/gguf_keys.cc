// This file builds the key-value section of a GGUF file.
#include <bit>

#include "core/hash.h"
#include "io/export/gguf.h"

namespace fidelio::exporting {
namespace {

enum KeyType : uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9 };

}  // namespace

void append_u32(std::string& bytes, uint32_t value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void append_u64(std::string& bytes, uint64_t value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void append_string(std::string& bytes, std::string_view text) {
  append_u64(bytes, text.size());
  bytes += text;
}

void GgufKeys::begin(std::string_view key, uint32_t type) {
  append_string(bytes_, key);
  types_.emplace_back(key, bytes_.size());
  append_u32(bytes_, type);
  ++count_;
}
Hashes GgufKeys::hashes() const {
  Hashes hashes;
  for (size_t i = 0; i < types_.size(); ++i) {
    const auto& [key, begin] = types_[i];
    // The next key follows a value, as the length of its name and the name.
    const size_t end = i + 1 == types_.size() ? bytes_.size() : types_[i + 1].second - types_[i + 1].first.size() - 8;
    hashes[key] = sha256_hex(std::string_view(bytes_).substr(begin, end - begin));
  }
  return hashes;
}
void GgufKeys::put_u32(std::string_view key, uint32_t value) {
  begin(key, kU32);
  append_u32(bytes_, value);
}
void GgufKeys::put_i32(std::string_view key, int32_t value) {
  begin(key, kI32);
  append_u32(bytes_, std::bit_cast<uint32_t>(value));
}
void GgufKeys::put_f32(std::string_view key, float value) {
  begin(key, kF32);
  append_u32(bytes_, std::bit_cast<uint32_t>(value));
}
void GgufKeys::put_bool(std::string_view key, bool value) {
  begin(key, kBool);
  bytes_ += static_cast<char>(value);
}
void GgufKeys::put_string(std::string_view key, std::string_view value) {
  begin(key, kString);
  append_string(bytes_, value);
}
void GgufKeys::put_strings(std::string_view key, std::span<const std::string> values) {
  begin(key, kArray);
  append_u32(bytes_, kString);
  append_u64(bytes_, values.size());
  for (const std::string& value : values) append_string(bytes_, value);
}
void GgufKeys::put_i32s(std::string_view key, std::span<const int32_t> values) {
  begin(key, kArray);
  append_u32(bytes_, kI32);
  append_u64(bytes_, values.size());
  bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}
void GgufKeys::put_bools(std::string_view key, const std::vector<bool>& values) {
  begin(key, kArray);
  append_u32(bytes_, kBool);
  append_u64(bytes_, values.size());
  for (const bool value : values) bytes_ += static_cast<char>(value);
}
void GgufKeys::put_f32s(std::string_view key, std::span<const float> values) {
  begin(key, kArray);
  append_u32(bytes_, kF32);
  append_u64(bytes_, values.size());
  bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

}  // namespace fidelio::exporting
