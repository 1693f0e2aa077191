#include "io/gguf/source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "core/foreign/json.h"
#include "core/foreign/units.h"
#include "io/checkpoint.h"
#include "io/gguf/config.h"
#include "io/gguf/names.h"
#include "io/gguf/orders.h"
#include "io/gguf/sampling.h"
#include "io/gguf/super/super_blocks.h"
#include "io/gguf/tokenizer.h"
#include "io/hf_config.h"
#include "io/identity/weights_hash.h"

namespace fidelio::gguf {
namespace {

// These are rows of a stored matrix, in the order of a linear.
struct Rows {
  std::shared_ptr<const File> file;
  StoredMatrix matrix;
  int64_t first = 0, count = 0;
  Order order, columns;  // The file has rows and columns in these orders.

  int64_t place(int64_t r) const { return first + (order.empty() ? r : order[static_cast<size_t>(r)]); }
  const uint8_t* row(int64_t r) const { return matrix.row(place(r)); }
};

FormatSpec dense_format(const BlockType& type) {
  if (type.name == "F16") return {.kind = Kind::f16, .bits = 16};
  if (type.name == "BF16") return {.kind = Kind::bf16, .bits = 16};
  return {.kind = Kind::f32, .bits = 32};
}

// Tells whether every minimum of these rows is a whole number of steps. Files made by rounding a range fail already in
// their first blocks, so a negative answer is quick.
bool minima_are_zero_points(const Rows& rows) {
  const BlockType& type = *rows.matrix.type;
  for (int64_t r = 0; r < rows.count; ++r)
    for (int64_t at = 0; at < rows.matrix.row_bytes(); at += type.bytes) {
      const uint8_t* block = rows.row(r) + at;
      if (!exact_zero(scale_of(block), minimum_of(block), type.integer.bits)) return false;
    }
  return true;
}

constexpr FormatSpec kMxfp4{.kind = Kind::mxfp4, .bits = 4, .group = 32};

FormatSpec format_of(const Rows& rows) {
  const IntegerCoding& coding = rows.matrix.type->integer;
  if (rows.matrix.type->name == "MXFP4" && rows.columns.empty()) return kMxfp4;
  if (coding.bits == 0 || (coding.minimum && !minima_are_zero_points(rows))) {
    const SuperType* super = super_type(rows.matrix.type->number);
    const std::optional<FormatSpec> spec = super ? super_format(*super, rows.columns) : std::nullopt;
    return spec ? *spec : dense_format(*rows.matrix.type);
  }
  if (!moves_blocks(rows.columns)) return {.kind = Kind::f32, .bits = 32};
  return {.kind = Kind::integer, .bits = coding.bits, .group = 32, .symmetric = !coding.minimum};
}

LinearWeight read_integer(const Rows& rows, const FormatSpec& spec) {
  const BlockType& type = *rows.matrix.type;
  const int64_t in = rows.matrix.columns, groups = in / 32;
  LinearWeight w = allocate_weight(spec, rows.count, in);
  auto& m = std::get<IntGroup>(w.main);
  std::vector<uint8_t> codes(static_cast<size_t>(in));
  for (int64_t r = 0; r < rows.count; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t place = rows.columns.empty() ? g : rows.columns[static_cast<size_t>(32 * g)] / 32;
      const uint8_t* block = rows.row(r) + place * type.bytes;
      type.integer.codes(block, codes.data() + 32 * g);
      m.scale.as<f16>()[static_cast<size_t>(r * groups + g)] = f16{scale_bits(block)};
      if (!spec.symmetric) set_zero(m, r, g, exact_zero(scale_of(block), minimum_of(block), spec.bits).value());
    }
    m.codes.set_row(r, codes);
  }
  return w;
}

// A block has its scale first, and then columns 0 to 15 in the low bits of 16 bytes and the others above them.
LinearWeight read_mxfp4(const Rows& rows) {
  constexpr int64_t kBytes = 17;
  const int64_t in = rows.matrix.columns, groups = in / 32;
  LinearWeight w = allocate_weight(kMxfp4, rows.count, in);
  auto& m = std::get<FpBlock>(w.main);
  std::vector<uint8_t> codes(static_cast<size_t>(in));
  for (int64_t r = 0; r < rows.count; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      const uint8_t* block = rows.row(r) + g * kBytes;
      m.scale.as<uint8_t>()[static_cast<size_t>(r * groups + g)] = block[0];
      for (int64_t i = 0; i < 16; ++i) {
        codes[static_cast<size_t>(32 * g + i)] = block[1 + i] & 15;
        codes[static_cast<size_t>(32 * g + 16 + i)] = block[1 + i] >> 4;
      }
    }
    m.codes.set_row(r, codes);
  }
  return w;
}

