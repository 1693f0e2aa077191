#include "io/checkpoint.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "arch/stops.h"
#include "core/file.h"
#include "core/foreign/json.h"
#include "core/hash.h"
#include "io/checkpoint_write.h"
#include "io/hf_config.h"
#include "io/identity/weights_hash.h"
#include "io/left_out.h"
#include "io/rows/unstacked.h"

namespace fidelio {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

FormatSpec dense_spec(DType dtype, const std::string& name) {
  switch (dtype) {
    case DType::f32:
      return {.kind = Kind::f32, .bits = 32};
    case DType::f16:
      return {.kind = Kind::f16, .bits = 16};
    case DType::bf16:
      return {.kind = Kind::bf16, .bits = 16};
    default:
      throw Error("{} holds {}; weights must be F32, F16 or BF16", name, fidelio::name_of(dtype));
  }
}

// Logs each note once per folder, however often a run opens the model.
void say_once(const std::string& folder, const std::vector<std::string>& notes) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  for (const std::string& note : notes)
    if (const std::string line = folder + ": " + note; said.insert(line).second) spdlog::info("{}", line);
}

OwnedTensor as_f32(const OwnedTensor& t) {
  OwnedTensor out = OwnedTensor::allocate(DType::f32, t.view.shape);
  convert_to_float(t.view, out.as<float>());
  return out;
}

// Weights beyond this size are split into shards, as other programs do.
constexpr int64_t kShardBytes = 5'000'000'000;

// transformers does not know our quant_method; it ignores it with a warning and would fill the weights with random
// numbers. This key of config.json names the file from which transformers reads weights. If the value is no file of
// weights it stops with an error that ends with the value, so the value is a sentence for the person who reads the
// error. vLLM refuses the quant_method by itself.
constexpr const char* kTransformersWeights = "transformers_weights";
constexpr const char* kOnlyFidelio =
    "none here, because only fidelio reads this folder's codes. Write the model for other programs with `fidelio "
    "export "
    "FOLDER --to compressed-tensors -o OUT` (transformers, vLLM) or `fidelio export FOLDER --to gguf -o OUT.gguf` "
    "(llama.cpp)";

}  // namespace

namespace {

// This is the statement that fidelio writes beside the weights.
struct Statement {
  std::map<LinearId, FormatSpec> formats;
  std::string provenance = "{}";
  WrittenIdentity written;
};

// The statement stands in the metadata of the weights. In an export it also stands in config.json, which other programs
// keep when they save the model again.
Statement read_statement(const ModelSource& source) {
  Statement said;
  const std::string& place = source.texts.name();
  json meta;
  const auto& metadata = source.tensors->metadata();
  if (const auto found = metadata.find("fidelio"); found != metadata.end()) {
    meta = parse_json(found->second, place + ": the file is damaged: the \"fidelio\" metadata of its weights");
    check(meta.is_object() && ((meta.contains("formats") && meta["formats"].is_object()) || meta.contains("export")),
          "{}: the \"fidelio\" metadata of its weights is not the JSON object it should be; the file is damaged",
          place);
  } else {
    const json config = parse_json(source.texts.require("config.json"), source.texts.path("config.json"));
    if (config.is_object()) meta = config.value("fidelio", json());
  }
  if (!meta.is_object()) return said;
  const json formats = meta.value("formats", json::object());
  for (const auto& [name, spec] : formats.items()) {
    check(spec.is_string(), "{}: the format of {} is not a string", place, name);
    try {
      said.formats.emplace(parse_linear_id(name), parse_format(spec.get<std::string>()));
    } catch (const Error& e) {
      throw Error("{}: the format of {} in the \"fidelio\" metadata of its weights: {}", place, name, e.what());
    }
  }
  if (meta.contains("provenance")) said.provenance = meta["provenance"].dump();
  const auto text_of = [&](const json& of, const char* key) {
    check(of.is_string(), "{}: \"{}\" in the \"fidelio\" metadata is not a string", place, key);
    return of.get<std::string>();
  };
  if (meta.contains("weights_sha256")) said.written.weights_sha256 = text_of(meta["weights_sha256"], "weights_sha256");
  if (meta.contains("tensors")) said.written.tensors = text_of(meta["tensors"], "tensors");
  if (meta.contains("files")) {
    check(meta["files"].is_object(), "{}: \"files\" in the \"fidelio\" metadata is not an object", place);
    for (const auto& [name, hash] : meta["files"].items()) said.written.files[name] = text_of(hash, "files");
  }
  return said;
}

}  // namespace

