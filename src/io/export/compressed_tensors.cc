#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "io/export/common.h"
#include "io/export/export.h"

namespace fidelio {
namespace {

using namespace exporting;
using nlohmann::json;

constexpr std::string_view kCompressedTarget = "compressed-tensors";

void check_fits_compressed(const Checkpoint& source, ServingProfile profile) {
  check_separate(source, kCompressedTarget);
  for (LinearId id : linears_of(source.config())) {
    check_integer_or_dense(source, id, kCompressedTarget);
    const FormatSpec spec = source.format(id);
    if (is_outer(id) || spec.is_dense()) continue;
    const int64_t in = shape_of(source.config(), id)[1];
    if (in % spec.group_size(in) != 0)
      refuse(
          source, id, kCompressedTarget,
          fmt::format("its {} columns are not whole groups; use a group that divides them, or the whole row (int{}c)",
                      in, spec.bits));
    if (profile != ServingProfile::vllm) continue;
    if (id.expert >= 0 && (!spec.symmetric || (spec.bits != 4 && spec.bits != 8)))
      refuse(source, id, kCompressedTarget,
             "with --profile vllm experts are symmetric and have 4 or 8 bits; formats that fit: int4g128, int8g128, or "
             "export without the profile");
    if (!spec.symmetric && spec.bits != 4 && spec.bits != 8)
      refuse(source, id, kCompressedTarget,
             fmt::format("with --profile vllm zero points go with 4 and 8 bits only; formats that fit: int{}g128, "
                         "int4g128z, int8g128z, or export without the profile",
                         spec.bits));
    if (spec.group == 16)
      refuse(source, id, kCompressedTarget,
             "with --profile vllm groups are 32, 64, 128 columns or the whole row; or export without the profile");
  }
  check_fused(source, kCompressedTarget);
}

json weights_json(const FormatSpec& spec) {
  json weights = {{"num_bits", spec.bits},
                  {"type", "int"},
                  {"symmetric", spec.symmetric},
                  {"strategy", spec.group == 0 ? "channel" : "group"},
                  {"dynamic", false},
                  {"observer", "minmax"}};
  weights["group_size"] = spec.group == 0 ? json(nullptr) : json(spec.group);
  weights["actorder"] = nullptr;
  return weights;
}

// All experts of a layer have one format. vLLM asks by the names gate_proj, up_proj and down_proj whatever the files
// call them, and transformers takes the first group with a pattern of experts for that of all experts.
std::string experts_pattern(const ModelConfig& config, LinearId id) {
  const std::string module = file_module_name(config, id), experts = ".experts.";
  std::string pattern = "re:^";
  for (char c : module.substr(0, module.find(experts) + experts.size()))
    pattern += c == '.' ? std::string("\\.") : std::string(1, c);
  return pattern;
}

// Targets are exact module names, except for experts: readers try them on every module, and on the parts of a fused
// one.
json compressed_json(const Checkpoint& source) {
  const ModelConfig& c = source.config();
  std::map<std::tuple<bool, int, int, bool>, std::pair<FormatSpec, json>> groups;
  json ignore = json::array();
  for (LinearId id : linears_of(c)) {
    if (id.role == Role::embedding || is_table(id.role) || id.expert > 0 || (id.expert == 0 && id.role != Role::gate))
      continue;
    const FormatSpec spec = source.format(id);
    const std::string target = id.expert < 0 ? file_module_name(c, id) : experts_pattern(c, id);
    if (spec.is_dense() || id.role == Role::head) {
      ignore.push_back(target);
      continue;
    }
    const std::tuple key{id.expert >= 0, spec.bits, spec.group, spec.symmetric};
    groups.try_emplace(key, spec, json::array()).first->second.second.push_back(target);
  }
  for (const LinearId id : fixed_linears_of(c)) ignore.push_back(module_name(id));
  for (const std::string& router : router_names(c)) ignore.push_back(router.substr(0, router.rfind('.')));
  if (c.tie_embeddings) ignore.push_back("lm_head");  // It has no tensor of its own, but is a Linear all the same.
  json named = json::object();
  for (auto& [key, group] : groups)
    named[fmt::format("group_{}", named.size())] = {{"targets", std::move(group.second)},
                                                    {"weights", weights_json(group.first)},
                                                    {"input_activations", nullptr},
                                                    {"output_activations", nullptr},
                                                    {"format", "pack-quantized"}};
  return {{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"},  {"quantization_status", "compressed"},
          {"config_groups", std::move(named)},    {"ignore", std::move(ignore)}, {"kv_cache_scheme", nullptr},
          {"global_compression_ratio", nullptr}};
}

int64_t words_for(int64_t fields, int bits) { return (fields * bits + 31) / 32; }

void write_packed(const LinearWeight& w, const ByteSink& sink) {
  std::vector<uint8_t> codes(static_cast<size_t>(w.in));
  std::vector<uint32_t> words(static_cast<size_t>(words_for(w.in, w.spec.bits)));
  for (int64_t row = 0; row < w.out; ++row) {
    integer_of(w).codes.get_row(row, codes);
    pack_fields(codes, w.spec.bits, words);
    sink(bytes_of(words));
  }
}

void write_compressed_scales(const LinearWeight& w, const ByteSink& sink) {
  if (w.spec.scale == ScaleKind::f16) {
    const Tensor& t = integer_of(w).scale.view;
    return sink({t.data, static_cast<size_t>(t.bytes())});
  }
  std::vector<float> row(static_cast<size_t>(w.spec.groups(w.in)));
  for (int64_t r = 0; r < w.out; ++r) {
    for (size_t g = 0; g < row.size(); ++g) row[g] = group_scale(w, r, static_cast<int64_t>(g));
    sink(bytes_of(row));
  }
}

// Column g of the (out, groups) zero points is one string of fields.
void write_zeros(const LinearWeight& w, const ByteSink& sink) {
  const auto groups = static_cast<size_t>(w.spec.groups(w.in)),
             rows = static_cast<size_t>(words_for(w.out, w.spec.bits));
  std::vector<uint8_t> column(static_cast<size_t>(w.out));
  std::vector<uint32_t> words(rows), all(rows * groups);
  for (size_t g = 0; g < groups; ++g) {
    for (size_t r = 0; r < column.size(); ++r)
      column[r] = static_cast<uint8_t>(get_zero(integer_of(w), static_cast<int64_t>(r), static_cast<int64_t>(g)));
    pack_fields(column, w.spec.bits, words);
    for (size_t i = 0; i < rows; ++i) all[i * groups + g] = words[i];
  }
  sink(bytes_of(all));
}

void append_compressed(const Checkpoint& source, LinearId id, std::vector<TensorToWrite>& tensors) {
  const FormatSpec spec = source.format(id);
  const Shape shape = shape_of(source.config(), id);
  const int64_t out = shape[0], in = shape[1], groups = spec.groups(in);
  const auto add = [&](const char* suffix, DType dtype, Shape s, void (*write)(const LinearWeight&, const ByteSink&)) {
    tensors.push_back({file_module_name(source.config(), id) + suffix, dtype, s,
                       [&source, id, write](const ByteSink& sink) { write(source.linear(id), sink); }});
  };
  add(".weight_shape", DType::i64, {2}, [](const LinearWeight& w, const ByteSink& sink) {
    sink(bytes_of(std::vector<int64_t>{w.out, w.in}));
  });
  add(".weight_packed", DType::i32, {out, words_for(in, spec.bits)}, write_packed);
  if (!spec.symmetric) add(".weight_zero_point", DType::i32, {words_for(out, spec.bits), groups}, write_zeros);
  add(".weight_scale", spec.scale == ScaleKind::f16 ? DType::f16 : DType::f32, {out, groups}, write_compressed_scales);
}

std::set<std::string> formats_of_experts(const Checkpoint& source) {
  std::set<std::string> formats;
  for (LinearId id : linears_of(source.config()))
    if (id.expert >= 0) formats.insert(to_string(source.format(id)));
  return formats;
}

}  // namespace

std::vector<std::string> export_compressed_tensors(const Checkpoint& source, const std::string& folder,
                                                   ServingProfile profile) {
  check_fits_compressed(source, profile);
  std::vector<std::string> notes;
  std::vector<TensorToWrite> tensors;
  bool any = false, zeros = false;
  for (LinearId id : linears_of(source.config())) {
    const bool coded = !source.format(id).is_dense();
    if (coded && !is_outer(id)) {
      any = true;
      zeros |= !source.format(id).symmetric;
      append_compressed(source, id, tensors);
      continue;
    }
    tensors.push_back(dense_tensor(source, id));
    if (coded)
      notes.push_back(fmt::format("{} ({}) is decoded to {}", to_string(id), to_string(source.format(id)),
                                  name_of(half_type(source.config()))));
  }
  check(any, "{}: no linear of a layer is quantised; there is nothing to export to {}", source.folder(),
        kCompressedTarget);
  if (zeros)
    notes.push_back(
        "it is asymmetric: vLLM reads it, transformers does not yet. Zero points are packed as vLLM reads them, and "
        "transformers 5.24 with compressed-tensors 0.20 fails on their shape; for it quantise without z, as int4g128");
  if (formats_of_experts(source).size() > 1)
    notes.push_back(
        "layers have experts of different formats: vLLM reads each layer's, but transformers 5.24 reads all by one of "
        "them");
  append_small_tensors(source, tensors);
  json config = config_json(source);
  config["quantization_config"] = compressed_json(source);
  note_predictor(source, kCompressedTarget, notes);
  write_folder(source, folder, kCompressedTarget, notes, tensors, std::move(config));
  return notes;
}

}  // namespace fidelio
