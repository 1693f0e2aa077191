#include "io/export/gguf.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "io/export/common.h"
#include "io/export/export.h"
#include "io/gguf/names.h"
#include "io/gguf/orders.h"
#include "io/gguf/super/super_blocks.h"
#include "io/identity/weights_hash.h"

namespace fidelio {
namespace {

using namespace exporting;

constexpr std::string_view kGgufTarget = "gguf";
constexpr uint64_t kAlignment = 32;
constexpr int64_t kBlock = 32;

// This describes an element type of the file by its number, its blocks (of 32 elements except for the first three
// types), and the number of the type for a whole file.
//   q4_0  f16 d          | 16 bytes: low nibbles elements 0-15, high 16-31          w = d (q - 8)
//   q4_1  f16 d | f16 m  | the same                                                 w = d q + m
//   q5_0  f16 d          | u32: fifth bit of element i at bit i | 16 bytes          w = d (q - 16)
//   q5_1  f16 d | f16 m  | the same                                                 w = d q + m
//   q8_0  f16 d          | 32 signed bytes                                          w = d q
//   mxfp4 a byte s       | 16 bytes of E2M1, as in q4_0                             w = 2^(s - 127) e2m1(q)
struct Type {
  uint32_t number;
  int64_t elements, bytes;
  uint32_t file_type;
  int bits;          // These are the bits of a field.
  bool has_minimum;  // If true, the block has the minimum m.
};
constexpr Type kTypeF32{0, 1, 4, 0, 0, false}, kTypeF16{1, 1, 2, 1, 0, false}, kTypeBf16{30, 1, 2, 32, 0, false};
constexpr Type kQ4_0{2, 32, 18, 2, 4, false}, kQ4_1{3, 32, 20, 3, 4, true}, kQ5_0{6, 32, 22, 8, 5, false},
    kQ5_1{7, 32, 24, 9, 5, true}, kQ8_0{8, 32, 34, 7, 8, false}, kMxfp4{39, 32, 17, 38, 4, false};

Type type_for(const FormatSpec& spec, bool exact) {
  switch (spec.kind) {
    case Kind::f32:
      return kTypeF32;
    case Kind::f16:
      return kTypeF16;
    case Kind::bf16:
      return kTypeBf16;
    case Kind::mxfp4:
      return kMxfp4;
    case Kind::super_block: {  // Any file of ours has a type for it, because the formats are those of ggml's types.
      const gguf::SuperType& type = *gguf::super_type(spec);
      return {type.number, type.spec.super, type.bytes, type.file_type, spec.bits, !spec.symmetric};
    }
    default:
      break;
  }
  if (spec.bits > 5 || (exact && !spec.symmetric)) return kQ8_0;
  if (spec.symmetric) return spec.bits == 5 ? kQ5_0 : kQ4_0;
  return spec.bits == 5 ? kQ5_1 : kQ4_1;
}

struct GgufTensor {
  std::string name;
  Type type;
  std::vector<int64_t> sizes;  // The fastest dimension comes first.
  std::function<void(const ByteSink&)> produce;