Checkpoint Checkpoint::open(const std::string& path) { return open(open_model_source(path)); }

Checkpoint Checkpoint::open(ModelSource source) {
  Checkpoint c(std::move(source));
  const std::string& folder = c.folder();
  c.config_ = load_config(c.texts());
  Statement said = read_statement(c.source_);
  std::map<LinearId, FormatSpec>& declared = said.formats;
  c.config_.predictor = has_predictor(c.config_, *c.source_.tensors, [&](LinearId id) {
    return declared.contains(id) || c.source_.linears.contains(id);
  });
  c.provenance_ = std::move(said.provenance);
  c.written_ = std::move(said.written);
  std::vector<LinearId> linears = linears_of(c.config_);
  std::ranges::copy_if(predictor_linears_of(c.config_), std::back_inserter(linears),
                       [](LinearId id) { return !is_fixed(id.role); });
  for (LinearId id : linears) {
    const auto found = declared.find(id);
    const auto foreign = c.source_.linears.find(id);
    c.formats_[id] = found != declared.end() ? found->second
                     : foreign != c.source_.linears.end()
                         ? foreign->second.format
                         : dense_spec(c.stored_rows(id).matrix.view.dtype, weight_name(id));
    if (foreign == c.source_.linears.end() && !c.formats_[id].is_dense())
      c.linear(id);
    else
      c.linear_bias(id);  // The weight was checked already, and reading it might decode it or bring its rows together.
    if (found != declared.end()) declared.erase(found);
  }
  check(declared.empty(), "{}: formats are given for linears the model does not have, {} first", folder,
        declared.empty() ? std::string() : to_string(declared.begin()->first));
  for (auto [layer, which] : norms_of(c.config_)) c.norm(layer, which);
  for (const LinearId id : kept_linears_of(c.config_)) c.format(id);
  for (const int layer : routed_layers(c.config_)) {
    c.router(layer);
    for (const RouterTensor which : router_tensors(c.config_)) c.router(layer, which);
  }
  for (const auto& [layer, which] : predictor_norms_of(c.config_)) c.norm(layer, which);
  if (c.config_.predictor && has_experts(c.config_, kPredictorLayer)) c.router(kPredictorLayer);
  for (const int layer : delta_layers(c.config_))
    for (const DeltaTensor which : kDeltaTensors) c.delta(layer, which);
  if (c.config_.kept_columns > 0) c.check_kept_columns();
  std::ranges::move(left_out(c.config_, *c.source_.tensors), std::back_inserter(c.source_.notes));
  if (has_dynamic_rope(c.config_))
    c.source_.notes.push_back(fmt::format(
        "its context ends at max_position_embeddings = {}: beyond that its \"dynamic\" rope changes with every token, "
        "which is not computed here",
        c.config_.max_positions));
  say_once(folder, c.notes());
  return c;
}

std::string Checkpoint::stored_name(const std::string& name) const {
  return fidelio::stored_name(*source_.tensors, name);
}

StoredRows Checkpoint::stored_rows(LinearId id) const {
  const FusedName stacked_name = fused_name(config_, id),
                  fused = unstacked_name(*source_.tensors, id, stacked_name, config_.experts);
  std::string own = stored_name(weight_name(id));
  // Some writers that store one of two equal tensors keep that of the head.
  if (id.role == Role::embedding && config_.tie_embeddings && !source_.tensors->contains(own))
    if (const std::string head = stored_name(weight_name({-1, Role::head})); source_.tensors->contains(head))
      own = head;
  const Shape shape = shape_of(config_, id);
  if (fused.weight.empty() || source_.tensors->contains(own)) {
    OwnedTensor matrix = source_.tensors->get(own);
    check(matrix.view.shape == shape, "{} has shape {}, expected {}", weight_name(id), to_string(matrix.view.shape),
          to_string(shape));
    return {std::move(matrix), {{0, shape[0]}}};
  }
  OwnedTensor all = source_.tensors->get(stored_name(fused.weight));
  const Shape stored = all.view.shape;
  const bool stacked =
      id.expert >= 0 && config_.blocks.experts >= ExpertFiles::stacked && fused.weight == stacked_name.weight;
  const int64_t each = stacked ? fused.rows / config_.experts : 0;
  const Shape expected = fused.by_columns ? Shape{config_.experts, shape[1], each}
                         : stacked        ? Shape{config_.experts, each, shape[1]}
                                          : Shape{fused.rows, shape[1]};
  check(stored == expected, "{} has shape {}, expected {}", fused.weight, to_string(stored), to_string(expected));
  return {std::move(all), fused.runs, fused.by_columns ? each : 0};
}

