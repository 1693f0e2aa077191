#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "io/export/common.h"
#include "io/export/export.h"

namespace fidelio {
namespace {

using namespace exporting;
using nlohmann::json;

constexpr std::string_view kGptqTarget = "gptq";
constexpr int64_t kWholeWords = 32;  // This many codes fill whole words at every width.

void check_fits_gptq(const Checkpoint& source, ServingProfile profile) {
  check_exports_to(source, kGptqTarget);
  for (LinearId id : linears_of(source.config())) {
    check_integer_or_dense(source, id, kGptqTarget);
    const FormatSpec spec = source.format(id);
    if (is_outer(id) || spec.is_dense()) continue;
    const Shape shape = shape_of(source.config(), id);
    if (shape[0] % kWholeWords != 0 || shape[1] % kWholeWords != 0)
      refuse(source, id, kGptqTarget,
             fmt::format("its shape {} is not in multiples of {}; leave it dense, or export to compressed-tensors",
                         to_string(shape), kWholeWords));
    if (profile == ServingProfile::vllm && (!spec.symmetric || (spec.bits != 4 && spec.bits != 8) || spec.group == 16))
      refuse(source, id, kGptqTarget,
             "with --profile vllm it is symmetric, 4 or 8 bits, in groups of 32, 64, 128 or the row; formats that fit: "
             "int4g128, int8g128; compressed-tensors holds more");
  }
  if (profile == ServingProfile::vllm) check_fused(source, kGptqTarget);
}

// The planar layout stores, for every 32 codes, the words of the low plane and then those of the higher planes.
//   bits    2    3      4    5      6      7        8
//   planes  [2]  [2,1]  [4]  [4,1]  [4,2]  [4,2,1]  [8]     (low bits first; ours in memory have the high bits first)
struct Plane {
  int width, shift;
};
std::vector<Plane> low_first_planes(int bits) {
  switch (bits) {
    case 3:
      return {{2, 0}, {1, 2}};
    case 5:
      return {{4, 0}, {1, 4}};
    case 6:
      return {{4, 0}, {2, 4}};
    case 7:
      return {{4, 0}, {2, 4}, {1, 6}};
    default:
      return {{bits, 0}};
  }
}

// values.size() must be a multiple of 32.
void pack_planar(std::span<const uint8_t> values, int bits, std::span<uint32_t> words) {
  const std::vector<Plane> planes = low_first_planes(bits);
  std::array<uint8_t, kWholeWords> part;
  for (size_t begin = 0, word = 0; begin < values.size(); begin += kWholeWords)
    for (const Plane& plane : planes) {
      for (size_t i = 0; i < part.size(); ++i)
        part[i] = static_cast<uint8_t>((values[begin + i] >> plane.shift) & ((1 << plane.width) - 1));
      pack_fields(part, plane.width, words.subspan(word, static_cast<size_t>(plane.width)));
      word += static_cast<size_t>(plane.width);
    }
}

using Packer = void (*)(std::span<const uint8_t>, int, std::span<uint32_t>);

// The result is (in b / 32, out): the codes of output n are the string down column n.
void write_qweight(const LinearWeight& w, Packer pack, const ByteSink& sink) {
  const auto in = static_cast<size_t>(w.in), out = static_cast<size_t>(w.out),
             rows = in * static_cast<size_t>(w.spec.bits) / 32;
  std::vector<uint8_t> codes(in);
  std::vector<uint32_t> words(rows), all(rows * out);
  for (size_t n = 0; n < out; ++n) {
    integer_of(w).codes.get_row(static_cast<int64_t>(n), codes);
    pack(codes, w.spec.bits, words);
    for (size_t i = 0; i < rows; ++i) all[i * out + n] = words[i];
  }
  sink(bytes_of(all));
}

// The result is (groups, out b / 32): the zero points of group g are the string along row g.
void write_qzeros(const LinearWeight& w, Packer pack, const ByteSink& sink) {
  std::vector<uint8_t> zeros(static_cast<size_t>(w.out));
  std::vector<uint32_t> words(zeros.size() * static_cast<size_t>(w.spec.bits) / 32);
  for (int64_t g = 0; g < w.spec.groups(w.in); ++g) {
    for (size_t n = 0; n < zeros.size(); ++n)
      zeros[n] = static_cast<uint8_t>(group_zero(w, static_cast<int64_t>(n), g));
    pack(zeros, w.spec.bits, words);
    sink(bytes_of(words));
  }
}

void write_gptq_scales(const LinearWeight& w, LinearId id, const ByteSink& sink) {
  std::vector<f16> row(static_cast<size_t>(w.out));
  for (int64_t g = 0; g < w.spec.groups(w.in); ++g) {
    for (size_t n = 0; n < row.size(); ++n)
      row[n] = f16_or_throw(group_scale(w, static_cast<int64_t>(n), g), id, "a scale of");
    sink(bytes_of(row));
  }
}

void append_gptq(const Checkpoint& source, LinearId id, Packer pack, std::vector<TensorToWrite>& tensors) {
  const FormatSpec spec = source.format(id);
  const Shape shape = shape_of(source.config(), id);
  const int64_t out = shape[0], in = shape[1], groups = spec.groups(in);
  const auto add = [&](const char* suffix, DType dtype, Shape s, auto write) {
    tensors.push_back({module_name(id) + suffix, dtype, s,
                       [&source, id, write](const ByteSink& sink) { write(source.linear(id), sink); }});
  };
  add(".qweight", DType::i32, {in * spec.bits / 32, out},
      [pack](const LinearWeight& w, const ByteSink& sink) { write_qweight(w, pack, sink); });
  add(".qzeros", DType::i32, {groups, out * spec.bits / 32},
      [pack](const LinearWeight& w, const ByteSink& sink) { write_qzeros(w, pack, sink); });
  add(".scales", DType::f16, {groups, out},
      [id](const LinearWeight& w, const ByteSink& sink) { write_gptq_scales(w, id, sink); });
  add(".g_idx", DType::i32, {in}, [](const LinearWeight& w, const ByteSink& sink) {
    std::vector<int32_t> group(static_cast<size_t>(w.in));
    for (size_t k = 0; k < group.size(); ++k)
      group[k] = static_cast<int32_t>(static_cast<int64_t>(k) / w.spec.group_size(w.in));
    sink(bytes_of(group));
  });
}

json spec_json(const FormatSpec& spec) {
  return {{"bits", spec.bits},
          {"group_size", spec.group == 0 ? -1 : spec.group},
          {"sym", spec.symmetric},
          {"desc_act", false}};
}

// A rule names the linears of the unit and, if all linears of a fused unit have it, the fused name too, as engines
// search for that one.
std::string rule(const std::vector<LinearId>& ids, size_t unit_size) {
  std::string pattern;
  for (char c : module_name(ids.front()).substr(0, module_name(ids.front()).rfind('.') + 1))
    pattern += c == '.' ? std::string("\\.") : std::string(1, c);
  pattern += "(";
  for (LinearId id : ids) pattern += module_name(id).substr(module_name(id).rfind('.') + 1) + "|";
  if (unit_size > 1 && ids.size() == unit_size) pattern += ids.front().role == Role::q ? "qkv_proj|" : "gate_up_proj|";
  pattern.back() = ')';
  return "^" + pattern + "$";
}

json gptq_json(const Checkpoint& source, bool planar) {
  // Formats that differ only in the kind of scale count as one here.
  const auto key = [](const FormatSpec& s) { return std::tuple(s.is_dense(), s.bits, s.group, s.symmetric); };
  std::map<std::tuple<bool, int, int, bool>, std::pair<int64_t, FormatSpec>> weights;
  for (const auto& unit : fused_units(source.config()))
    for (LinearId id : unit) {
      FormatSpec spec = source.format(id);
      if (spec.is_dense()) continue;
      auto& [elements, some] = weights[key(spec)];
      elements += shape_of(source.config(), id).elements();
      some = spec;
    }
  check(!weights.empty(), "{}: no linear of a layer is quantised; there is nothing to export to {}", source.folder(),
        kGptqTarget);
  const FormatSpec common = std::max_element(weights.begin(), weights.end(), [](const auto& a, const auto& b) {
                              return a.second.first < b.second.first;
                            })->second.second;

  json dynamic = json::object();
  for (const auto& unit : fused_units(source.config())) {
    std::map<std::tuple<bool, int, int, bool>, std::vector<LinearId>> by_format;
    for (LinearId id : unit) by_format[key(source.format(id))].push_back(id);
    for (const auto& [k, ids] : by_format) {
      const FormatSpec spec = source.format(ids.front());
      if (spec.is_dense())
        dynamic["-:" + rule(ids, unit.size())] = json::object();
      else if (k != key(common))
        dynamic["+:" + rule(ids, unit.size())] = spec_json(spec);
    }
  }
  json config = spec_json(common);
  config.update({{"quant_method", "gptq"},
                 {"checkpoint_format", planar ? "gptq_p" : "gptq_v2"},
                 {"pack_dtype", "int32"},
                 {"lm_head", false},
                 {"meta", {{"quantizer", fmt::format("fidelio:{}", FIDELIO_VERSION)}}}});
  if (!dynamic.empty()) config["dynamic"] = std::move(dynamic);
  return config;
}

}  // namespace

std::vector<std::string> export_gptq(const Checkpoint& source, const std::string& folder, ServingProfile profile) {
  check_fits_gptq(source, profile);
  check_half_scales(source, kGptqTarget);
  const std::vector<LinearId> ids = linears_of(source.config());
  const bool planar = std::any_of(ids.begin(), ids.end(), [&](LinearId id) {
    const FormatSpec spec = source.format(id);
    return !is_outer(id) && spec.kind == Kind::integer && spec.bits >= 5 && spec.bits <= 7;
  });
  json config = config_json(source);
  config["quantization_config"] = gptq_json(source, planar);

  std::vector<std::string> notes;
  std::vector<TensorToWrite> tensors;
  for (LinearId id : ids) {
    const FormatSpec spec = source.format(id);
    if (!spec.is_dense() && !is_outer(id)) {
      append_gptq(source, id, planar ? pack_planar : pack_fields, tensors);
      if (spec.scale == ScaleKind::u8)
        notes.push_back(fmt::format("{} ({}): scales are rounded to FP16", to_string(id), to_string(spec)));
      continue;
    }
    tensors.push_back(dense_tensor(source, id));
    if (!spec.is_dense())
      notes.push_back(
          fmt::format("{} ({}) is decoded to {}", to_string(id), to_string(spec), name_of(half_type(source.config()))));
  }
  if (planar)
    notes.push_back("checkpoint_format is gptq_p, for 5, 6 or 7 bits: GPTQModel reads it, older readers do not");
  append_small_tensors(source, tensors);
  note_predictor(source, kGptqTarget, notes);
  const std::string quantize_config = config["quantization_config"].dump(2) + "\n";
  write_folder(source, folder, kGptqTarget, notes, tensors, std::move(config),
               {{"quantize_config.json", quantize_config}});
  return notes;
}

}  // namespace fidelio
