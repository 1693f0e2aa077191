// This file has the functions that all exports share: reading an integer linear group by group, packing fields, and
// refusing models that do not fit.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"

namespace fidelio::exporting {

const IntGroup& integer_of(const LinearWeight& w);
float group_scale(const LinearWeight& w, int64_t row, int64_t g);  // It is r x s with 8-bit scales.
int group_zero(const LinearWeight& w, int64_t row, int64_t g);     // It is 2^(b-1) if the format is symmetric.
// Rounds to nearest even. Throws an Error that names the linear where FP16 overflows.
f16 f16_or_throw(float value, LinearId id, std::string_view what);

// Packs values[i] into bits [i b, (i+1) b) of the string of words, least significant first. Fields may straddle words.
// There are ceil(values.size() * bits / 32) words.
void pack_fields(std::span<const uint8_t> values, int bits, std::span<uint32_t> words);

// Returns the groups of linears that a serving engine multiplies together, in every layer: q k v; o; gate up; down. For
// experts the groups are the gate and up and down of all experts of a layer.
std::vector<std::vector<LinearId>> fused_units(const ModelConfig& config);
// Throws Error where FP16 does not hold the products of 8-bit scales with the FP32 scale of their row, which the export
// stores.
void check_half_scales(const Checkpoint& source, std::string_view target);
// Throws an Error that names both linears where two of one group differ in format.
void check_fused(const Checkpoint& source, std::string_view target);

inline bool is_outer(LinearId id) { return is_outer(id.role); }
// Throws "MODEL: layers.3.q (int3g128z) cannot be exported to TARGET: REASON", followed by line_that_fits() (export.h).
[[noreturn]] void refuse(const Checkpoint& source, LinearId id, std::string_view target, const std::string& reason);
// Refuses grids, fp4 and fp8.
void check_integer_or_dense(const Checkpoint& source, LinearId id, std::string_view target);

// Refuses models whose forward pass applies a Hadamard transform to activations, or reorders them.
void check_plain_inputs(const Checkpoint& source, std::string_view target);
// Refuses the models that check_plain_inputs refuses, and families whose readers expect several linears or experts in
// one tensor.
void check_separate(const Checkpoint& source, std::string_view target);

DType half_type(const ModelConfig& config);  // This is the model's own 16-bit type, or BF16 if it names none.
// Returns the dense weight as it is, or a coded one decoded to half_type(), as <module>.weight with the family's name.
TensorToWrite dense_tensor(const Checkpoint& source, LinearId id);
// Appends biases, norms, routers and what delta nets have besides linears, as they are in the source.
void append_small_tensors(const Checkpoint& source, std::vector<TensorToWrite>& tensors);

// Adds a line for the block that predicts a token more (ModelConfig::predictor), which the export leaves out.
void note_predictor(const Checkpoint& source, std::string_view target, std::vector<std::string>& notes);

nlohmann::json config_json(const Checkpoint& source);  // It is config.json without fidelio's quantization_config.
// Returns the statement of an export about itself: where its weights come from (with the certificate, if there is one),
// what was rounded, and the hashes of its contents.
nlohmann::json statement_of(const Checkpoint& source, std::string_view target, const std::vector<std::string>& notes,
                            const WrittenIdentity& identity);
// Writes the folder of a Hugging Face checkpoint at once: weights, config.json, companions, and these other files. The
// statement stands in the metadata of the weights and, as "fidelio", in config.json.
void write_folder(const Checkpoint& source, const std::string& folder, std::string_view target,
                  const std::vector<std::string>& notes, const std::vector<TensorToWrite>& tensors,
                  nlohmann::json config, const std::vector<std::pair<std::string, std::string>>& files = {});

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace fidelio::exporting