OwnedTensor Checkpoint::dense(LinearId id) const { return rows_of(stored_rows(id), shape_of(config_, id)); }

FormatSpec Checkpoint::format(LinearId id) const {
  if (is_fixed(id.role)) return dense_spec(stored_rows(id).matrix.view.dtype, weight_name(id));
  const auto found = formats_.find(id);
  check(found != formats_.end(), "{} has no linear {}", folder(), to_string(id));
  return found->second;
}

LinearWeight Checkpoint::linear(LinearId id) const {
  const FormatSpec spec = format(id);
  const Shape shape = shape_of(config_, id);
  LinearWeight w;
  if (const auto foreign = source_.linears.find(id); foreign != source_.linears.end()) {
    w = foreign->second.read();
  } else if (spec.is_dense()) {
    w = make_dense(dense(id));
  } else {
    const auto find = [&](const std::string& suffix, DType dtype, const Shape& expected) {
      if (suffix == ".bias") return OwnedTensor{};  // The bias is kept as the source has it, below.
      if (spec.shared && suffix == ".codebook") return source_.tensors->get(shared_name(spec), dtype, expected);
      return source_.tensors->get(stored_name(module_name(id) + suffix), dtype, expected);
    };
    w = load_weight(spec, shape[0], shape[1], find, fmt::format("{}: {}", folder(), to_string(id)));
  }
  w.bias = linear_bias(id);
  return w;
}

OwnedTensor Checkpoint::bias_tensor(LinearId id) const {
  const FusedName stacked = fused_bias_name(config_, id),
                  fused = unstacked_name(*source_.tensors, id, stacked, config_.experts);
  if (fused.weight.empty() || source_.tensors->contains(stored_name(bias_name(id)))) return tensor(bias_name(id));
  const OwnedTensor all = tensor(fused.weight);
  const Shape expected =
      fused.weight == stacked.weight ? Shape{config_.experts, fused.rows / config_.experts} : Shape{fused.rows};
  check(all.view.shape == expected, "{} has shape {}, expected {}", fused.weight, to_string(all.view.shape),
        to_string(expected));
  return numbers_of(all, fused.runs, shape_of(config_, id)[0]);
}

OwnedTensor Checkpoint::linear_bias(LinearId id) const {
  if (!has_bias(config_, id.role)) return {};
  const OwnedTensor bias = bias_tensor(id);
  const int64_t out = shape_of(config_, id)[0];
  check(bias.view.shape == Shape{out}, "{} has shape {}, expected [{}]", bias_name(id), to_string(bias.view.shape),
        out);
  return as_f32(bias);
}

std::vector<float> Checkpoint::floats(const std::string& name, const Shape& expected) const {
  const OwnedTensor t = tensor(name);
  check(t.view.shape == expected, "{} has shape {}, expected {}", name, to_string(t.view.shape), to_string(expected));
  std::vector<float> values(static_cast<size_t>(t.view.elements()));
  convert_to_float(t.view, values);
  return values;
}

std::vector<float> Checkpoint::norm(int layer, Norm which) const {
  if (!has_weight(which)) return std::vector<float>(static_cast<size_t>(norm_size(config_, layer, which)), 1);
  std::vector<float> values = floats(norm_name(config_, layer, which), {norm_size(config_, layer, which)});
  if (config_.blocks.norm_plus_one && which != Norm::delta && which != Norm::sinks)  // Those are stored as they are.
    for (float& value : values) value += 1;
  return values;
}

