#include "io/export/common.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "arch/stops.h"
#include "core/foreign/units.h"
#include "formats/half_scales.h"
#include "io/checkpoint_files.h"
#include "io/export/export.h"
#include "io/hf_config.h"
#include "io/identity/weights_hash.h"

namespace fidelio::exporting {

const IntGroup& integer_of(const LinearWeight& w) { return std::get<IntGroup>(w.main); }

float group_scale(const LinearWeight& w, int64_t row, int64_t g) {
  const IntGroup& m = integer_of(w);
  const auto at = static_cast<size_t>(row * w.spec.groups(w.in) + g);
  if (w.spec.scale == ScaleKind::f16) return to_float(m.scale.as<const f16>()[at]);
  return m.row_scale.as<const float>()[static_cast<size_t>(row)] * static_cast<float>(m.scale.as<const uint8_t>()[at]);
}

int group_zero(const LinearWeight& w, int64_t row, int64_t g) {
  return w.spec.symmetric ? 1 << (w.spec.bits - 1) : get_zero(integer_of(w), row, g);
}

f16 f16_or_throw(float value, LinearId id, std::string_view what) {
  const f16 rounded = to_f16(value);
  check(std::isfinite(to_float(rounded)), "{}: {} {} does not fit FP16", to_string(id), what, value);
  return rounded;
}

void pack_fields(std::span<const uint8_t> values, int bits, std::span<uint32_t> words) {
  std::fill(words.begin(), words.end(), 0u);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t bit = i * static_cast<size_t>(bits), word = bit / 32, shift = bit % 32;
    words[word] |= uint32_t{values[i]} << shift;
    if (shift + static_cast<size_t>(bits) > 32) words[word + 1] |= uint32_t{values[i]} >> (32 - shift);
  }
}

std::vector<std::vector<LinearId>> fused_units(const ModelConfig& config) {
  std::vector<std::vector<LinearId>> units;
  for (int i = 0; i < config.L; ++i)
    for (const Stop& stop : stops_of(config, i)) {
      const std::vector<LinearId> ids = linears_of(config, i, stop);
      // The experts' down follows their gate and up in the same unit.
      const bool further = ids.front().expert >= 0 && units.back().front().expert >= 0;
      if (!further) units.emplace_back();
      units.back().insert(units.back().end(), ids.begin(), ids.end());
    }
  return units;
}

void check_half_scales(const Checkpoint& source, std::string_view target) {
  for (LinearId id : linears_of(source.config())) {
    const FormatSpec spec = source.format(id);
    if (spec.kind != Kind::integer || spec.scale != ScaleKind::u8) continue;
    const LinearWeight w = source.linear(id);
    HalfTally tally;
    for (int64_t r = 0; r < w.out; ++r) {
      for (int64_t g = 0; g < spec.groups(w.in); ++g) {
        const float scale = group_scale(w, r, g);
        tally.group(scale, double{scale} * scale, is_half_scale(scale));
      }
      tally.end_row();
    }
    if (tally.loss().is_harmful())
      refuse(source, id, target,
             fmt::format(
                 "{} of its {} rows have scales as {} as {:.2g}, which become FP16 numbers there and do not fit; "
                 "compressed-tensors keeps scales of FP32",
                 tally.loss().lost, tally.loss().rows, tally.loss().overflows ? "large" : "small", tally.loss().worst));
    source.drop(id);
  }
}

void check_fused(const Checkpoint& source, std::string_view target) {
  for (const auto& unit : fused_units(source.config()))
    for (LinearId id : unit)
      if (source.format(id) != source.format(unit.front()))
        refuse(source, id, target,
               fmt::format("serving engines run it in one {} with {}, which is {}; give them one format",
                           id.expert < 0 ? "matmul" : "kernel for all experts of a layer", to_string(unit.front()),
                           to_string(source.format(unit.front()))));
}

void refuse(const Checkpoint& source, LinearId id, std::string_view target, const std::string& reason) {
  throw Error("{}: {} ({}) cannot be exported to {}: {}. `{}` chooses formats that all fit", source.folder(),
              to_string(id), to_string(source.format(id)), target, reason, line_that_fits(source, target));
}

void check_integer_or_dense(const Checkpoint& source, LinearId id, std::string_view target) {
  const FormatSpec spec = source.format(id);
  if (!spec.is_dense() && spec.kind != Kind::integer)
    refuse(source, id, target,
           "it holds integer codes and dense weights only; formats that fit: int2g128 to int8g128, int4g128z");
}

void check_plain_inputs(const Checkpoint& source, std::string_view target) {
  check(!source.config().rotated,
        "{} cannot be exported to {}: it is rotated, and readers of {} do not turn activations; quantise the original "
        "without --rotate",
        source.folder(), target, name_of(source.config().architecture));
  check(source.config().kept_columns == 0,
        "{} cannot be exported to {}: it was made by quantize --atom, and readers of {} do not put activations in "
        "another "
        "order; quantise the original without --atom",
        source.folder(), target, name_of(source.config().architecture));
}

