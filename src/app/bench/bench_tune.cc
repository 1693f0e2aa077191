// This file is the verb `bench tune`, which times a step of tuning a layer.
#include "app/bench/bench_tune.h"

#include "app/bench/shapes.h"
#include "core/foreign/units.h"
#include "formats/format_spec.h"
#include "io/hf_config.h"
#include "train/tune/tuner.h"

namespace fidelio::app {
namespace {

struct TuneBench {
  RunOptions run;
  std::string shape = "llama-3-8b", format = "int4g64zs8", products, json;
  int64_t windows = 8, context = 2048, steps = 1000;
  int repetitions = 5;
  double peak = 989.4;  // It is in 10^12 operations a second.
};

void bench_tune(const TuneBench& o) {
  check_can_write({o.json});
  const NamedShape* shape = find_shape(o.shape);
  check(shape != nullptr, "--shape {}: one of {}", o.shape, shape_names());
  const ModelConfig config = parse_config(hf_config_of(*shape).dump(), shape->name);
  const FormatSpec spec = parse_target(o.format);
  const bool gpu = on_gpu(o.run);
  const train::LayerTiming t =
      gpu ? train::time_layer_on_gpu(config, spec, o.windows, o.context, o.repetitions,
                                     train::parse_products(o.products, gpu), runner_options(o.run).gpu)
          : train::time_layer_on_host(config, spec, o.windows, o.context, o.repetitions, o.run.threads);
  const double rate = t.operations / t.seconds;
  write_json(o.json, {{"shape", o.shape},
                      {"format", o.format},
                      {"device", o.run.device},
                      {"products", o.products},
                      {"windows", o.windows},
                      {"context", o.context},
                      {"seconds_a_layer", t.seconds},
                      {"operations_a_second", rate},
                      {"product_operations_a_second", t.product_rate},
                      {"bytes_foreseen", t.bytes_foreseen},
                      {"bytes_held", t.bytes_held}});
  if (quiet(o.json)) return;
  fmt::print(
      "{} {}, {} windows of {} tokens: {:.2f} ms a step of a layer, {:.1f} TFLOP/s: {:.0f}% of {:.1f}, {:.0f}% of a "
      "product's {:.1f}\n",
      o.shape, o.format, o.windows, o.context, 1e3 * t.seconds, rate / 1e12, 100 * rate / (o.peak * 1e12), o.peak,
      100 * rate / t.product_rate, t.product_rate / 1e12);
  fmt::print("memory: {} foreseen{}\n", bytes_text(t.bytes_foreseen),
             t.bytes_held > 0 ? fmt::format(", {} held", bytes_text(t.bytes_held)) : "");
  fmt::print("{} steps of each of {} layers: {:.0f} s\n", o.steps, config.L,
             static_cast<double>(o.steps * config.L) * t.seconds);
}

}  // namespace

void add_bench_tune(CLI::App& bench) {
  auto o = std::make_shared<TuneBench>();
  CLI::App* verb = bench.add_subcommand("tune", "A step of tuning a layer: forward, backward, AdamW; random weights");
  verb->footer("Example:\n  fidelio bench tune --shape llama-3-8b --device cuda --products bf16");
  verb->add_option("--shape", o->shape, "One of " + shape_names());
  verb->add_option("--format", o->format, "Of all its matrices: integers with 8-bit scales");
  verb->add_option("--windows", o->windows, "Windows a step")->check(above_zero());
  verb->add_option("--context", o->context, "Tokens of a window")->check(CLI::Range(16, 1 << 20));
  verb->add_option("--steps", o->steps, "Steps a layer that a time is foreseen for")->check(above_zero());
  verb->add_option("-r,--repetitions", o->repetitions, "Steps that are timed")->check(above_zero());
  verb->add_option("--products", o->products, "What a GPU rounds the factors of products to: f32, tf32, bf16");
  verb->add_option("--peak", o->peak,
                   "10^12 operations a second that the share is of (default: BF16 of an H100 or H200)")
      ->check(above_zero());
  add_device(*verb, o->run);
  add_json(*verb, o->json);
  verb->callback([o] { bench_tune(*o); });
}

}  // namespace fidelio::app