std::vector<float> Checkpoint::delta(int layer, DeltaTensor which) const {
  return floats(delta_name(layer, which), delta_shape(config_, which));
}

LinearWeight Checkpoint::router(int layer) const {
  const std::string name = router_name(config_, layer);
  const OwnedTensor stored = tensor(name);
  const Shape expected{config_.experts, config_.d};
  check(stored.view.shape == expected, "{} has shape {}, expected {}", name, to_string(stored.view.shape),
        to_string(expected));
  LinearWeight router = make_dense(as_f32(stored));
  if (config_.router.bias) {
    router.bias = OwnedTensor::allocate(DType::f32, {config_.experts});
    std::ranges::copy(this->router(layer, RouterTensor::bias), router.bias.as<float>().begin());
  }
  return router;
}

std::vector<float> Checkpoint::router(int layer, RouterTensor which) const {
  return floats(router_name(config_, layer, which), {config_.experts});
}

std::vector<int32_t> Checkpoint::order(int layer, const Stop& stop) const {
  const std::string name = order_name(layer, stop);
  const int64_t stored = shape_of(config_, {layer, stop.roles.front()})[1], in = stored - config_.kept_columns;
  const OwnedTensor t = source_.tensors->get(stored_name(name), DType::i32, Shape{stored});
  const auto values = t.as<const int32_t>();
  std::vector<int32_t> order(values.begin(), values.end());
  std::vector<bool> seen(static_cast<size_t>(in));
  for (int64_t i = 0; i < in; ++i) {
    const int32_t column = order[static_cast<size_t>(i)];
    check(column >= 0 && column < in && !seen[static_cast<size_t>(column)],
          "{}: {} is no order of {} columns: {} at {}; the file is damaged", folder(), name, in, column, i);
    seen[static_cast<size_t>(column)] = true;
  }
  check(std::equal(order.begin() + in, order.end(), order.begin() + in - config_.kept_columns),
        "{}: {} does not end with its last {} columns twice; the file is damaged", folder(), name,
        config_.kept_columns);
  return order;
}

// The kept columns must be whole groups of the weights, so activations in them are rounded separately.
void Checkpoint::check_kept_columns() const {
  for (LinearId id : linears_of(config_)) {
    if (id.layer < 0) continue;
    const FormatSpec spec = format(id);
    const int64_t in = shape_of(config_, id)[1];
    check(
        spec.kind == Kind::integer && spec.group == config_.kept_columns && spec.group >= 32 && in % spec.group == 0 &&
            in > 2 * spec.group,
        "{}: {} is {} with {} columns, of which {} are kept twice: expected integers in groups of as many, from 32 to "
        "128, that divide them; config.json is not this model's",
        folder(), to_string(id), to_string(spec), in, config_.kept_columns);
  }
  for (const auto& [layer, stop] : stops_of(config_)) order(layer, *stop);
}

void Checkpoint::drop(LinearId id) const {
  if (source_.linears.contains(id)) return;  // Special code reads this linear and leaves nothing of it in memory.
  if (format(id).is_dense()) {
    const StoredRows stored = stored_rows(id);
    Tensor run = stored.matrix.view;
    for (const RowRun& of : stored.runs) {
      // The rows of a part lie among each other where the file has them by columns.
      const int64_t first = stored.each > 0 ? of.first_row / stored.each * stored.each : of.first_row;
      run.shape = {stored.each > 0 ? stored.each : (of.rows - 1) * of.step + 1, shape_of(config_, id)[1]};
      run.data = stored.matrix.view.data + first * run.shape[1] * size_of(run.dtype);
      source_.tensors->drop(run);
    }
    return;
  }
  for (const StoredTensor& stored : stored_tensors(linear(id)))
    if (stored.suffix != ".bias") source_.tensors->drop(stored.tensor);
}

OwnedTensor Checkpoint::tensor(const std::string& name) const { return source_.tensors->get(stored_name(name)); }

int64_t Checkpoint::file_bytes() const { return source_.tensors->file_bytes(); }