OwnedTensor read_rows(const Rows& rows) {
  const auto in = static_cast<size_t>(rows.matrix.columns);
  OwnedTensor values = OwnedTensor::allocate(DType::f32, {rows.count, rows.matrix.columns});
  std::vector<float> stored(in);
  for (int64_t r = 0; r < rows.count; ++r) {
    decode_row(*rows.matrix.type, rows.row(r), stored);
    const std::span<float> to = values.as<float>().subspan(static_cast<size_t>(r) * in, in);
    for (size_t i = 0; i < in; ++i) to[i] = stored[rows.columns.empty() ? i : static_cast<size_t>(rows.columns[i])];
  }
  return values;
}

LinearWeight read_dense(const Rows& rows, const FormatSpec& spec) {
  const BlockType& type = *rows.matrix.type;
  const int64_t in = rows.matrix.columns;
  const DType dtype = spec.kind == Kind::f32 ? DType::f32 : spec.kind == Kind::f16 ? DType::f16 : DType::bf16;
  const bool as_stored = type.elements == 1;
  const uint8_t* begin = rows.row(0);
  const bool in_order = rows.order.empty() && rows.columns.empty();
  if (as_stored && in_order && reinterpret_cast<uintptr_t>(begin) % static_cast<size_t>(type.bytes) == 0) {
    auto* data = reinterpret_cast<std::byte*>(const_cast<uint8_t*>(begin));
    return make_dense({{dtype, {rows.count, in}, data}, rows.file->mapped()});
  }
  if (!as_stored) return make_dense(read_rows(rows));
  const OwnedTensor values = OwnedTensor::allocate(dtype, {rows.count, in});
  const auto bytes = static_cast<size_t>(type.bytes);
  for (int64_t r = 0; r < rows.count; ++r) {
    std::byte* to = values.view.data + r * rows.matrix.row_bytes();
    if (rows.columns.empty()) std::memcpy(to, rows.row(r), static_cast<size_t>(rows.matrix.row_bytes()));
    for (size_t i = 0; i < rows.columns.size(); ++i)
      std::memcpy(to + i * bytes, rows.row(r) + static_cast<size_t>(rows.columns[i]) * bytes, bytes);
  }
  return make_dense(values);
}

// Reads a linear. Where its values are copied, the file's pages leave memory again.
LinearWeight read_linear(const Rows& rows, const FormatSpec& spec) {
  const StoredMatrix& matrix = rows.matrix;
  LinearWeight w = spec.is_dense()            ? read_dense(rows, spec)
                   : spec.kind == Kind::mxfp4 ? read_mxfp4(rows)
                   : spec.kind == Kind::super_block
                       ? read_super(
                             *super_type(matrix.type->number), spec, rows.count, matrix.columns,
                             [&rows](int64_t r) { return rows.row(r); }, rows.columns)
                       : read_integer(rows, spec);
  const auto* begin = reinterpret_cast<const std::byte*>(matrix.row(rows.first));
  const auto* dense = std::get_if<Dense>(&w.main);
  if (!dense || dense->w.view.data != begin) rows.file->mapped()->drop(begin, rows.count * matrix.row_bytes());
  return w;
}

// Returns what our own export says about itself, with its certificate where it has one, or "" for another program's
// file.
std::string statement_of(const File& file) {
  const auto text = file.text("fidelio.export"), certificate = file.text("fidelio.certificate");
  if (!text) return "";
  nlohmann::json statement = parse_json(*text, file.path() + ": key \"fidelio.export\"");
  if (!statement.is_object() || !certificate) return std::string(*text);
  if (!statement["provenance"].is_object()) statement["provenance"] = nlohmann::json::object();
  statement["provenance"]["certificate"] = parse_json(*certificate, file.path() + ": key \"fidelio.certificate\"");
  return statement.dump();
}

