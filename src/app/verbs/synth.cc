// This file is the verb `synth`, which writes models of public shapes with random weights, for work on speed.
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "app/bench/shapes.h"
#include "app/options/common.h"
#include "core/file.h"
#include "core/progress.h"
#include "core/rng.h"
#include "core/thread_pool.h"
#include "formats/grid_curve.h"
#include "io/hf_config.h"

namespace fidelio::app {
namespace {

// This is Student's t with 5 degrees of freedom, which has heavy tails like those of trained weights. A table of its
// 65536 mid-quantiles, drawn uniformly, gives the distribution to 16 bits and costs one lookup a value. The CDF is 1/2
// + (a + (cos a + 2/3 cos^3 a) sin a) / pi with a = atan(t / sqrt 5).
std::vector<float> student_quantiles() {
  std::vector<float> table(65536);
  for (size_t i = 0; i < table.size(); ++i) {
    const double p = (static_cast<double>(i) + 0.5) / 65536;
    double low = -1.5707963267948966, high = 1.5707963267948966;  // The angle is found by bisection.
    for (int step = 0; step < 60; ++step) {
      const double a = (low + high) / 2, c = std::cos(a);
      (0.5 + (a + (c + 2.0 / 3 * c * c * c) * std::sin(a)) / 3.141592653589793 < p ? low : high) = a;
    }
    table[i] = static_cast<float>(std::sqrt(5.0) * std::tan((low + high) / 2));
  }
  return table;
}

void write_random(const ByteSink& sink, const std::vector<float>& quantiles, int64_t elements, float scale,
                  uint64_t stream, ThreadPool& pool) {
  std::vector<bf16> table(quantiles.size());
  for (size_t i = 0; i < table.size(); ++i) table[i] = to_bf16(quantiles[i] * scale);
  const Rng rng(0, stream);
  constexpr int64_t kJob = 1 << 16, kJobs = 64;  // Eight values come from one draw, so jobs begin with a fresh one.
  std::vector<bf16> block(static_cast<size_t>(std::min(elements, kJob * kJobs)));
  for (int64_t done = 0; done < elements;) {
    const int64_t n = std::min(static_cast<int64_t>(block.size()), elements - done);
    pool.run((n + kJob - 1) / kJob, [&](int64_t job, int) {
      for (int64_t i = job * kJob; i < std::min(n, (job + 1) * kJob); i += 8) {
        const auto words = rng.block(static_cast<uint64_t>(done + i) / 8);
        for (int64_t j = 0; j < 8 && i + j < n; ++j)
          block[static_cast<size_t>(i + j)] = table[(words[static_cast<size_t>(j / 2)] >> (16 * (j % 2))) & 0xffff];
      }
    });
    sink(std::as_bytes(std::span(block.data(), static_cast<size_t>(n))));
    done += n;
  }
}

// Distributes the corrections of vector codes evenly: how many each row has, and at which vectors.
std::vector<uint16_t> corrections(const std::string& suffix, const VectorShape& s) {
  std::vector<uint16_t> values;
  for (int64_t row = 0; row < s.out; ++row) {
    const int64_t count = (row + 1) * s.sparse / s.out - row * s.sparse / s.out;
    if (suffix == ".sparse_count") values.push_back(static_cast<uint16_t>(count));
    for (int64_t i = 0; suffix == ".sparse_index" && i < count; ++i)
      values.push_back(static_cast<uint16_t>(i * s.vectors / count));
  }
  return values;
}

// Any bytes are valid codes and zero points. Scales are chosen to give values of about the size of the dense ones.
// With `powers`, they are powers of two (mxfp4).
void write_random_part(const ByteSink& sink, const StoredTensor& part, int64_t in, uint64_t stream,
                       bool powers = false) {
  const float size = 0.6f / std::sqrt(static_cast<float>(in));
  const auto n = static_cast<size_t>(part.tensor.elements());
  if (part.suffix == ".row_scale") {
    const std::vector<float> values(n, size / 1000);
    return sink(std::as_bytes(std::span(values)));
  }
  if (part.tensor.dtype == DType::f16) {
    const std::vector<f16> values(n, to_f16(size / 8));
    return sink(std::as_bytes(std::span(values)));
  }
  std::vector<uint8_t> bytes(n);
  if (part.suffix == ".scale" && powers) {  // the codes' root mean square is 3
    bytes.assign(n, static_cast<uint8_t>(127 + std::lround(std::log2(size / 3))));
    return sink(std::as_bytes(std::span(bytes)));
  }
  const Rng rng(0, stream);
  for (size_t i = 0; i < n; i += 16) {
    const auto words = rng.block(i / 16);
    std::memcpy(bytes.data() + i, words.data(), std::min<size_t>(16, n - i));
  }
  if (part.suffix == ".codebook" && is_curve_width(std::countr_zero(n)))
    std::memcpy(bytes.data(), typical_grid(std::countr_zero(n)).data(), n);
  else if (part.suffix == ".codebook")
    for (size_t i = 0; i < n; ++i)
      bytes[i] = static_cast<uint8_t>(static_cast<int>(254 * i / std::max<size_t>(n - 1, 1)) - 127);
  sink(std::as_bytes(std::span(bytes)));
}

// Vector codes have two scales a value. Any index of whole bytes and nibbles is valid, and any level but -128.
void write_random_vectors(const ByteSink& sink, const StoredTensor& part, const VectorShape& s, uint64_t stream) {
  if (part.tensor.dtype == DType::u16) {
    const std::vector<uint16_t> values = corrections(part.suffix, s);
    return sink(std::as_bytes(std::span(values)));
  }
  if (part.suffix == ".codebook") {
    const auto within = [&](std::span<const std::byte> bytes) {
      std::vector<std::byte> levels(bytes.begin(), bytes.end());
      std::replace(levels.begin(), levels.end(), std::byte{0x80}, std::byte{0x81});
      sink(levels);
    };
    return write_random_part(within, part, s.in, stream);
  }
  if (part.tensor.dtype != DType::f16) return write_random_part(sink, part, s.in, stream);
  // This is the size of a level, of which there are 127.
  const float size = 0.6f / std::sqrt(static_cast<float>(s.in)) / 64;
  const bool sparse = part.suffix == ".sparse_scale";
  const std::vector<f16> values(static_cast<size_t>(part.tensor.elements()), to_f16(sparse ? size : std::sqrt(size)));
  sink(std::as_bytes(std::span(values)));
}

TensorToWrite constant_tensor(std::string name, const Shape& shape, float value) {
  return {std::move(name), DType::bf16, shape, [shape, value](const ByteSink& sink) {
            const std::vector<bf16> values(static_cast<size_t>(shape.elements()), to_bf16(value));
            sink(std::as_bytes(std::span(values)));
          }};
}

// Appends everything besides the linears that have the format. Norms multiply by 1, and a head of a delta net keeps 98%
// of its state in a step, since log(1 + e^-4) = 0.018.
void append_beside(const ModelConfig& config, const std::vector<float>& quantiles, ThreadPool& pool,
                   std::vector<TensorToWrite>& tensors) {
  const auto random = [&](std::string name, const Shape& shape, int64_t in) {
    tensors.push_back(
        {std::move(name), DType::bf16, shape, [&, shape, in, stream = tensors.size()](const ByteSink& sink) {
           write_random(sink, quantiles, shape.elements(), 0.6f / std::sqrt(static_cast<float>(in)), stream, pool);
         }});
  };
  for (const auto& [layer, norm] : norms_of(config))
    tensors.push_back(constant_tensor(norm_name(config, layer, norm), Shape{norm_size(config, layer, norm)},
                                      config.blocks.norm_plus_one && norm != Norm::delta ? 0 : 1));
  for (LinearId id : linears_of(config))
    if (has_bias(config, id.role)) tensors.push_back(constant_tensor(bias_name(id), Shape{shape_of(config, id)[0]}, 0));
  for (const std::string& router : router_names(config)) random(router, {config.experts, config.d}, config.d);
  for (const int layer : routed_layers(config))
    for (const RouterTensor which : router_tensors(config))
      tensors.push_back(constant_tensor(router_name(config, layer, which), Shape{config.experts},
                                        which == RouterTensor::scale ? 1 : 0));
  for (LinearId id : fixed_linears_of(config)) random(weight_name(id), shape_of(config, id), config.d);
  for (const int layer : delta_layers(config)) {
    random(delta_name(layer, DeltaTensor::convolution), delta_shape(config, DeltaTensor::convolution),
           config.delta.kernel);
    tensors.push_back(
        constant_tensor(delta_name(layer, DeltaTensor::log_rate), delta_shape(config, DeltaTensor::log_rate), 0));
    tensors.push_back(
        constant_tensor(delta_name(layer, DeltaTensor::step_bias), delta_shape(config, DeltaTensor::step_bias), -4));
  }
}

void synth(const std::string& name, const std::string& format, const std::string& folder) {
  const FormatSpec spec = parse_format(format);
  const int entry_bits = spec.bits - spec.signs;
  const bool whole = spec.signs == 1 ? entry_bits == 11 : entry_bits == 8 || entry_bits == 12;
  check(spec.kind == Kind::bf16 || spec.kind == Kind::integer || spec.kind == Kind::grid || spec.kind == Kind::mxfp4 ||
            (spec.kind == Kind::vq && whole && !spec.shared),
        "synth --format {}: expected bf16, mxfp4, an integer, a grid or a vector format whose codebooks are its "
        "matrices' own "
        "and have 2^8 or 2^12 entries (with one sign 2^11)",
        format);
  const NamedShape* shape = find_shape(name);
  check(shape != nullptr, "unknown shape \"{}\"; known are {}", name, shape_names());
  check_new_folder(folder);

  TemporaryFolder temporary(folder);
  write_file_atomically(temporary.path() + "/config.json", hf_config_of(*shape).dump(2) + "\n");
  const ModelConfig config = load_config(temporary.path());
  const std::vector<float> quantiles = student_quantiles();
  const std::vector<LinearId> linears = linears_of(config);
  ThreadPool pool;
  Progress progress("synth", static_cast<int64_t>(linears.size()));
  std::vector<TensorToWrite> tensors;
  nlohmann::json formats = nlohmann::json::object();
  for (size_t i = 0; i < linears.size(); ++i) {
    const Shape s = shape_of(config, linears[i]);
    // MXFP4 is for experts, as in gpt-oss.
    if (!spec.is_dense() && (spec.kind != Kind::mxfp4 || linears[i].expert >= 0)) {
      formats[to_string(linears[i])] = to_string(spec);
      for (const StoredTensor& part : stored_tensors(allocate_weight(spec, s[0], s[1])))
        tensors.push_back({module_name(linears[i]) + part.suffix, part.tensor.dtype, part.tensor.shape,
                           [part, spec, s, stream = tensors.size()](const ByteSink& sink) {
                             if (spec.kind == Kind::vq)
                               write_random_vectors(sink, part, vector_shape(spec, s[0], s[1]), stream);
                             else
                               write_random_part(sink, part, s[1], stream, spec.kind == Kind::mxfp4);
                           }});
      continue;
    }
    tensors.push_back(
        {weight_name(linears[i]), DType::bf16, s, [&quantiles, &progress, &pool, s, i](const ByteSink& sink) {
           write_random(sink, quantiles, s.elements(), 0.6f / std::sqrt(static_cast<float>(s[1])), i, pool);
           progress.advance();
         }});
  }
  append_beside(config, quantiles, pool, tensors);
  const nlohmann::json meta = {
      {"version", FIDELIO_VERSION}, {"formats", formats}, {"provenance", {{"method", "synth"}}}};
  write_sharded_safetensors(temporary.path(), tensors, 5'000'000'000, {{"fidelio", meta.dump()}});
  temporary.commit();
}

}  // namespace

void add_synth(CLI::App& app) {
  struct Options {
    std::string shape, format = "bf16", out, json;
  };
  auto o = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand(
      "synth", "Write a checkpoint of a public model's shape with random heavy-tailed weights, for speed work");
  verb->footer("Shapes: " + shape_names() + "\nExample:\n  fidelio synth tinyllama-1.1b -o /tmp/tinyllama");
  verb->add_option("SHAPE", o->shape, "Name of the shape")->required();
  verb->add_option("-o,--output", o->out, "Folder to write")->required();
  verb->add_option(
      "--format", o->format,
      "Format of every weight matrix: bf16 (default), or random codes, e.g. int4g64zs8, lut4g64; mxfp4: of "
      "every expert's");
  add_json(*verb, o->json);
  verb->callback([o] {
    check_can_write({o->json});
    synth(o->shape, o->format, o->out);
    const Checkpoint made = Checkpoint::open(o->out);
    write_json(o->json, {{"output", o->out}, {"file_bytes", made.file_bytes()}, {"parameters", made.parameters()}});
  });
}

}  // namespace fidelio::app
