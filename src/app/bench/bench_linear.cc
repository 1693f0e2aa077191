// This file is the verb `bench linear`. It times one matrix at a time through the backend's own path (prepare the
// input, hand out blocks, multiply). Between its passes it measures this machine's limits: a plain read of another copy
// of the same bytes, and a loop of 8-bit dot products on registers. Other programs on the machine disturb all three
// alike. A row reports the first decile of its passes, which are disturbed least.
#include "app/bench/bench_linear.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "app/bench/probe.h"
#include "app/bench/shapes.h"
#include "app/options/common.h"
#include "core/rng.h"
#include "kernels/cpu/cpu.h"

namespace fidelio::app {
namespace {

struct LinearBench {
  std::vector<std::string> formats = {"bf16",       "int2g64zs8", "int3g64zs8", "int4g64zs8", "int5g64zs8",
                                      "int6g64zs8", "int7g64zs8", "int8g64zs8", "lut2g64",    "lut3g64",
                                      "lut4g64",    "lut5g64",    "lut6g64",    "fp4g16",     "fp4g16z",
                                      "mxfp4",      "fp8"};
  std::vector<std::string> activations = {"a16", "a8"}, shapes = {"tinyllama-1.1b"};
  std::vector<int64_t> rows = {1, 4, 16, 512};
  int view = 0;  // It is the number of high bits of codes to read; 0 means all.
  int threads = 0;
  std::string isa, json;
  double seconds = 0.3, megabytes = 240;
};

// This is a matrix to time, with its place in a model: "tinyllama-1.1b gate, up", or just "matrix".
struct Matrix {
  std::string name;
  int64_t out, in;
};

std::vector<Matrix> matrices_of(const std::string& text) {
  if (const NamedShape* s = find_shape(text)) {
    const int64_t q = int64_t{s->h} * s->e, kv = int64_t{s->hk} * s->e;
    const bool hybrid = s->delta_values > 0;  // its q has a gate
    std::vector<Matrix> matrices = {
        {text + " q", hybrid ? 2 * q : q, s->d}, {text + " k, v", kv, s->d},   {text + " o", s->d, q},
        {text + " gate, up", s->f, s->d},        {text + " down", s->d, s->f}, {text + " head", s->v, s->d}};
    const int64_t keys = int64_t{s->delta_keys} * kDeltaHeadColumns,
                  values = int64_t{s->delta_values} * kDeltaHeadColumns;
    if (hybrid)
      matrices.insert(matrices.end(), {{text + " delta qkv", 2 * keys + values, s->d},
                                       {text + " delta z", values, s->d},
                                       {text + " delta out", s->d, values}});
    return matrices;
  }
  int64_t out = 0, in = 0;
  char end = 0;
  check(std::sscanf(text.c_str(), "%ldx%ld%c", &out, &in, &end) == 2 && out > 0 && in > 0 && out < 1 << 24 &&
            in < 1 << 24,
        "--shapes {}: expected OUTxIN, e.g. 5632x2048, or one of {}", text, shape_names());
  return {{"matrix", out, in}};
}

// Any bytes are valid codes. Scales are small, so no sum overflows.
LinearWeight random_weight(const FormatSpec& spec, int64_t out, int64_t in) {
  LinearWeight w = allocate_weight(spec, out, in);
  Rng rng(1);
  for (const StoredTensor& t : whole_tensors(w)) {
    if (t.tensor.dtype == DType::f32 || t.tensor.dtype == DType::f16 || t.tensor.dtype == DType::bf16) {
      std::vector<float> values(static_cast<size_t>(t.tensor.elements()));
      for (float& v : values) v = static_cast<float>(0.001 * rng.uniform());
      convert_from_float(values, t.tensor);
    } else {
      // A byte masked by 0x77 is never an E4M3 NaN.
      const bool e4m3 = t.tensor.dtype == DType::f8_e4m3 || spec.kind == Kind::fp8;
      for (int64_t i = 0; i < t.tensor.bytes(); ++i)
        t.tensor.data[i] = static_cast<std::byte>(rng.next() & (e4m3 ? 0x77 : 0xff));
    }
  }
  return w;
}

// Copies the weight so often that a round over the copies streams `megabytes`, which may be far above the last-level
// cache or not.
std::vector<Cpu::Linear> copies_of(Cpu::Linear first, double megabytes) {
  const auto count = static_cast<size_t>(megabytes * 1e6 / static_cast<double>(first.packed.size()));
  std::vector<Cpu::Linear> copies;
  copies.reserve(std::max<size_t>(count, 1));
  copies.push_back(std::move(first));
  const Cpu::Linear& one = copies[0];
  while (copies.size() < count) {
    Cpu::Linear copy{.out = one.out, .in = one.in, .spec = one.spec, .packed = Buffer(one.packed.size()), .bias = {}};
    std::copy(std::begin(one.kernels), std::end(one.kernels), std::begin(copy.kernels));
    copy.cut = one.cut;
    std::copy(std::begin(one.views), std::end(one.views), std::begin(copy.views));
    std::memcpy(copy.packed.data(), one.packed.data(), one.packed.size());
    copies.push_back(std::move(copy));
  }
  return copies;
}

AttentionShape no_attention() {
  AttentionShape s;
  s.layers.resize(1);
  s.rotations = {{{1}, 1}};
  s.heads = s.kv_heads = 1;
  s.head_dim = 2;
  return s;
}

double first_decile(std::vector<double> v) {
  const auto at = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 10);
  std::nth_element(v.begin(), at, v.end());
  return *at;
}

struct Row {
  std::string format, activations, kernel;
  Matrix matrix;
  int view;  // It is the number of high bits read; 0 means all.
  int64_t rows;
  double seconds, read_seconds, bytes, int8_rate;  // These are first deciles; for the rate it is the last decile.
  double weights() const { return static_cast<double>(matrix.out * matrix.in); }
  // A16 multiplies two planes, and both count, as both are computed. The result is 0 for kernels that use no integers.
  double of_int8_rate(int planes) const {
    return int8_rate == 0 ? 0 : weights() * static_cast<double>(rows) * planes / seconds / int8_rate;
  }
};

Row time_row(Cpu& cpu, const std::vector<Cpu::Linear>& copies, const Matrix& matrix, Reading reading, int64_t rows,
             double budget) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  Batch batch;
  const std::vector<int32_t> ids(static_cast<size_t>(rows), 0),
      pages(static_cast<size_t>((rows + kPageTokens - 1) / kPageTokens), 0);
  batch.append(ids, 0, pages, 0, RowKind::output);
  cpu.reserve(rows, matrix.in, rows);
  cpu.begin(batch, reading, no_attention());
  Cpu::Matrix x = cpu.allocate(rows, matrix.in), y = cpu.allocate(rows, matrix.out);
  Rng rng(2);
  for (int64_t i = 0; i < rows * matrix.in; ++i) x.data()[i] = static_cast<float>(rng.normal());