void check_separate(const Checkpoint& source, std::string_view target) {
  check_plain_inputs(source, target);
  const auto [fused, experts] = std::pair(source.config().blocks.fused, source.config().blocks.experts);
  check(
      experts != ExpertFiles::alternating,
      "{} cannot be exported to {}: readers of {} expect the experts of a layer in two tensors, in MXFP4 or dense, and "
      "this program writes them apart; it opens the checkpoint itself, and gguf holds it",
      source.folder(), target, name_of(source.config().architecture));
  const bool together =
      experts == ExpertFiles::stacked || (experts == ExpertFiles::beside && source.config().experts > 0);
  check(!fused && !together,
        "{} cannot be exported to {}: readers of {} expect {}, and this program writes them apart; it opens the "
        "checkpoint itself",
        source.folder(), target, name_of(source.config().architecture),
        fused ? "q, k, v and gate, up as one matrix each" : "all experts of a layer in one tensor");
  check(
      !source.config().blocks.delta_fused || delta_layers(source.config()).empty(),
      "{} cannot be exported to {}: readers of {} expect q, k, v and z of a delta net as one matrix, and this program "
      "writes them apart; it opens the checkpoint itself, and gguf holds it",
      source.folder(), target, name_of(source.config().architecture));
}

DType half_type(const ModelConfig& config) { return config.dtype == DType::f16 ? DType::f16 : DType::bf16; }

TensorToWrite dense_tensor(const Checkpoint& source, LinearId id) {
  const Shape shape = shape_of(source.config(), id);
  if (source.format(id).is_dense()) {
    const FormatSpec spec = source.format(id);
    const DType as_it_is = spec.kind == Kind::f32 ? DType::f32 : spec.kind == Kind::f16 ? DType::f16 : DType::bf16;
    return {file_module_name(source.config(), id) + ".weight", as_it_is, shape, [&source, id](const ByteSink& sink) {
              const LinearWeight w = source.linear(id);
              const Tensor& t = std::get<Dense>(w.main).w.view;
              sink({t.data, static_cast<size_t>(t.bytes())});
            }};
  }
  const DType dtype = half_type(source.config());
  return {file_module_name(source.config(), id) + ".weight", dtype, shape,
          [&source, id, shape, dtype](const ByteSink& sink) {
            const LinearWeight w = source.linear(id);
            std::vector<float> row(static_cast<size_t>(shape[1]));
            const OwnedTensor rounded = OwnedTensor::allocate(dtype, {shape[1]});
            for (int64_t r = 0; r < shape[0]; ++r) {
              decode_row(w, r, row);
              convert_from_float(row, rounded.view);
              sink({rounded.view.data, static_cast<size_t>(rounded.view.bytes())});
            }
          }};
}

void append_small_tensors(const Checkpoint& source, std::vector<TensorToWrite>& tensors) {
  for (LinearId id : linears_of(source.config()))
    if (has_bias(source.config(), id.role)) tensors.push_back(to_write(bias_name(id), source.bias_tensor(id)));
  for (auto [layer, which] : norms_of(source.config()))
    tensors.push_back(
        to_write(norm_name(source.config(), layer, which), source.tensor(norm_name(source.config(), layer, which))));
  for (const auto& [name, shape] : tensors_of_routers(source.config()))
    tensors.push_back(to_write(name, source.tensor(name)));
  for (const LinearId id : fixed_linears_of(source.config())) tensors.push_back(dense_tensor(source, id));
  for (const int layer : delta_layers(source.config()))
    for (const DeltaTensor which : kDeltaTensors)
      tensors.push_back(to_write(delta_name(layer, which), source.tensor(delta_name(layer, which))));
}

void note_predictor(const Checkpoint& source, std::string_view target, std::vector<std::string>& notes) {
  int64_t bytes = 0;
  for (const LinearId id : predictor_linears_of(source.config())) {
    const Shape shape = shape_of(source.config(), id);
    bytes += stored_bytes(source.format(id), shape[0], shape[1]);
  }
  if (bytes > 0)
    notes.push_back(
        fmt::format("the part that predicts further tokens (mtp, {}) is left out of {}: text is the same without it; "
                    "gguf holds it",
                    bytes_text(bytes), target));
}

nlohmann::json config_json(const Checkpoint& source) {
  nlohmann::json config = text_config(source.texts());
  config.erase("quantization_config");
  config.erase("fidelio");  // An export that is exported again has this key.
  // This key says that transformers does not read a fidelio folder, or it names a file.
  config.erase("transformers_weights");
  return config;
}

nlohmann::json statement_of(const Checkpoint& source, std::string_view target, const std::vector<std::string>& notes,
                            const WrittenIdentity& identity) {
  nlohmann::json statement = to_json(identity);
  statement.update({{"version", FIDELIO_VERSION},
                    {"export", target},
                    {"notes", notes},
                    {"provenance", nlohmann::json::parse(source.provenance())}});
  return statement;
}

void write_folder(const Checkpoint& source, const std::string& folder, std::string_view target,
                  const std::vector<std::string>& notes, const std::vector<TensorToWrite>& tensors,
                  nlohmann::json config, const std::vector<std::pair<std::string, std::string>>& files) {
  check(!std::filesystem::exists(folder), "{} exists already; choose another output folder or remove it", folder);
  constexpr int64_t kShardBytes = 5'000'000'000;
  TemporaryFolder temporary(folder);
  WeightsHash hash;
  for (const TensorToWrite& tensor : tensors) hash.add(tensor);
  const nlohmann::json statement =
      statement_of(source, target, notes, identity_of(hash, deciding_files(source.texts(), config)));
  config["fidelio"] = statement;
  write_sharded_safetensors(temporary.path(), tensors, kShardBytes, {{"fidelio", statement.dump()}});
  write_file_atomically(temporary.path() + "/config.json", config.dump(2) + "\n");
  for (const auto& [name, text] : files) write_file_atomically(temporary.path() + "/" + name, text);
  copy_companions(source.texts(), temporary.path());
  copy_companion(source.texts(), std::string(kOwnTextFile), temporary.path());
  temporary.commit();
}

}  // namespace fidelio::exporting