// These are norms, biases, routers and what delta nets have besides, by Hugging Face's names; all other tensors are
// linears.
class Vectors : public TensorFiles {
 public:
  explicit Vectors(std::shared_ptr<const File> file) : file_(std::move(file)) {
    if (std::string statement = statement_of(*file_); !statement.empty()) metadata_["fidelio"] = std::move(statement);
  }
  // `change` makes our number of the file's.
  using Change = float (*)(float);
  void add(const std::string& name, Rows rows, Change change = nullptr) {
    const Shape shape{rows.count};
    vectors_[name] = {std::move(rows), shape, change};
  }
  void add_matrix(const std::string& name, Rows rows, const Shape& shape) {
    vectors_[name] = {std::move(rows), shape, nullptr};
  }

  bool contains(std::string_view name) const override { return vectors_.contains(name); }
  OwnedTensor get(std::string_view name) const override {
    const auto found = vectors_.find(name);
    check(found != vectors_.end(), "{}: no tensor for {}", file_->path(), name);
    const auto& [rows, shape, change] = found->second;
    if (shape.rank > 1) {
      OwnedTensor matrix = read_rows(rows);
      matrix.view.shape = shape;
      return matrix;
    }
    const OwnedTensor values = OwnedTensor::allocate(DType::f32, shape);
    // A bias has a number for each row of its matrix; here they are the columns of one row.
    std::vector<float> stored(static_cast<size_t>(rows.matrix.columns));
    decode_row(*rows.matrix.type, rows.matrix.row(0), stored);
    for (int64_t i = 0; i < rows.count; ++i) {
      const float number = stored[static_cast<size_t>(rows.place(i))];
      values.as<float>()[static_cast<size_t>(i)] = change ? change(number) : number;
    }
    return values;
  }
  OwnedTensor get(std::string_view name, DType dtype, const Shape& shape) const override {
    OwnedTensor tensor = get(name);
    check(tensor.view.dtype == dtype && tensor.view.shape == shape, "{}: {}: expected {} {}, got {} {}", file_->path(),
          name, name_of(dtype), to_string(shape), name_of(tensor.view.dtype), to_string(tensor.view.shape));
    return tensor;
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, vector] : vectors_) names.push_back(name);
    return names;
  }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  std::vector<std::string> files() const override { return {file_->path()}; }
  int64_t file_bytes() const override { return static_cast<int64_t>(file_->mapped()->bytes().size()); }
  void drop(const Tensor&) const override {}
  Hashes tensor_hashes() const override {
    WeightsHash hash;
    for (const auto& [name, m] : file_->tensors()) hash.add(name, {m.data, static_cast<size_t>(m.bytes())});
    return hash.tensors();
  }
  Hashes key_hashes() const override { return file_->key_hashes(); }

 private:
  struct Vector {
    Rows rows;
    Shape shape;  // With one dimension, the numbers are the columns of one row.
    Change change = nullptr;
  };
  std::shared_ptr<const File> file_;
  std::map<std::string, Vector, std::less<>> vectors_;
  std::map<std::string, std::string> metadata_;
};

// This class finds tensors by their stored names, checks their shapes, and remembers which were used.
class Finder {
 public:
  Finder(std::shared_ptr<const File> file, const ModelConfig& config)
      : file_(std::move(file)), config_(config), architecture_(file_->text("general.architecture").value_or("")) {}