  const int64_t bytes = cpu.bytes_read(copies[0], reading);
  std::vector<double> times, reads, per_product;
  const auto begin = Clock::now();
  for (size_t pass = 0; pass < 10 || since(begin) < budget; ++pass) {
    const Cpu::Linear& w = copies[pass % copies.size()];
    const Cpu::Linear& other = copies[(pass + copies.size() / 2) % copies.size()];
    reads.push_back(seconds_to_read(cpu.pool(), other.packed.data(), bytes));
    const auto start = Clock::now();
    const std::pair<const Cpu::Linear*, Cpu::Matrix*> one[] = {{&w, &y}};
    cpu.linear(cpu.input(x), one);
    times.push_back(since(start));
    const double rate = int8_rate(cpu.pool(), cpu.isa());
    per_product.push_back(rate == 0 ? 0 : 1 / rate);
  }
  const double product = first_decile(per_product);
  return {.format = to_string(copies[0].spec),
          .activations = std::string(name_of(reading.activations)),
          .kernel = copies[0].kernel(reading).name,
          .matrix = matrix,
          .view = reading.high_bits,
          .rows = rows,
          .seconds = first_decile(times),
          .read_seconds = first_decile(reads),
          .bytes = static_cast<double>(bytes),
          .int8_rate = product == 0 ? 0 : 1 / product};
}

nlohmann::json to_json(const Row& r, double of_int8_rate) {
  return {{"format", r.format},
          {"activations", r.activations},
          {"view", r.view},
          {"kernel", r.kernel},
          {"shape", r.matrix.name},
          {"out", r.matrix.out},
          {"in", r.matrix.in},
          {"rows", r.rows},
          {"microseconds", r.seconds * 1e6},
          {"bytes", r.bytes},
          {"gbs", r.bytes / r.seconds / 1e9},
          {"of_bandwidth", r.read_seconds / r.seconds},
          {"gweights_per_second", r.weights() / r.seconds / 1e9},
          {"int8_gmacs", r.int8_rate / 1e9},
          {"of_int8_rate", of_int8_rate}};
}