int64_t Checkpoint::parameters() const {
  int64_t n = 0;
  for (LinearId id : linears_of(config_))
    n += elements_of(config_, id) + (has_bias(config_, id.role) ? shape_of(config_, id)[0] : 0);
  for (auto [layer, which] : norms_of(config_)) n += norm_size(config_, layer, which);
  for (const auto& [name, shape] : tensors_of_routers(config_)) n += shape.elements();
  for (const LinearId id : fixed_linears_of(config_)) n += elements_of(config_, id);
  for (const DeltaTensor which : kDeltaTensors)
    n += std::ssize(delta_layers(config_)) * delta_shape(config_, which).elements();
  return n;
}

std::string Checkpoint::sha256() const {
  std::call_once(hashed_->once, [&] {
    Sha256 hash;
    for (const std::string& file : source_.tensors->files()) hash.update(sha256_file(file));
    hashed_->sha256 = hash.hex();
  });
  return hashed_->sha256;
}

Hashes Checkpoint::tensor_hashes() const { return source_.tensors->tensor_hashes(); }

Hashes Checkpoint::file_hashes() const {
  Hashes keys = source_.tensors->key_hashes();
  // The files are hashed as they are on disk. texts() may have rewritten an older form of them, without the codes.
  return keys.empty() ? deciding_files(TextFiles(texts().name())) : keys;
}

std::string Checkpoint::weights_sha256() const { return source_.tensors->weights_sha256(); }

namespace {

// This class writes each codebook that linears share once, as that of the first linear that has it.
class SharedTensors {
 public:
  // Returns true if the name was not declared before.
  bool declare(const std::string& name) { return names_.insert(name).second; }

  // Throws Error where the codebook of a linear differs from the one that the file holds under its name.
  void see(LinearId id, const LinearWeight& weight) {
    const OwnedTensor* book = shared_codebook(weight);
    if (!book) return;
    const auto [found, first] = written_.emplace(shared_name(weight.spec), *book);
    const Tensor& there = found->second.view;
    check(first || (there.data == book->view.data ||
                    std::memcmp(there.data, book->view.data, static_cast<size_t>(there.bytes())) == 0),
          "{} ({}) has another codebook than the linears before it, and a file holds one {}: quantise all of them "
          "together",
          to_string(id), to_string(weight.spec), found->first);
  }

 private:
  std::set<std::string> names_;
  std::map<std::string, OwnedTensor> written_;
};

}  // namespace

json about_source(const Checkpoint& source) {
  const fs::path path = fs::absolute(fs::path(source.folder()) / "").lexically_normal().parent_path();
  std::string name = path.filename().string();
  // In the cache of the Hub a folder is called models--OWNER--NAME/snapshots/REVISION.
  constexpr std::string_view kHub = "models--";
  const std::string hub = path.parent_path().parent_path().filename().string();
  if (path.parent_path().filename() == "snapshots" && hub.starts_with(kHub)) {
    name = hub.substr(kHub.size());
    if (const size_t owner = name.find("--"); owner != std::string::npos) name.replace(owner, 2, "/");
  }
  return {{"source", name}, {"source_sha256", source.sha256()}, {"source_file_bytes", source.file_bytes()}};
}

void check_columns_once(const Checkpoint& c) {
  check(c.config().kept_columns == 0,
        "{} was made by quantize --atom: its weights have columns in an order of their own, and {} of them twice; give "
        "the model that it was made of",
        c.folder(), c.config().kept_columns);
}

