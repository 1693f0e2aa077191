// These tests damage checkpoints of vector codes, as a broken disk, a bad download or an attacker does: header,
// formats, sizes, codes, codebooks, corrections, scales, lengths and config.json are changed at random. Each checkpoint
// is refused with a message that names the place, or it is a model, whose rows are computed under every kind of
// activations. Sanitizers find reads outside it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/rng.h"
#include "core/test_support.h"
#include "models.h"

namespace fidelio {
namespace {

using nlohmann::json;

const std::vector<std::string> kVectorFormats = {"vq8k16s4+r2.2",  "vq8k12s1+r2.23", "vq8k20s8",       "vq8k16s4m",
                                                 "vq8k13s4+r20.0", "vq8k12s4",       "vq8k20s8m+r4.73"};

f16 random_scale(Rng& rng) { return to_f16(static_cast<float>(0.002 + 0.01 * rng.uniform())); }

// Returns random codes, with the model's codebook where the format says so.
LinearWeight random_vectors(const std::string& format, int64_t out, int64_t in, uint64_t stream) {
  LinearWeight w = allocate_weight(parse_format(format), out, in);
  auto& m = std::get<SignedVectors>(w.main);
  Rng rng(5, stream), book(6, m.shape.shared ? 0 : stream);
  for (int8_t& x : m.codebook.as<int8_t>()) x = static_cast<int8_t>(static_cast<int>(book.below(255)) - 127);
  for (int64_t row = 0; row < out; ++row)
    for (int64_t v = 0; v < m.shape.vectors; ++v)
      set_vector(m, row, v,
                 {static_cast<int>(rng.below(static_cast<uint64_t>(m.shape.entries))),
                  static_cast<uint8_t>(rng.below(uint64_t{1} << m.shape.signs))});
  for (f16& x : m.row_scale.as<f16>()) x = random_scale(rng);
  for (f16& x : m.column_scale.as<f16>()) x = to_f16(1);
  if (m.shape.sparse == 0) return w;
  for (int64_t i = 0; i < m.shape.sparse; ++i)
    ++m.sparse_count.as<uint16_t>()[static_cast<size_t>(i * out / m.shape.sparse)];
  size_t at = 0;
  for (const uint16_t count : m.sparse_count.as<const uint16_t>())
    for (uint16_t n = count; n > 0; --n)
      m.sparse_index.as<uint16_t>()[at++] = static_cast<uint16_t>(m.shape.vectors - n);
  for (int8_t& x : m.sparse_value.as<int8_t>()) x = static_cast<int8_t>(rng.below(256));
  for (f16& x : m.sparse_scale.as<f16>()) x = random_scale(rng);
  return w;
}

void write_vectors(const std::string& folder, const std::string& model, const std::string& format) {
  const Checkpoint source = Checkpoint::open(tiny_model(model));
  std::map<LinearId, FormatSpec> formats;
  for (const LinearId id : linears_of(source.config())) formats[id] = parse_format(format);
  const auto weight = [&](LinearId id) {
    const Shape shape = shape_of(source.config(), id);
    LinearWeight w = random_vectors(format, shape[0], shape[1],
                                    static_cast<uint64_t>(100 * (id.layer + 1)) + static_cast<uint64_t>(id.role));
    w.bias = source.linear(id).bias;
    return w;
  };
  write_checkpoint(folder, source, formats, weight, {{"method", "random"}});
}

// This is a checkpoint taken apart, to be put together again with something wrong.
struct Parts {
  std::string config, data;
  json header;
  std::function<void(std::string&)> spoil{};  // It changes the file's bytes, last of all.