void bench_linear(const LinearBench& o) {
  std::vector<FormatSpec> specs;
  for (const std::string& format : o.formats) specs.push_back(parse_format(format));
  std::vector<Activations> modes;
  for (const std::string& mode : o.activations) modes.push_back(parse_activations(mode));
  std::vector<Matrix> matrices;
  for (const std::string& shape : o.shapes)
    for (Matrix& matrix : matrices_of(shape)) matrices.push_back(std::move(matrix));
  Cpu::Options options{.threads = o.threads, .isa = {}};
  if (!o.isa.empty()) options.isa = cpu::parse_isa(o.isa);
  Cpu cpu(options);

  const double bandwidth = read_bandwidth(cpu.pool()), rate = int8_rate(cpu.pool(), cpu.isa());
  nlohmann::json report = {{"threads", cpu.pool().threads()},
                           {"isa", std::string(name_of(cpu.isa()))},
                           {"read_bandwidth_gbs", bandwidth / 1e9},
                           {"int8_gmacs", rate / 1e9},
                           {"rows", nlohmann::json::array()}};
  if (!quiet(o.json)) {
    fmt::print("{} threads, {}: reads {:.1f} GB/s, {:.0f} G 8-bit products/s\n\n", cpu.pool().threads(),
               name_of(cpu.isa()), bandwidth / 1e9, rate / 1e9);
    fmt::print(
        "| format | kernel | shape | M | us | GB/s | % of read | G weights/s | % of INT8 rate "
        "|\n|---|---|---|---|---|---|---|---|---|\n");
  }
  for (const Matrix& matrix : matrices)
    for (const FormatSpec& spec : specs) {
      const std::vector<Cpu::Linear> copies =
          copies_of(cpu.pack(random_weight(spec, matrix.out, matrix.in), o.view), o.megabytes);
      check(o.view == 0 || copies[0].view(Reading(Activations::a16, o.view)),
            "--view {}: codes of {} cannot be cut to that; give fewer bits than it has", o.view, to_string(spec));
      for (const Activations mode : modes)
        for (const int64_t rows : o.rows) {
          const Reading reading(mode, o.view);
          const Row r = time_row(cpu, copies, matrix, reading, rows, o.seconds);
          const cpu::Form form = copies[0].kernel(reading).form;
          const double share = form == cpu::Form::i8x2 || form == cpu::Form::i16 ? r.of_int8_rate(2)
                               : form == cpu::Form::i8                           ? r.of_int8_rate(1)
                                                                                 : 0;
          report["rows"].push_back(to_json(r, share));
          if (quiet(o.json)) continue;
          fmt::print("| {} | {} | {} {}x{} | {} | {:.1f} | {:.1f} | {:.0f} | {:.1f} | {} |\n", r.format, r.kernel,
                     matrix.name, matrix.out, matrix.in, rows, r.seconds * 1e6, r.bytes / r.seconds / 1e9,
                     100 * r.read_seconds / r.seconds, r.weights() / r.seconds / 1e9,
                     share == 0 ? "-" : fmt::format("{:.0f}", 100 * share));
          std::fflush(stdout);
        }
    }
  write_json(o.json, report);
}

}  // namespace

void add_bench_linear(CLI::App& bench) {
  auto o = std::make_shared<LinearBench>();
  CLI::App* verb =
      bench.add_subcommand("linear", "Every linear kernel against this machine's ceilings in the same run");
  verb->footer("Shapes: " + shape_names() +
               ", or OUTxIN\nExample:\n  fidelio bench linear --formats int4g64zs8,lut4g64 --rows 1,4,512 --shapes "
               "tinyllama-1.1b --threads 2");
  verb->add_option("--formats", o->formats, "Formats of the weight")->delimiter(',');
  verb->add_option("--rows", o->rows, "Rows of activations: 1 = decoding, 512 = prefill")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  verb->add_option("--shapes", o->shapes, "Models whose matrices to time, or OUTxIN")->delimiter(',');
  verb->add_option("--view", o->view, "Read only this many high bits of the codes, as drafts do (default: all)")
      ->check(CLI::Range(2, 7));
  verb->add_option("--activations", o->activations, "Modes: f32, a16, a8")->delimiter(',');
  verb->add_option("--threads", o->threads, "Worker threads; 0 = all there are")->check(CLI::Range(0, 1024));
  verb->add_option("--isa", o->isa, "Kernels to use instead of the best ones: portable, avx2, avx512, amx");
  verb->add_option("--seconds", o->seconds, "Time a row takes, probes included")->check(from_to(0, 3600));
  verb->add_option("--megabytes", o->megabytes,
                   "Copies of the weight streamed in turn; more than the caches hold, unless their speed is wanted")
      ->check(from_to(0, 1e6));
  add_json(*verb, o->json);
  verb->callback([o] { bench_linear(*o); });
}

}  // namespace fidelio::app