void write_checkpoint(const std::string& folder, const Checkpoint& source,
                      const std::map<LinearId, FormatSpec>& formats,
                      const std::function<LinearWeight(LinearId)>& weight, const nlohmann::json& provenance,
                      const std::map<std::string, OwnedTensor>& replaced, const KeptColumns& kept) {
  check_columns_once(source);
  check(!fs::exists(folder), "{} exists already; choose another output folder or remove it", folder);
  ModelConfig c = source.config();
  c.kept_columns = kept.count;
  // The folder is built under a temporary name and renamed when it is complete.
  TemporaryFolder temporary(folder);

  json format_names = json::object();
  std::vector<TensorToWrite> tensors;
  SharedTensors shared;
  const auto declare = [&](const LinearId id, const LinearWeight& shape_only,
                           std::function<LinearWeight(LinearId)> make) {
    // A weight is made once, and its tensors are written one after the other.
    auto made = std::make_shared<std::optional<LinearWeight>>();
    const auto stored = stored_tensors(shape_only);
    for (size_t i = 0; i < stored.size(); ++i) {
      const bool last = i + 1 == stored.size();
      tensors.push_back({module_name(id) + stored[i].suffix, stored[i].tensor.dtype, stored[i].tensor.shape,
                         [=, &shared](const ByteSink& sink) {
                           if (!*made) shared.see(id, made->emplace(make(id)));
                           const Tensor t = stored_tensors(**made)[i].tensor;
                           sink({t.data, static_cast<size_t>(t.bytes())});
                           if (last) made->reset();
                         }});
    }
  };
  const auto beside = [&](const std::string& name) {
    const auto found = replaced.find(name);
    tensors.push_back(to_write(name, found == replaced.end() ? source.tensor(name) : found->second));
  };
  std::vector<LinearId> linears = linears_of(c);
  std::ranges::copy(kept_linears_of(c), std::back_inserter(linears));
  for (LinearId id : linears) {
    const auto found = formats.find(id);
    const FormatSpec spec = found == formats.end() ? source.format(id) : found->second;
    const Shape shape = shape_of(c, id);
    if (!spec.is_dense()) format_names[to_string(id)] = to_string(spec);
    const std::function<LinearWeight(LinearId)> make =
        found == formats.end() ? [&source](LinearId i) { return source.linear(i); } : weight;
    const LinearWeight shape_only = allocate_weight(spec, shape[0], shape[1]);
    if (const OwnedTensor* book = shared_codebook(shape_only); book && shared.declare(shared_name(spec)))
      tensors.push_back({shared_name(spec), book->view.dtype, book->view.shape, [=, &shared](const ByteSink& sink) {
                           const LinearWeight first = make(id);
                           shared.see(id, first);
                           const Tensor t = shared_codebook(first)->view;
                           sink({t.data, static_cast<size_t>(t.bytes())});
                         }});
    declare(id, shape_only, make);
    if (!has_bias(c, id.role)) continue;
    const auto other = replaced.find(bias_name(id));
    tensors.push_back(to_write(bias_name(id), other == replaced.end() ? source.bias_tensor(id) : other->second));
  }
  for (auto [layer, which] : norms_of(c)) beside(norm_name(c, layer, which));
  for (auto [layer, which] : predictor_norms_of(c)) beside(norm_name(c, layer, which));
  for (const auto& [name, shape] : tensors_of_routers(c)) beside(name);
  if (c.predictor && has_experts(c, kPredictorLayer)) beside(router_name(c, kPredictorLayer));
  for (const int layer : delta_layers(c))
    for (const DeltaTensor which : kDeltaTensors) beside(delta_name(layer, which));
  for (const auto& [name, order] : kept.orders) tensors.push_back(to_write(name, order));

  WeightsHash hash;
  for (const TensorToWrite& tensor : tensors) hash.add(tensor);
  json config = text_config(source.texts());
  config["quantization_config"] = {{"quant_method", "fidelio"}, {"version", FIDELIO_VERSION}};
  if (c.rotated) config["quantization_config"]["rotation"] = "hadamard";
  if (c.kept_columns > 0) config["quantization_config"]["kept_columns"] = c.kept_columns;
  config.erase(kTransformersWeights);
  if (!format_names.empty() || c.rotated) config[kTransformersWeights] = kOnlyFidelio;
  json meta = to_json(identity_of(hash, deciding_files(source.texts(), config)));
  meta.update({{"version", FIDELIO_VERSION}, {"formats", format_names}, {"provenance", provenance}});
  write_sharded_safetensors(temporary.path(), tensors, kShardBytes, {{"fidelio", meta.dump()}});
  write_file_atomically(temporary.path() + "/config.json", config.dump(2) + "\n");
  copy_companions(source.texts(), temporary.path());
  temporary.commit();
}

void write_checkpoint(const std::string& folder, const Checkpoint& source,
                      const std::map<LinearId, FormatSpec>& formats,
                      const std::function<LinearWeight(LinearId)>& weight, const nlohmann::json& provenance) {
  write_checkpoint(folder, source, formats, weight, provenance, {});
}

}  // namespace fidelio
