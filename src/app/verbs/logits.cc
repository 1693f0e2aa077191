// This file is the verb `logits`, which writes the logits of a sequence of tokens to a .npy file.
#include <algorithm>
#include <limits>

#include "app/options/common.h"
#include "core/file.h"
#include "core/foreign/json.h"
#include "runtime/execution/logits_of.h"

namespace fidelio::app {
namespace {

std::vector<int32_t> read_ids(const std::string& path) {
  const nlohmann::json parsed = parse_json(read_text_file(path), path);
  check(parsed.is_array() && !parsed.empty() &&
            std::all_of(parsed.begin(), parsed.end(), [](const auto& x) { return x.is_number_integer(); }),
        "{}: expected a JSON list of token ids", path);
  for (const auto& id : parsed)  // Ids within 32 bits are compared with the vocabulary later.
    check(id >= std::numeric_limits<int32_t>::min() && id <= std::numeric_limits<int32_t>::max(),
          "{}: {} is no token id", path, id.dump());
  return parsed.get<std::vector<int32_t>>();
}

// This is NumPy's .npy 1.0: magic, little-endian header length, a Python dict padded with spaces to a multiple of 64,
// and raw values.
std::string npy_header(int64_t rows, int64_t columns) {
  std::string dict = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  dict.append((64 - (10 + dict.size() + 1) % 64) % 64, ' ');
  dict += '\n';
  std::string header = {'\x93', 'N', 'U', 'M', 'P', 'Y', '\x01', '\x00'};
  header += static_cast<char>(dict.size() & 0xff);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

}  // namespace

void add_logits(CLI::App& app) {
  struct Options {
    RunOptions run;
    std::string ids, out, json;
  };
  auto o = std::make_shared<Options>();
  CLI::App* verb =
      app.add_subcommand("logits", "Write the logits of every position of a token sequence as a NumPy file");
  verb->footer("Example:\n  fidelio logits models/quill-26m --ids ids.json -o logits.npy --activations f32");
  add_model(*verb, o->run);
  verb->add_option("--ids", o->ids, "JSON list of token ids")->required();
  verb->add_option("-o,--output", o->out, "Output: float32 (tokens, vocabulary)")->required();
  add_run_options(*verb, o->run);
  add_json(*verb, o->json);
  verb->callback([o] {
    check_output_name(o->out);
    check_can_write({o->json});
    const std::vector<int32_t> ids = read_ids(o->ids);
    const Checkpoint checkpoint = Checkpoint::open(o->run.model);
    const auto n = static_cast<int64_t>(ids.size());
    check(n <= checkpoint.config().max_positions, "{} holds {} tokens, the model's context is {}", o->ids, n,
          checkpoint.config().max_positions);
    RunnerOptions options = runner_options(o->run);
    options.cache_tokens = n;
    const auto runner = make_runner(o->run, checkpoint, options);

    AtomicFile file(o->out);
    file.write(npy_header(n, checkpoint.config().v));
    for_logits(*runner, ids, options.mode, [&](std::span<const float> rows) { file.write(std::as_bytes(rows)); });
    file.commit();
    write_json(o->json, {{"output", o->out}, {"tokens", n}, {"vocabulary", checkpoint.config().v}});
  });
}

}  // namespace fidelio::app