  Rows matrix(LinearId id) {
    if (id.expert >= 0) return expert(id);
    const Shape shape = shape_of(config_, id);
    Rows rows{file_, {}, 0, shape[0], row_order(config_, id, architecture_), column_order(config_, id, architecture_)};
    const std::string own = tensor_name(config_, id) + ".weight";
    const StoredMatrix* m = find(own);
    int64_t all = shape[0];
    if (!m || m->rows != shape[0]) {  // One matrix may hold q, k and v, or gate and up.
      const auto [name, first, total] = fused(id);
      if (!name.empty()) {
        m = find(name + ".weight");
        rows.first = first;
        all = total;
      }
    }
    check(m != nullptr, "{}: no tensor \"{}\"", file_->path(), own);
    const bool one_row = shape[0] == 1 && m->dimensions == 1;
    check(m->columns == shape[1] && m->rows == all && (m->dimensions == 2 || one_row),
          "{}: the tensor of {} is {} x {} in {} dimensions, expected {} x {}", file_->path(), to_string(id), m->rows,
          m->columns, m->dimensions, all, shape[1]);
    rows.matrix = *m;
    return rows;
  }
  Rows router(int layer) {
    const std::string name = router_tensor_name(layer_in_file(config_, layer));
    const StoredMatrix* m = find(name);
    check(m != nullptr, "{}: no tensor \"{}\"", file_->path(), name);
    check(m->rows == config_.experts && m->columns == config_.d && m->dimensions <= 2,
          "{}: {} is {} x {} in {} dimensions, expected {} x {}, a row for each expert", file_->path(), name, m->rows,
          m->columns, m->dimensions, config_.experts, config_.d);
    return {file_, *m, 0, m->rows, {}, {}};
  }
  Rows router(int layer, RouterTensor which) {
    const std::string name = router_tensor_name(layer, which);
    const StoredMatrix* m = find(name);
    check(m != nullptr, "{}: no tensor \"{}\"", file_->path(), name);
    return vector(*m, name, config_.experts, {});
  }
  Rows bias(LinearId id) {
    const std::string name = tensor_name(config_, id) + ".bias";
    const StoredMatrix* m = find(name);
    check(m != nullptr, "{}: no tensor \"{}\"", file_->path(), name);
    if (id.expert >= 0) {  // The tensor has a row for each expert.
      check(m->rows == config_.experts, "{}: {} has {} rows, expected one for each of {} experts", file_->path(), name,
            m->rows, config_.experts);
      StoredMatrix own = *m;
      own.data = reinterpret_cast<const std::byte*>(m->row(id.expert)), own.rows = 1;
      return vector(own, name, shape_of(config_, id)[0], {});
    }
    return vector(*m, name, shape_of(config_, id)[0], row_order(config_, id, architecture_));
  }
  Rows norm(int layer, Norm which) {
    const std::string name = tensor_name(config_, layer, which);
    const StoredMatrix* m = find(name);
    check(m != nullptr, "{}: no tensor \"{}\"", file_->path(), name);
    return vector(*m, name, norm_size(config_, layer, which), {});
  }
  Rows delta(int layer, DeltaTensor which) {
    const std::string name = tensor_name(layer, which);
    const StoredMatrix* m = find(name);
    check(m != nullptr, "{}: no tensor \"{}\"", file_->path(), name);
    const Shape shape = delta_shape(config_, which);
    Order order = delta_order(config_, which, architecture_);
    if (shape.rank == 1) return vector(*m, name, shape[0], std::move(order));
    check(m->rows == shape[0] && m->columns == shape[2] && m->dimensions <= 2,
          "{}: {} is {} x {} in {} dimensions, expected {} x {}", file_->path(), name, m->rows, m->columns,
          m->dimensions, shape[0], shape[2]);
    return {file_, *m, 0, m->rows, std::move(order), {}};
  }
  // Returns the bytes of what is not used of the layers behind the model's, which predict further tokens.
  int64_t use_further_layers(int64_t count) {
    int64_t bytes = 0;
    for (int64_t layer = config_.L; layer < config_.L + count; ++layer)
      for (const auto& [name, m] : file_->tensors())
        if (name.starts_with(fmt::format("blk.{}.", layer)) && used_.insert(name).second) bytes += m.bytes();
    return bytes;
  }
  void use(const std::string& name) { used_.insert(name); }
  // A tensor that was not used would change the computation.
  void refuse_unused() const {
    for (const auto& [name, m] : file_->tensors())
      check(used_.contains(name), "{}: has a tensor {} that {} does not have here", file_->path(), shown(name),
            name_of(config_.architecture));
  }

