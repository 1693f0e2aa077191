// This file builds the key-value section of a GGUF file and its keys about the model and the tokenizer. The numbers are
// those of the format's documentation, little-endian, version 3.
//
//   "GGUF" | u32 3 | u64 tensors | u64 keys | keys | tensor infos | padding to 32 | data, each tensor padded to 32
//   key:          string name | u32 type | value          string: u64 length | bytes
//   array value:  u32 element type | u64 length | elements
//   tensor info:  string name | u32 dims | u64 sizes, the fastest first | u32 type | u64 offset in the data
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/foreign/text_files.h"
#include "io/checkpoint.h"

namespace fidelio::exporting {

class GgufKeys {
 public:
  void put_u32(std::string_view key, uint32_t value);
  void put_i32(std::string_view key, int32_t value);
  void put_f32(std::string_view key, float value);
  void put_bool(std::string_view key, bool value);
  void put_string(std::string_view key, std::string_view value);
  void put_strings(std::string_view key, std::span<const std::string> values);
  void put_i32s(std::string_view key, std::span<const int32_t> values);
  void put_bools(std::string_view key, const std::vector<bool>& values);
  void put_f32s(std::string_view key, std::span<const float> values);

  uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }
  Hashes hashes() const;  // It hashes the type and value of each key, as gguf::File::key_hashes() reads them.

 private:
  void begin(std::string_view key, uint32_t type);
  uint64_t count_ = 0;
  std::string bytes_;
  std::vector<std::pair<std::string, size_t>> types_;  // The number is where the type of the key stands.
};

void append_u32(std::string& bytes, uint32_t value);
void append_u64(std::string& bytes, uint64_t value);
void append_string(std::string& bytes, std::string_view text);

// Tells whether the weight becomes dense: an embedding or a head whose codes no block type holds does, as in the other
// exports. A linear of a layer is refused instead.
bool is_decoded(const Checkpoint& source, LinearId id);
// Throws Error where llama.cpp does not compute the model, because of its family, windows, biases, rope or router.
void check_gguf_model(const Checkpoint& source);
// Puts general.* and the keys of the architecture.
void put_model(GgufKeys& keys, const Checkpoint& source, uint32_t file_type);
// The same two for Gemma 4. `no` throws Error where its first argument is true, naming the second.
void check_gemma4_model(const ModelConfig& config, const std::function<void(bool, const char*)>& no);
void put_gemma4(GgufKeys& keys, const ModelConfig& config, const std::string& prefix);
// The divisors of Gemma 4's frequencies are 1, or 1e30 for pairs of a layer without a window that are not turned.
std::vector<float> gemma4_divisors(const ModelConfig& config);
// Puts general.sampling.* from generation_config.json.
void put_sampling(GgufKeys& keys, const TextFiles& files);
// Returns general.architecture of a model that llama.cpp computes, or "".
std::string_view gguf_architecture(const ModelConfig& config);

// Puts tokenizer.ggml.* and tokenizer.chat_template from these files, for a vocabulary of `v` rows (ids without a token
// become unused ones). Byte-level BPE becomes "gpt2" with the name that llama.cpp has for its splitting pattern.
// SentencePiece-style BPE becomes "llama", where the score of a token is minus the rank of the first merge that makes
// it. Throws Error for any other tokenizer.
// An eos_id of -1 means that config.json has none.
void put_tokenizer(GgufKeys& keys, const TextFiles& files, int v, int eos_id);

}  // namespace fidelio::exporting