  explicit Parts(const std::string& folder) : config(read_text_file(folder + "/config.json")) {
    const std::string bytes = read_text_file(folder + "/model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    header = json::parse(bytes.substr(8, length));
    data = bytes.substr(8 + length);
  }
  std::string file() const {
    std::string text = header.dump(-1, ' ', false, json::error_handler_t::replace);
    text.append((8 - text.size() % 8) % 8, ' ');
    const uint64_t length = text.size();
    std::string bytes = std::string(reinterpret_cast<const char*>(&length), 8) + text + data;
    if (spoil) spoil(bytes);
    return bytes;
  }
  // Returns a tensor whose name ends like this, or "" where there is none.
  std::string any(Rng& rng, const std::string& suffix) const {
    std::vector<std::string> names;
    for (const auto& [name, value] : header.items())
      if (name != "__metadata__" && name.ends_with(suffix)) names.push_back(name);
    return names.empty() ? "" : names[rng.below(names.size())];
  }
  std::span<char> bytes_of(const std::string& name) {
    const json& offsets = header.at(name).at("data_offsets");
    const auto begin = offsets[0].get<size_t>();
    return std::span(data).subspan(begin, offsets[1].get<size_t>() - begin);
  }
  template <typename T>
  std::span<T> values(Rng& rng, const std::string& suffix) {  // They are aligned, as fidelio writes them.
    const std::string name = any(rng, suffix);
    if (name.empty()) return {};
    const auto bytes = bytes_of(name);
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

template <typename T>
const T& one_of(Rng& rng, const std::vector<T>& all) {
  return all[rng.below(all.size())];
}

void spoil_text(Rng& rng, std::string& text) {
  static const std::vector<std::string> kPieces = {
      "-",     "9",       "99999999999999999999", "[", "{",        "\"",  ",", ":", "null",
      "1e400", "\\u0000", "4294967296",           " ", "vq8k20s8", "\xff"};
  for (uint64_t edits = 1 + rng.below(3); edits > 0 && !text.empty(); --edits) {
    const size_t at = rng.below(text.size());
    const std::string& piece = one_of(rng, kPieces);
    if (rng.below(4) == 0)
      text.erase(at, 1 + rng.below(8));
    else if (rng.below(2) == 0)
      text[at] ^= static_cast<char>(1 << rng.below(8));
    else
      text.replace(at, std::min(piece.size(), text.size() - at), piece);
  }
}

void spoil_header_text(Rng& rng, Parts& parts) {
  parts.spoil = [rng](std::string& bytes) mutable {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    std::string text = bytes.substr(8, length);
    spoil_text(rng, text);
    const uint64_t now = rng.below(4) == 0 ? length : text.size();
    bytes = std::string(reinterpret_cast<const char*>(&now), 8) + text + bytes.substr(8 + length);
  };
}

void spoil_shape(Rng& rng, Parts& parts) {
  json& entry = parts.header[parts.any(rng, "")];
  json& shape = entry["shape"];
  json& dim = shape[rng.below(shape.size())];
  switch (rng.below(6)) {
    case 0:
      return std::reverse(shape.begin(), shape.end());
    case 1:
      return shape.push_back(1);
    case 2:
      dim = dim.get<int64_t>() + static_cast<int64_t>(rng.below(5)) - 2;
      break;
    case 3:
      dim = one_of<json>(rng, {0, -1, 1, 65536, int64_t{1} << 32, int64_t{1} << 62, 1.5, "8", nullptr});
      break;
    case 4:  // The new shape has as many elements.
      shape = {shape.size() == 2 ? shape[0].get<int64_t>() * shape[1].get<int64_t>() : dim.get<int64_t>()};
      break;
    default:
      shape = json::array();
  }
  if (rng.below(2) != 0) return;
  // The bytes are changed to match, where there are enough.
  static const std::map<std::string, int64_t> kSizes = {{"U8", 1}, {"I8", 1}, {"F16", 2}, {"BF16", 2}, {"U16", 2}};
  int64_t bytes = kSizes.contains(entry["dtype"]) ? kSizes.at(entry["dtype"]) : 4;
  for (const json& n : shape) bytes *= n.is_number_integer() ? n.get<int64_t>() % (1 << 20) : 1;
  entry["data_offsets"][1] = entry["data_offsets"][0].get<int64_t>() + bytes;
}

void spoil_dtype(Rng& rng, Parts& parts) {
  parts.header[parts.any(rng, "")]["dtype"] =
      one_of<json>(rng, {"U8", "I8", "F16", "BF16", "U16", "I16", "F32", "I32", "F8_E4M3", "F64", "BOOL", "F4", 7});
}

void spoil_offsets(Rng& rng, Parts& parts) {
  json& offsets = parts.header[parts.any(rng, "")]["data_offsets"];
  json& offset = offsets[rng.below(2)];
  const auto size = static_cast<int64_t>(parts.data.size());
  offset = one_of<json>(rng, {offset.get<int64_t>() + 1, offset.get<int64_t>() - 2, 0, size, size + 1, -1,
                              std::numeric_limits<int64_t>::max(), std::numeric_limits<uint64_t>::max(), "0"});
}

void spoil_names(Rng& rng, Parts& parts) {
  const std::string name = parts.any(rng, ""), other = parts.any(rng, "");
  switch (rng.below(4)) {
    case 0:
      return std::swap(parts.header[name], parts.header[other]);
    case 1: {
      const json entry = parts.header[name];
      parts.header.erase(name);
      parts.header[name + one_of<std::string>(rng, {"x", ".plane0", ".weight"})] = entry;
      return;
    }
    case 2:
      return void(parts.header.erase(name));
    default:
      parts.header[name] = parts.header[other];
  }
}

void spoil_formats(Rng& rng, Parts& parts) {
  json about = json::parse(parts.header["__metadata__"]["fidelio"].get<std::string>());
  json& formats = about["formats"];
  auto it = formats.begin();
  std::advance(it, static_cast<std::ptrdiff_t>(rng.below(formats.size())));
  const std::string name = it.key();
  const json other = one_of<json>(rng, {"vq8k16s4+r2.2",
                                        "vq8k12s1+r2.23",
                                        "vq8k20s8",
                                        "vq8k16s4m",
                                        "vq8k13s4+r20.0",
                                        "vq8k12s4",
                                        "vq8k20s8m+r4.73",
                                        "vq8k16s4+r2.3",
                                        "vq8k16s8",
                                        "vq8k9s1",
                                        "vq8k8s8",
                                        "vq8k21s8",
                                        "vq8k16s4+r99.0",
                                        "int4g64z",
                                        "lut4g64",
                                        "bf16",
                                        "f32",
                                        "",
                                        7,
                                        nullptr});
  switch (rng.below(4)) {
    case 0:
      formats.erase(name);
      break;
    case 1:
      formats[one_of<std::string>(rng, {"layers.99.q", "layers.0.x", "head", "layers.-1.q", ""})] = other;
      break;
    case 2:
      for (auto& [key, value] : formats.items()) value = other;
      break;
    default:
      formats[name] = other;
  }
  if (rng.below(8) == 0) about["formats"] = one_of<json>(rng, {nullptr, json::array(), "vq8k20s8", json::object()});
  parts.header["__metadata__"]["fidelio"] = about.dump();
}

void spoil_codes(Rng& rng, Parts& parts) {
  const auto bytes = parts.values<uint8_t>(rng, one_of<std::string>(rng, {".plane0", ".plane1", ".sign"}));
  if (bytes.empty()) return;
  for (uint64_t n = 1 + rng.below(64); n > 0; --n)
    bytes[rng.below(bytes.size())] = static_cast<uint8_t>(rng.below(2) == 0 ? 255 : rng.below(256));
  if (rng.below(4) == 0) std::fill(bytes.begin(), bytes.end(), uint8_t{255});
}

void spoil_codebook(Rng& rng, Parts& parts) {
  auto book = parts.values<int8_t>(rng, ".codebook");
  if (book.empty()) book = parts.values<int8_t>(rng, "m");  // The model has one codebook then.
  if (book.empty()) return;
  book[rng.below(book.size())] = static_cast<int8_t>(rng.below(3) == 0 ? -128 : static_cast<int>(rng.below(255)) - 127);
}

void spoil_corrections(Rng& rng, Parts& parts) {
  const auto counts = parts.values<uint16_t>(rng, ".sparse_count"),
             places = parts.values<uint16_t>(rng, ".sparse_index");
  if (counts.empty()) return spoil_codes(rng, parts);
  const std::vector<uint16_t> numbers = {0, 1, 4, 5, 6, 7, 10, 255, 256, 32768, 65535};
  const size_t row = rng.below(counts.size()), other = rng.below(counts.size()), at = rng.below(places.size());
  switch (rng.below(5)) {
    case 0:
      counts[row] = one_of(rng, numbers);
      return;
    case 1:
      places[at] = one_of(rng, numbers);
      return;
    case 2:  // Their sum stays the same.
      return --counts[row], void(++counts[other]);
    case 3:
      return std::swap(places[at], places[rng.below(places.size())]);
    default:
      std::fill(counts.begin(), counts.end(), uint16_t{0});
      counts[row] = static_cast<uint16_t>(places.size());
  }
}

void spoil_values(Rng& rng, Parts& parts) {
  const std::string suffix =
      one_of<std::string>(rng, {".row_scale", ".column_scale", ".sparse_scale", "norm.weight", ".bias"});
  const std::string name = parts.any(rng, suffix);
  if (name.empty()) return;
  const auto bytes = parts.bytes_of(name);
  const std::span<uint16_t> values(reinterpret_cast<uint16_t*>(bytes.data()), bytes.size() / 2);
  // These are FP16's infinities, NaN, largest and smallest numbers, and those of BF16.
  const auto bits =
      one_of<uint16_t>(rng, {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0x7bff, 0xfbff, 1, 0, 0x7f80, 0xff80, 0x7fc0, 0x7f7f});
  values[rng.below(values.size())] = bits;
  if (rng.below(4) == 0) std::fill(values.begin(), values.end(), bits);
}

void spoil_length(Rng& rng, Parts& parts) {
  parts.spoil = [rng](std::string& bytes) mutable {
    if (rng.below(4) == 0) return bytes.append(1 + rng.below(100), '\0'), void();
    if (rng.below(2) == 0) return bytes.resize(bytes.size() - 1 - rng.below(100));
    bytes.resize(rng.below(bytes.size()));
  };
}

void spoil_data(Rng& rng, Parts& parts) {
  for (uint64_t n = 1 + rng.below(32); n > 0; --n)
    parts.data[rng.below(parts.data.size())] = static_cast<char>(rng.below(256));
}

void spoil_config(Rng& rng, Parts& parts) {
  json config = json::parse(parts.config);
  auto it = config.begin();
  std::advance(it, static_cast<std::ptrdiff_t>(rng.below(config.size())));
  if (rng.below(2) == 0)
    it = config.find(one_of<std::string>(rng, {"hidden_size", "intermediate_size", "num_attention_heads",
                                               "num_key_value_heads", "num_hidden_layers", "vocab_size"}));
  std::vector<json> others = {
      0, 1, 2, 3, 7, -1, 40, 64, 1000, 65536, 1.5, 1e300, "x", "", nullptr, true, false, json::array(), json::object()};
  if (it->is_number_integer()) {
    const auto n = it->get<int64_t>();
    others.insert(others.end(), {n + 1, n - 1, 2 * n, n / 2, n / 3});
    // A context beyond all memory is a case for tests/bad_inputs_test.cc, where a limit on memory is set.
    if (it.key() != "max_position_embeddings")
      others.insert(others.end(), {(int64_t{1} << 31) - 1, int64_t{1} << 31, int64_t{1} << 40});
  }
  if (rng.below(10) == 0)
    config.erase(it);
  else
    *it = one_of(rng, others);
  json& codes = config["quantization_config"];  // It may be no object any more.
  if (rng.below(10) == 0 && (codes.is_object() || codes.is_null())) codes["rotation"] = "hadamard";
  if (rng.below(10) == 0 && (codes.is_object() || codes.is_null()))
    codes["kept_columns"] = one_of<json>(rng, {8, 32, 64, 128});
  parts.config = config.dump();
}

void spoil_config_text(Rng& rng, Parts& parts) { spoil_text(rng, parts.config); }

struct Damage {
  std::string name;
  void (*spoil)(Rng&, Parts&);
};
const std::vector<Damage> kDamages = {{"text of the header", spoil_header_text},
                                      {"shapes", spoil_shape},
                                      {"dtypes", spoil_dtype},
                                      {"offsets", spoil_offsets},
                                      {"names", spoil_names},
                                      {"formats", spoil_formats},
                                      {"codes", spoil_codes},
                                      {"codebook", spoil_codebook},
                                      {"corrections", spoil_corrections},
                                      {"values", spoil_values},
                                      {"length", spoil_length},
                                      {"any data", spoil_data},
                                      {"config", spoil_config},
                                      {"text of config.json", spoil_config_text}};

// Copies the weight to memory of its own, tensor by tensor, as a sanitizer does not see reads beyond one in a mapped
// file.
LinearWeight copy_of(const LinearWeight& w) {
  const std::vector<StoredTensor> tensors = whole_tensors(w);
  return load_weight(w.spec, w.out, w.in, [&](const std::string& suffix, DType dtype, const Shape& shape) {
    const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.suffix == suffix; });
    if (found == tensors.end()) return OwnedTensor{};
    OwnedTensor copy = OwnedTensor::allocate(dtype, shape);
    std::copy_n(found->tensor.data, found->tensor.bytes(), copy.view.data);
    return copy;
  });
}

// Loads the model and computes a prompt, one more row and a block of rows, under each kind of activations.
void use(const Checkpoint& checkpoint, const std::string& isa) {
  const auto runner =
      make_cpu_runner(checkpoint, {.threads = 1, .isa = isa, .max_rows = 16, .max_logit_rows = 16, .cache_tokens = 64});
  for (const LinearId id : linears_of(checkpoint.config())) {
    const LinearWeight w = copy_of(checkpoint.linear(id));
    ASSERT_EQ(std::ssize(decode(w)), w.out * w.in);
    runner->set_linear(id, runner->pack(w));
  }
  const int32_t last = checkpoint.config().v - 1;
  const std::vector<int32_t> ids = {0, last, last / 2, 0, last / 3, last, 1 % (last + 1), last / 5, 0};
  if (checkpoint.config().max_positions < std::ssize(ids)) return;
  for (const Activations mode : {Activations::a16, Activations::a8}) {
    run_chunks(*runner, ids, {4, 1, 4}, {1, 0}, mode);
  }
}

struct Outcome {
  int refused = 0, used = 0;
};

// Damages one checkpoint and records what happened.
void try_one(const std::string& folder, const Parts& whole, const Damage& damage, Rng rng, Outcome& outcome) {
  static const std::vector<std::string> kIsas = isa_names();
  Parts parts = whole;
  damage.spoil(rng, parts);
  const std::string bytes = parts.file();
  for (const char* name : {"/model.safetensors", "/config.json"}) std::filesystem::remove(folder + name);
  std::ofstream(folder + "/model.safetensors", std::ios::binary) << bytes;
  std::ofstream(folder + "/config.json", std::ios::binary) << parts.config;
  std::string message = message_of_hostile(bytes.size(), [&] { Checkpoint::open(folder); });
  if (message.empty()) {
    try {
      use(Checkpoint::open(folder), one_of(rng, kIsas));
    } catch (const Error& error) {
      message = error.what();
      EXPECT_NE(message, "");
    }
  }
  ++(message.empty() ? outcome.used : outcome.refused);
  // The message must name the file, a tensor or a linear.
  const std::vector<std::string> places = {folder, "config.json", "model.safetensors", "layers.", "embed",
                                           "head", "norm"};
  const auto named = [&](const std::string& place) { return message.find(place) != std::string::npos; };
  EXPECT_TRUE(message.empty() || std::any_of(places.begin(), places.end(), named)) << message;
}

void expect_refused_or_used(int mutations) {
  std::map<std::string, Outcome> outcomes;
  int made = 0;
  for (const char* model : {"granite", "linear_rope"})  // These have rows of 5 and 7 vectors, and biases.
    for (const std::string& format : kVectorFormats) {
      const TestFolder folder;
      write_vectors(folder / "whole", model, format);
      const Parts whole(folder / "whole");
      use(Checkpoint::open(folder / "whole"), "");
      std::filesystem::create_directory(folder / "damaged");
      const int each = mutations / static_cast<int>(2 * kVectorFormats.size()) + 1;
      for (int i = 0; i < each; ++i, ++made) {
        const Damage& damage = kDamages[static_cast<size_t>(made) % kDamages.size()];
        SCOPED_TRACE(fmt::format("{} in {}, {} of mutation {}", format, model, damage.name, made));
        ASSERT_NO_THROW(
            try_one(folder / "damaged", whole, damage, Rng(23, static_cast<uint64_t>(made)), outcomes[damage.name]));
      }
    }
  int used = 0;
  for (const auto& [name, outcome] : outcomes) {
    fmt::print("{:20} {:4} refused, {:4} computed\n", name, outcome.refused, outcome.used);
    EXPECT_GT(outcome.refused, 0) << name;
    used += outcome.used;
  }
  EXPECT_GT(used, mutations / 8);  // A reader cannot see damage that leaves a value in its range.
}

TEST(DamagedVectorCodes, AreRefusedByNameOrComputed) { expect_refused_or_used(280); }

// This runs two thousand cases, which takes some minutes with sanitizers:
//   build-asan/damaged_test --gtest_also_run_disabled_tests --gtest_filter='*InFull'
TEST(DamagedVectorCodes, DISABLED_AreRefusedByNameOrComputedInFull) { expect_refused_or_used(2000); }

}  // namespace
}  // namespace fidelio