 private:
  struct Fused {
    std::string name;
    int64_t first = 0, rows = 0;
  };
  Fused fused(LinearId asked) const {
    const LinearId id = id_in_file(config_, asked);
    const int64_t q = int64_t{config_.h} * config_.e, kv = int64_t{config_.hk} * config_.e, f = config_.f;
    const std::string qkv = fmt::format("blk.{}.attn_qkv", id.layer), up = fmt::format("blk.{}.ffn_up", id.layer);
    switch (id.role) {
      case Role::q:
        return {qkv, 0, q + 2 * kv};
      case Role::k:
        return {qkv, q, q + 2 * kv};
      case Role::v:
        return {qkv, q + kv, q + 2 * kv};
      case Role::gate:
        return {up, 0, 2 * f};
      case Role::up:
        return {up, f, 2 * f};
      case Role::delta_b:
      case Role::delta_a:
        return {fused_gates_name(id.layer), 0, 2 * config_.delta.value_heads};
      default:
        return {};
    }
  }
  // Finds an expert in a tensor with all experts of the layer, which holds gate and up together or one of them. Older
  // files have a tensor for each expert.
  Rows expert(LinearId asked) {
    const Shape shape = shape_of(config_, asked);
    const LinearId id = id_in_file(config_, asked);
    std::string name = tensor_name(config_, id) + ".weight";
    int64_t experts = config_.experts, each = shape[0], first = id.expert * each;
    const StoredMatrix* m = find(name);
    if (const std::string both = fmt::format("blk.{}.ffn_gate_up_exps.weight", id.layer);
        !m && id.role != Role::down && (m = find(both))) {
      name = both, each = 2 * shape[0], first = id.expert * each + (id.role == Role::up ? shape[0] : 0);
    }
    if (const std::string own = older_expert_name(id) + ".weight"; !m && (m = find(own)))
      name = own, experts = 1, first = 0;
    check(m != nullptr, "{}: no tensor \"{}\"; every layer must have {} experts", file_->path(), name, experts);
    check(m->columns == shape[1] && m->rows_each == each && m->rows == experts * each && m->dimensions <= 3,
          "{}: {} is {} x {} in all, {} rows each, in {} dimensions; expected {} experts of {} x {}", file_->path(),
          name, m->rows, m->columns, m->rows_each, m->dimensions, experts, each, shape[1]);
    return {file_, *m, first, shape[0], {}, {}};
  }
  const StoredMatrix* find(const std::string& name) {
    const auto found = file_->tensors().find(name);
    if (found == file_->tensors().end()) return nullptr;
    used_.insert(name);
    return &found->second;
  }
  Rows vector(const StoredMatrix& m, const std::string& what, int64_t size, Order order) const {
    check(m.rows == 1 && m.columns == size && m.type->elements == 1, "{}: {} has {} x {} numbers of {}, expected {}",
          file_->path(), what, m.rows, m.columns, m.type->name, size);
    return {file_, m, 0, size, std::move(order), {}};
  }
  std::shared_ptr<const File> file_;
  const ModelConfig& config_;
  std::string_view architecture_;
  std::set<std::string> used_;
};

TextFiles texts_of(const File& file) {
  auto texts = tokenizer_files(file);
  texts["config.json"] = config_of(file).dump(2);
  return {file.path(), std::move(texts)};
}

// This adds up the cost of types of block that no format here holds exactly.
struct Expanded {
  std::set<std::string_view> types;
  int64_t stored = 0, used = 0;  // These are the bytes of all linears: in the file, and as they are stored here.

  void add(const StoredMatrix& m, const FormatSpec& spec, int64_t rows) {
    if (spec.kind == Kind::f32 && m.type->elements > 1) types.insert(m.type->name);
    stored += rows * m.row_bytes();
    used += stored_bytes(spec, rows, m.columns);
  }
  std::vector<std::string> notes() const {
    if (types.empty()) return {};
    return {fmt::format(
        "{} tensors are expanded to 32 bits: this model will use {} instead of {}. Use the original or a Q8_0 file to "
        "avoid that.",
        fmt::join(types, ", "), bytes_text(used), bytes_text(stored))};
  }
};

