// What the exports share: reading an integer linear group by group, packing fields, refusing what does not fit.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"

namespace fidelio::exporting {

const IntGroup& integer_of(const LinearWeight& w);
float group_scale(const LinearWeight& w, int64_t row, int64_t g);  // r x s with 8-bit scales
int group_zero(const LinearWeight& w, int64_t row, int64_t g);     // 2^(b-1) if symmetric
// Rounded to nearest even; throws where FP16 overflows, naming the linear.
f16 f16_or_throw(float value, LinearId id, std::string_view what);

// values[i] becomes bits [i b, (i+1) b) of the string of words, least significant first; fields may straddle words.
// words: ceil(values.size() * bits / 32).
void pack_fields(std::span<const uint8_t> values, int bits, std::span<uint32_t> words);

// The linears of one matmul of a serving engine, in every layer: q k v, o, gate up, down; or all experts' gate, up and down.
std::vector<std::vector<LinearId>> fused_units(const ModelConfig& config);
// Throws where two of one unit differ in format, naming both.
// Scales of 8 bits and one of FP32 a row become FP16 there: refuses where those do not hold them.
void check_half_scales(const Checkpoint& source, std::string_view target);
void check_fused(const Checkpoint& source, std::string_view target);

inline bool is_outer(LinearId id) { return id.role == Role::embedding || id.role == Role::head; }
// Throws "MODEL: layers.3.q (int3g128z) cannot be exported to TARGET: REASON", with line_that_fits() (export.h) behind it.
[[noreturn]] void refuse(const Checkpoint& source, LinearId id, std::string_view target, const std::string& reason);
// Refuses grids, fp4 and fp8.
void check_integer_or_dense(const Checkpoint& source, LinearId id, std::string_view target);

// Refuses models whose forward turns activations, or puts them in another order.
void check_plain_inputs(const Checkpoint& source, std::string_view target);
// Refuses those, and families whose readers expect several linears or experts in one tensor.
void check_separate(const Checkpoint& source, std::string_view target);

DType half_type(const ModelConfig& config);  // the model's own 16-bit type, BF16 if it names none
// The dense weight as it is, or a coded one decoded to half_type(), as <module>.weight, by the family's name.
TensorToWrite dense_tensor(const Checkpoint& source, LinearId id);
// Biases, norms and routers as they are in the source.
void append_small_tensors(const Checkpoint& source, std::vector<TensorToWrite>& tensors);

nlohmann::json config_json(const Checkpoint& source);  // config.json without fidelio's quantization_config
// What an export says about itself: where its weights come from (with the certificate, if there is one), what was
// rounded, and the hashes of what it holds.
nlohmann::json statement_of(const Checkpoint& source, std::string_view target, const std::vector<std::string>& notes,
                            const WrittenIdentity& identity);
// The folder of a Hugging Face checkpoint, written at once: weights, config.json, companions, and these other files.
// The statement stands in the metadata of the weights and, as "fidelio", in config.json.
void write_folder(const Checkpoint& source, const std::string& folder, std::string_view target,
                  const std::vector<std::string>& notes, const std::vector<TensorToWrite>& tensors,
                  nlohmann::json config, const std::vector<std::pair<std::string, std::string>>& files = {});

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace fidelio::exporting