  uint64_t bytes() const {
    int64_t elements = 1;
    for (int64_t size : sizes) elements *= size;
    return static_cast<uint64_t>(elements / type.elements * type.bytes);
  }
};

// Returns which of our rows, or columns, stands at each place of the file (io/gguf/orders.h).
gguf::Order rows_in_file(const ModelConfig& c, LinearId id) {
  return gguf::inverse(gguf::row_order(c, id, gguf_architecture(c)));
}
gguf::Order columns_in_file(const ModelConfig& c, LinearId id) {
  return gguf::inverse(gguf::column_order(c, id, gguf_architecture(c)));
}
int64_t at_place(const gguf::Order& order, int64_t place) {
  return order.empty() ? place : order[static_cast<size_t>(place)];
}

void append_half(std::string& bytes, f16 value) { bytes.append(reinterpret_cast<const char*>(&value.bits), 2); }

// `fields` are the values that the block type stores for 32 codes.
void append_fields(std::string& bytes, const Type& type, std::span<const int, kBlock> fields) {
  if (type.bits == 8) {
    for (int field : fields) bytes += static_cast<char>(static_cast<int8_t>(field));
    return;
  }
  if (type.bits == 5) {
    uint32_t high = 0;
    for (size_t i = 0; i < fields.size(); ++i) high |= static_cast<uint32_t>(fields[i] >> 4 & 1) << i;
    append_u32(bytes, high);
  }
  for (size_t i = 0; i < 16; ++i) bytes += static_cast<char>((fields[i] & 15) | (fields[i + 16] & 15) << 4);
}

std::string encode_mxfp4_row(const LinearWeight& w, int64_t row, const gguf::Order& columns) {
  const auto& m = std::get<FpBlock>(w.main);
  std::vector<uint8_t> codes(static_cast<size_t>(w.in));
  m.codes.get_row(row, codes);
  std::string bytes;
  for (int64_t place = 0; place < w.in; place += kBlock) {
    const auto begin = static_cast<size_t>(at_place(columns, place));
    bytes +=
        static_cast<char>(m.scale.as<const uint8_t>()[static_cast<size_t>(row * (w.in / kBlock)) + begin / kBlock]);
    std::array<int, kBlock> fields;
    for (size_t i = 0; i < fields.size(); ++i) fields[i] = codes[begin + i];
    append_fields(bytes, kMxfp4, fields);
  }
  return bytes;
}

// `columns` move in whole blocks (gguf::moves_blocks).
std::string encode_row(const LinearWeight& w, LinearId id, int64_t row, const gguf::Order& columns, const Type& type) {
  if (w.spec.kind == Kind::mxfp4) return encode_mxfp4_row(w, row, columns);
  if (w.spec.kind == Kind::super_block) return gguf::write_super_row(w, row, columns);
  std::vector<uint8_t> codes(static_cast<size_t>(w.in));
  integer_of(w).codes.get_row(row, codes);
  std::string bytes;
  for (int64_t place = 0; place < w.in; place += kBlock) {
    const int64_t begin = at_place(columns, place), g = begin / w.spec.group_size(w.in);
    const f16 scale = f16_or_throw(group_scale(w, row, g), id, "a scale of");
    const int zero = group_zero(w, row, g);
    append_half(bytes, scale);
    // The minimum is computed from the scale as stored.
    if (type.has_minimum)
      append_half(bytes, f16_or_throw(-to_float(scale) * static_cast<float>(zero), id, "the minimum of a group,"));
    const int offset = type.has_minimum ? 0 : type.bits == 8 ? -zero : (1 << (type.bits - 1)) - zero;
    std::array<int, kBlock> fields;
    for (size_t i = 0; i < fields.size(); ++i) fields[i] = codes[static_cast<size_t>(begin) + i] + offset;
    append_fields(bytes, type, fields);
  }
  return bytes;
}

// Returns why no block type holds these integer codes, or "" if one does.
std::string misfit(const Checkpoint& source, LinearId id) {
  const FormatSpec spec = source.format(id);
  const int64_t in = shape_of(source.config(), id)[1];
  if (spec.kind == Kind::super_block) {
    const gguf::SuperType& type = *gguf::super_type(spec);
    if (in % type.spec.super == 0 && gguf::super_format(type, columns_in_file(source.config(), id))) return "";
    return fmt::format("its {} columns are not in blocks of {} there", in, type.spec.super);
  }
  if (spec.kind != Kind::integer && spec.kind != Kind::mxfp4) return "";
  if (spec.bits == 8 && !spec.symmetric)
    return "q - z of 8 bits with a zero point is not a signed byte; formats that fit: int8g128, int7g128z";
  if (in % kBlock != 0 || spec.group_size(in) % kBlock != 0)
    return fmt::format(
        "its {} columns in groups of {} are not in blocks of {}; formats that fit: dense, or groups of 32, 64, 128 "
        "columns where {} divides the columns",
        in, spec.group_size(in), kBlock, kBlock);
  if (!gguf::moves_blocks(gguf::column_order(source.config(), id, gguf_architecture(source.config()))))
    return fmt::format("llama.cpp keeps value heads in another order, and {} columns of a head are not blocks of {}",
                       source.config().delta.value_dim, kBlock);
  return "";
}

}  // namespace

namespace exporting {
bool is_decoded(const Checkpoint& source, LinearId id) {
  if (is_outer(id)) return !misfit(source, id).empty();
  const FormatSpec spec = source.format(id);
  return id.layer == kPredictorLayer &&
         ((!spec.is_dense() && spec.kind != Kind::integer && spec.kind != Kind::super_block) ||
          !misfit(source, id).empty());
}
}  // namespace exporting

namespace {

Type decoded_type(const Checkpoint& source, bool exact) {
  return exact ? kTypeF32 : half_type(source.config()) == DType::f16 ? kTypeF16 : kTypeBf16;
}

GgufTensor decoded_tensor(const Checkpoint& source, LinearId id, bool exact) {
  const Shape shape = shape_of(source.config(), id);
  const auto in_f32 = [&source, id, shape](const ByteSink& sink) {
    const LinearWeight w = source.linear(id);
    std::vector<float> row(static_cast<size_t>(shape[1]));
    for (int64_t r = 0; r < shape[0]; ++r) {
      decode_row(w, r, row);
      sink(bytes_of(row));
    }
  };
  return {gguf::tensor_name(source.config(), id) + ".weight",
          decoded_type(source, exact),
          {shape[1], shape[0]},
          exact ? std::function<void(const ByteSink&)>(in_f32) : dense_tensor(source, id).produce};
}

// All experts of a layer are one tensor, which the first one makes.
GgufTensor with_other_experts(const Checkpoint& source, LinearId id, const std::function<GgufTensor(LinearId)>& make) {
  GgufTensor tensor = make(id);
  const int experts = source.config().experts;
  if (id.expert != 0) return tensor;
  tensor.sizes.push_back(experts);
  tensor.produce = [id, experts, make](const ByteSink& sink) {
    for (LinearId one = id; one.expert < experts; ++one.expert) make(one).produce(sink);
  };
  return tensor;
}

void write_rows(const Checkpoint& source, LinearId id, const Type& type, const ByteSink& sink) {
  const LinearWeight w = source.linear(id);
  const auto* dense = std::get_if<Dense>(&w.main);
  const gguf::Order rows = rows_in_file(source.config(), id), columns = columns_in_file(source.config(), id);
  std::vector<std::byte> moved(static_cast<size_t>(columns.empty() ? 0 : w.in * type.bytes));
  for (int64_t r = 0; r < w.out; ++r) {
    const int64_t row = at_place(rows, r);
    if (!dense) {
      const std::string bytes = encode_row(w, id, row, columns, type);
      sink(std::as_bytes(std::span(bytes)));
      continue;
    }
    const std::byte* from = dense->w.view.data + row * w.in * type.bytes;
    for (size_t i = 0; i < columns.size(); ++i)
      std::memcpy(moved.data() + i * static_cast<size_t>(type.bytes), from + columns[i] * type.bytes,
                  static_cast<size_t>(type.bytes));
    sink({columns.empty() ? from : moved.data(), static_cast<size_t>(w.in * type.bytes)});
  }
}

// For the first expert this makes the tensor of all experts in the layer.
GgufTensor weight_tensor(const Checkpoint& source, LinearId asked, bool exact) {
  return with_other_experts(source, asked, [&source, exact](LinearId id) -> GgufTensor {
    if (is_decoded(source, id)) return decoded_tensor(source, id, exact);
    const Shape shape = shape_of(source.config(), id);
    const Type type = type_for(source.format(id), exact);
    return {gguf::tensor_name(source.config(), id) + ".weight",
            type,
            {shape[1], shape[0]},
            [&source, id, type](const ByteSink& sink) { write_rows(source, id, type, sink); }};
  });
}

GgufTensor router_tensor(const Checkpoint& source, int layer) {
  const ModelConfig& c = source.config();
  return {gguf::router_tensor_name(gguf::layer_in_file(c, layer)),
          kTypeF32,
          {c.d, c.experts},
          [&source, layer](const ByteSink& sink) {
            const LinearWeight router = source.router(layer);
            sink(std::as_bytes(std::get<Dense>(router.main).w.as<const float>()));
          }};
}

GgufTensor vector_tensor(std::string name, std::vector<float> values) {
  const auto size = static_cast<int64_t>(values.size());
  return {std::move(name), kTypeF32, {size}, [values = std::move(values)](const ByteSink& sink) {
            sink(bytes_of(values));
          }};
}

// The biases of a layer's experts are one tensor too, with a row for each expert.
GgufTensor experts_bias_tensor(const Checkpoint& source, LinearId id) {
  const ModelConfig& c = source.config();
  std::vector<float> all;
  for (LinearId one = id; one.expert < c.experts; ++one.expert) {
    const OwnedTensor bias = source.linear_bias(one);
    const auto values = bias.as<const float>();
    all.insert(all.end(), values.begin(), values.end());
  }
  GgufTensor tensor = vector_tensor(gguf::tensor_name(c, id) + ".bias", std::move(all));
  tensor.sizes = {shape_of(c, id)[0], c.experts};
  return tensor;
}

GgufTensor bias_tensor(const Checkpoint& source, LinearId id) {
  if (id.expert >= 0) return experts_bias_tensor(source, id);
  const OwnedTensor bias = source.linear_bias(id);
  const auto values = bias.as<const float>();
  const gguf::Order order = rows_in_file(source.config(), id);
  std::vector<float> rows(values.size());
  for (size_t r = 0; r < rows.size(); ++r)
    rows[r] = values[static_cast<size_t>(at_place(order, static_cast<int64_t>(r)))];
  return vector_tensor(gguf::tensor_name(source.config(), id) + ".bias", std::move(rows));
}

// Appends what a delta net has besides linears, with the decay's rate in place of its logarithm.
void append_delta(const Checkpoint& source, int layer, std::vector<GgufTensor>& tensors) {
  const ModelConfig& c = source.config();
  for (const DeltaTensor which : kDeltaTensors) {
    const std::vector<float> ours = source.delta(layer, which);
    const gguf::Order order = gguf::inverse(gguf::delta_order(c, which, gguf_architecture(c)));
    const auto rows = delta_shape(c, which)[0];
    const size_t each = ours.size() / static_cast<size_t>(rows);
    std::vector<float> values;
    for (int64_t r = 0; r < rows; ++r) {
      const auto* from = ours.data() + static_cast<size_t>(at_place(order, r)) * each;
      values.insert(values.end(), from, from + each);
    }
    if (which == DeltaTensor::log_rate)
      for (float& value : values) value = -std::exp(value);
    tensors.push_back(vector_tensor(gguf::tensor_name(layer, which), std::move(values)));
    if (which == DeltaTensor::convolution) tensors.back().sizes = {static_cast<int64_t>(each), rows};
  }
}

// Appends the linears that are never quantised.
void append_fixed(const Checkpoint& source, std::vector<GgufTensor>& tensors) {
  const ModelConfig& c = source.config();
  const bool fused = gguf::gates_are_fused(gguf_architecture(c));
  for (const LinearId id : kept_linears_of(c)) {
    if (!is_fixed(id.role)) continue;
    if (id.role == Role::shared_router) {
      const std::string name = gguf::tensor_name(c, id) + ".weight";
      tensors.push_back(vector_tensor(name, decode(source.linear(id))));
      tensors.back().sizes = {c.d, 1};
    } else if (!fused) {
      tensors.push_back(weight_tensor(source, id, false));
    } else if (id.role == Role::delta_b) {
      const int64_t rows = 2 * c.delta.value_heads;
      std::vector<float> both(static_cast<size_t>(rows * c.d));
      for (const LinearId one : {id, LinearId{id.layer, Role::delta_a}}) {
        const std::vector<float> values = decode(source.linear(one));
        const gguf::Order order = gguf::row_order(c, one, gguf_architecture(c));
        for (size_t r = 0; r < order.size(); ++r)
          std::copy_n(values.data() + r * static_cast<size_t>(c.d), c.d, both.data() + order[r] * c.d);
      }
      tensors.push_back(vector_tensor(gguf::fused_gates_name(id.layer) + ".weight", std::move(both)));
      tensors.back().sizes = {c.d, rows};
    }
  }
}

void check_fits_gguf(const Checkpoint& source, bool exact) {
  for (LinearId id : linears_of(source.config())) {
    const Kind kind = source.format(id).kind;
    if (kind != Kind::mxfp4 && kind != Kind::super_block) check_integer_or_dense(source, id, kGgufTarget);
    if (const std::string reason = misfit(source, id); !reason.empty() && !is_outer(id))
      refuse(source, id, kGgufTarget, reason);
    if (id.expert <= 0) continue;
    const LinearId first{id.layer, id.role, 0};
    if (type_for(source.format(id), exact).number != type_for(source.format(first), exact).number)
      refuse(
          source, id, kGgufTarget,
          fmt::format("llama.cpp keeps all experts of a layer in one tensor of one type, and {} is {}; give them one "
                      "format",
                      to_string(first), to_string(source.format(first))));
  }
}

// Llama 3's scaling is stored as a tensor of divisors of the plain frequencies.
std::vector<float> rope_divisors(const ModelConfig& c) {
  ModelConfig plain = c;
  plain.rope.type = RopeType::plain;
  const auto scaled = rope_inverse_frequencies(c), base = rope_inverse_frequencies(plain);
  std::vector<float> divisors(base.size());
  for (size_t i = 0; i < base.size(); ++i) divisors[i] = base[i] / scaled[i];
  return divisors;
}

// The linears of the model and of its predictor, without those that are never quantised.
std::vector<LinearId> written_linears(const ModelConfig& c) {
  std::vector<LinearId> linears = linears_of(c);
  for (const LinearId id : predictor_linears_of(c))
    if (!is_fixed(id.role)) linears.push_back(id);
  return linears;
}

std::vector<GgufTensor> tensors_of(const Checkpoint& source, bool exact) {
  std::vector<GgufTensor> tensors;
  const ModelConfig& c = source.config();
  for (LinearId id : written_linears(c)) {
    if (id.expert > 0) continue;
    tensors.push_back(weight_tensor(source, id, exact));
    if (has_bias(c, id.role)) tensors.push_back(bias_tensor(source, id));
  }
  for (const auto& norms : {norms_of(c), predictor_norms_of(c)})
    for (auto [layer, which] : norms)
      tensors.push_back(vector_tensor(gguf::tensor_name(c, layer, which), source.norm(layer, which)));
  for (const int layer : routed_layers(c)) {
    tensors.push_back(router_tensor(source, layer));
    for (const RouterTensor which : router_tensors(c))
      tensors.push_back(vector_tensor(gguf::router_tensor_name(layer, which), source.router(layer, which)));
  }
  if (c.predictor && has_experts(c, kPredictorLayer)) tensors.push_back(router_tensor(source, kPredictorLayer));
  for (const int layer : delta_layers(source.config())) append_delta(source, layer, tensors);
  append_fixed(source, tensors);
  if (c.architecture == Architecture::gemma4) tensors.push_back(vector_tensor("rope_freqs.weight", gemma4_divisors(c)));
  if (source.config().rope.type == RopeType::llama3)
    tensors.push_back(vector_tensor("rope_freqs.weight", rope_divisors(source.config())));
  return tensors;
}

// The type of the file is the one that takes most of the bytes.
uint32_t file_type_of(const std::vector<GgufTensor>& tensors) {
  std::map<uint32_t, uint64_t> bytes;
  for (const GgufTensor& t : tensors)
    if (t.sizes.size() >= 2) bytes[t.type.file_type] += t.bytes();
  return std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

uint64_t padded(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void write_gguf(const std::string& path, const GgufKeys& keys, const std::vector<GgufTensor>& tensors) {
  std::string header = "GGUF";
  append_u32(header, 3);
  append_u64(header, tensors.size());
  append_u64(header, keys.count());
  header += keys.bytes();
  uint64_t offset = 0;
  for (const GgufTensor& t : tensors) {
    append_string(header, t.name);
    append_u32(header, static_cast<uint32_t>(t.sizes.size()));
    for (int64_t size : t.sizes) append_u64(header, static_cast<uint64_t>(size));
    append_u32(header, t.type.number);
    append_u64(header, offset);
    offset += padded(t.bytes());
  }
  header.resize(padded(header.size()));
  AtomicFile file(path);
  file.write(header);
  for (const GgufTensor& t : tensors) {
    t.produce([&](std::span<const std::byte> bytes) { file.write(bytes); });
    file.write(std::string(padded(t.bytes()) - t.bytes(), '\0'));
  }
  file.commit();
}

// Returns what is rounded in a linear, as words that follow its format, or "" if nothing is.
std::string rounded(const Checkpoint& source, LinearId id, bool exact) {
  const FormatSpec spec = source.format(id);
  if (spec.is_dense()) return "";
  if (is_decoded(source, id))
    return fmt::format(" is decoded to {}; int8g32 would stay as it is",
                       exact ? "F32" : name_of(half_type(source.config())));
  if (spec.kind == Kind::super_block) return "";
  const bool minimum = type_for(spec, exact).has_minimum, scales = spec.scale == ScaleKind::u8;
  if (!minimum && !scales) return "";
  return minimum && scales ? ": scales and minima are rounded to FP16"
         : minimum         ? ": minima are rounded to FP16"
                           : ": scales are rounded to FP16";
}

// Returns a line for each linear, and one line for all experts of a layer about which the same is true.
std::vector<std::string> rounding_notes(const Checkpoint& source, bool exact) {
  struct Said {
    LinearId first;
    std::string what;
    int others = 0;
  };
  std::vector<Said> all;
  std::map<std::tuple<int, Role, std::string>, size_t> experts;
  for (LinearId id : written_linears(source.config())) {
    std::string what = rounded(source, id, exact);
    if (what.empty()) continue;
    what = fmt::format("({}){}", to_string(source.format(id)), what);
    const auto [found, is_new] = experts.try_emplace({id.layer, id.role, id.expert < 0 ? "" : what}, all.size());
    if (is_new)
      all.push_back({id, std::move(what)});
    else
      ++all[found->second].others;
  }
  std::vector<std::string> notes;
  for (const Said& said : all)
    notes.push_back(fmt::format("{}{} {}", to_string(said.first),
                                said.others > 0 ? fmt::format(" and {} other experts", said.others) : "", said.what));
  return notes;
}

// The certificate has a key of its own, because readers of the file search for it first. All other keys must have been
// put already.
void put_statement(GgufKeys& keys, const Checkpoint& source, const std::vector<std::string>& notes,
                   const std::vector<GgufTensor>& tensors) {
  WeightsHash hash;
  for (const GgufTensor& t : tensors) hash.add({t.name, DType::u8, {}, t.produce});
  nlohmann::json statement = statement_of(source, kGgufTarget, notes, identity_of(hash, keys.hashes()));
  nlohmann::json& provenance = statement["provenance"];
  if (provenance.is_object() && provenance.contains("certificate")) {
    keys.put_string("fidelio.certificate", provenance["certificate"].dump());
    provenance.erase("certificate");
  }
  keys.put_string("fidelio.export", statement.dump());
}

void put_tokenizer_of(const Checkpoint& source, GgufKeys& keys) {
  const ModelConfig& c = source.config();
  put_tokenizer(keys, source.texts(), c.v, c.eos_ids.empty() ? -1 : c.eos_ids.front());
}

}  // namespace

std::vector<std::string> export_gguf(const Checkpoint& source, const std::string& file, bool exact) {
  check(!std::filesystem::exists(file), "{} exists already; choose another output file or remove it", file);
  check_gguf_model(source);
  check_fits_gguf(source, exact);
  check_half_scales(source, kGgufTarget);
  const std::vector<GgufTensor> tensors = tensors_of(source, exact);
  GgufKeys keys;
  put_model(keys, source, file_type_of(tensors));
  put_sampling(keys, source.texts());
  keys.put_u32("general.alignment", kAlignment);
  const std::vector<std::string> notes = rounding_notes(source, exact);
  put_tokenizer_of(source, keys);
  put_statement(keys, source, notes, tensors);
  write_gguf(file, keys, tensors);
  return notes;
}

}  // namespace fidelio