// Finds norms, routers, what delta nets have besides linears, and the linears that are never quantised.
void add_small_tensors(const ModelConfig& config, Finder& finder, Vectors& vectors) {
  for (const auto& norms : {norms_of(config), predictor_norms_of(config)})
    for (auto [layer, which] : norms)
      vectors.add(norm_name(config, layer, which), finder.norm(layer, which),
                  has_one_added(config, which) ? [](float x) { return x - 1; } : Vectors::Change{});
  if (config.predictor && has_experts(config, kPredictorLayer))
    vectors.add_matrix(router_name(config, kPredictorLayer), finder.router(kPredictorLayer),
                       Shape{config.experts, config.d});
  for (const LinearId id : predictor_linears_of(config))
    if (is_fixed(id.role)) vectors.add_matrix(weight_name(id), finder.matrix(id), shape_of(config, id));
  for (const int layer : routed_layers(config)) {
    vectors.add_matrix(router_name(config, layer), finder.router(layer), Shape{config.experts, config.d});
    for (const RouterTensor which : router_tensors(config))
      vectors.add(router_name(config, layer, which), finder.router(layer, which));
  }
  for (const LinearId id : fixed_linears_of(config))
    vectors.add_matrix(weight_name(id), finder.matrix(id), shape_of(config, id));
  for (const int layer : delta_layers(config)) {
    const auto find = [&](DeltaTensor which) { return finder.delta(layer, which); };
    vectors.add_matrix(delta_name(layer, DeltaTensor::convolution), find(DeltaTensor::convolution),
                       delta_shape(config, DeltaTensor::convolution));
    // The file has the decay's rate itself, with a minus.
    vectors.add(delta_name(layer, DeltaTensor::log_rate), find(DeltaTensor::log_rate),
                [](float rate) { return static_cast<float>(std::log(-static_cast<double>(rate))); });
    vectors.add(delta_name(layer, DeltaTensor::step_bias), find(DeltaTensor::step_bias));
  }
}

// Tells whether the one further layer reads the model's own embedding and head, as the block that drafts here does.
bool has_predictor(const File& file, const ModelConfig& config) {
  const auto has = [&](const char* name) {
    return file.tensors().contains(fmt::format("blk.{}.nextn.{}.weight", config.L, name));
  };
  return config.blocks.attention_gate && further_layers(file) == 1 && has("eh_proj") && !has("embed_tokens") &&
         !has("shared_head_head");
}

}  // namespace

ModelSource open_source(const std::string& path) {
  const auto file = File::open(path);
  ModelSource source{texts_of(*file), nullptr, {}, "GGUF", {}};
  ModelConfig config = load_config(source.texts);
  config.predictor = has_predictor(*file, config);
  Finder finder(file, config);
  auto vectors = std::make_shared<Vectors>(file);
  Expanded expanded;
  std::vector<LinearId> linears = linears_of(config);
  std::ranges::copy_if(predictor_linears_of(config), std::back_inserter(linears),
                       [](LinearId id) { return !is_fixed(id.role); });
  for (LinearId id : linears) {
    const Rows rows = finder.matrix(id);
    const FormatSpec spec = format_of(rows);
    expanded.add(rows.matrix, spec, rows.count);
    source.linears[id] = {spec, [rows, spec] { return read_linear(rows, spec); }};
    if (has_bias(config, id.role)) vectors->add(bias_name(id), finder.bias(id));
  }
  add_small_tensors(config, finder, *vectors);
  for (const char* name : {"rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"})
    finder.use(name);                             // The configuration already has them.
  for (int layer = 0; layer < config.L; ++layer)  // Some files keep keys of layers that read those of earlier ones.
    for (const char* name : {"attn_k", "attn_v", "attn_k_norm"})
      if (kind_of(config, layer).keys_of >= 0) finder.use(fmt::format("blk.{}.{}.weight", layer, name));
  const int64_t further = finder.use_further_layers(further_layers(*file));
  finder.refuse_unused();
  source.tensors = vectors;
  source.notes = expanded.notes();
  if (further > 0)
    source.notes.push_back(
        fmt::format("the part that predicts further tokens (nextn) ({}) is left out: text is the same without it",
                    bytes_text(further)));
  std::ranges::copy(unread_sampling(*file), std::back_inserter(source.notes));
  return source;
}

TextFiles open_texts(const std::string& path) { return texts_of(*File::open(path)); }

}  // namespace fidelio::gguf
