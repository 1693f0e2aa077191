// This file is the verb `inspect`, which prints what a model consists of and what its certificate says.
#include <algorithm>
#include <cmath>
#include <map>

#include "app/options/common.h"
#include "compress/certificate/certificate.h"
#include "core/foreign/foreign_text.h"
#include "core/foreign/units.h"
#include "step/build.h"
#include "text/tokenizer/config.h"

namespace fidelio::app {
namespace {

// Counts what stays as it is, whatever the formats: routers, sinks, and what delta nets and shared experts have besides
// their linears, the predictor's too. Norms and biases are not counted.
nlohmann::json kept_as_they_are(const Checkpoint& c) {
  const ModelConfig& m = c.config();
  int64_t tensors = 0, bytes = 0;
  const auto add = [&](int64_t size) { ++tensors, bytes += size; };
  for (const LinearId id : fixed_linears_of(m)) add(stored_bytes(c.format(id), shape_of(m, id)[0], shape_of(m, id)[1]));
  for (const LinearId id : predictor_linears_of(m))
    if (is_fixed(id.role)) add(stored_bytes(c.format(id), shape_of(m, id)[0], shape_of(m, id)[1]));
  for (const auto& [name, shape] : tensors_of_routers(m)) add(c.tensor(name).view.bytes());
  for (const auto& [layer, which] : norms_of(m))
    if (which == Norm::sinks) add(c.tensor(norm_name(m, layer, which)).view.bytes());
  if (m.predictor && has_experts(m, kPredictorLayer)) add(c.tensor(router_name(m, kPredictorLayer)).view.bytes());
  for (const int layer : delta_layers(m))
    for (const DeltaTensor which : kDeltaTensors) add(c.tensor(delta_name(layer, which)).view.bytes());
  return {{"tensors", tensors}, {"bytes", bytes}};
}

// Counts the matrices of the block that predicts a token more, which are no part of what a step of the model reads.
// It is null where there is none.
nlohmann::json predictor_of(const Checkpoint& c) {
  const ModelConfig& m = c.config();
  if (!m.predictor) return nullptr;
  int64_t matrices = 0, parameters = 0, bytes = 0;
  for (const LinearId id : predictor_linears_of(m)) {
    if (is_fixed(id.role)) continue;
    ++matrices, parameters += elements_of(m, id);
    bytes += stored_bytes(c.format(id), shape_of(m, id)[0], shape_of(m, id)[1]);
  }
  return {{"format", to_string(c.format({kPredictorLayer, Role::join}))},
          {"matrices", matrices},
          {"parameters", parameters},
          {"bytes", bytes}};
}

nlohmann::json tensor_row(const Checkpoint& c, LinearId id, int64_t bytes) {
  const Shape shape = shape_of(c.config(), id);
  const int64_t parameters = elements_of(c.config(), id);
  return {{"name", to_string(id)},
          {"format", to_string(c.format(id))},
          {"shape", {shape[0], shape[1]}},
          {"bytes", bytes},
          {"parameters", parameters},
          {"bits_per_parameter", 8.0 * static_cast<double>(bytes) / static_cast<double>(parameters)},
          {"paper_bits", paper_bits(c.format(id))}};
}

// Counts the table of the rows that layers have for tokens. It is looked up and never multiplied, so it is counted
// apart.
nlohmann::json table_of_layers(const Checkpoint& c) {
  if (c.config().per_layer == 0) return {{"bytes", 0}, {"parameters", 0}};
  const LinearId id{-1, Role::per_layer_table};
  const Shape shape = shape_of(c.config(), id);
  return {{"bytes", stored_bytes(c.format(id), shape[0], shape[1])}, {"parameters", shape.elements()}};
}

nlohmann::json inspect(const Checkpoint& c) {
  nlohmann::json tensors = nlohmann::json::array(), codebooks = nlohmann::json::object();
  const ModelConfig& m = c.config();
  int64_t linear_bytes = 0, linear_parameters = 0, matrix_bytes = 0, matrix_parameters = 0;
  for (LinearId id : linears_of(m)) {
    const FormatSpec spec = c.format(id);
    const Shape shape = shape_of(m, id);
    const int64_t bytes = stored_bytes(spec, shape[0], shape[1]);
    matrix_bytes += bytes;
    matrix_parameters += elements_of(c.config(), id);
    if (id.layer >= 0) {
      linear_bytes += bytes;
      linear_parameters += elements_of(c.config(), id);
    }
    if (spec.shared && !codebooks.contains(shared_name(spec))) {
      codebooks[shared_name(spec)] = shared_bytes(spec);
      linear_bytes += shared_bytes(spec);
      matrix_bytes += shared_bytes(spec);
    }
    tensors.push_back(tensor_row(c, id, bytes));
  }
  return {
      {"architecture", std::string(name_of(m.architecture))},
      {"parameters", c.parameters()},
      {"file_bytes", c.file_bytes()},
      {"bits_per_parameter", 8.0 * static_cast<double>(c.file_bytes()) / static_cast<double>(c.parameters())},
      {"matrix_bytes", matrix_bytes},
      {"matrix_parameters", matrix_parameters},
      {"as_they_are", kept_as_they_are(c)},
      {"predictor", predictor_of(c)},
      {"per_layer_table", table_of_layers(c)},
      {"linear_bits_per_parameter", 8.0 * static_cast<double>(linear_bytes) / static_cast<double>(linear_parameters)},
      {"config",
       {{"layers", m.L},
        {"d", m.d},
        {"ffn", m.f},
        {"heads", m.h},
        {"kv_heads", m.hk},
        {"head_dim", m.e},
        {"vocabulary", m.v},
        {"context", m.max_positions},
        {"experts", m.experts},
        {"experts_per_row", m.experts_per_row},
        {"shared_expert", m.shared_f},
        {"delta_layers", delta_layers(m).size()},
        {"state_bytes", 4 * state_shape(m).floats()},
        {"tied_embeddings", m.tie_embeddings}}},
      {"tokenizer_trouble", tokenizer_trouble(c.texts())},
      {"quantised_by", c.quantised_by()},
      {"notes", c.notes()},
      {"provenance", nlohmann::json::parse(c.provenance())},
      {"codebooks", codebooks},
      {"tensors", tensors}};
}

// Returns the tensors for human readers: one line for the matrices of all experts of a layer in one format, of which
// there may be a hundred.
nlohmann::json with_experts_together(const nlohmann::json& tensors) {
  nlohmann::json lines = nlohmann::json::array();
  std::map<std::pair<std::string, std::string>, size_t> line_of;
  for (nlohmann::json tensor : tensors) {
    const LinearId id = parse_linear_id(tensor["name"].get<std::string>());
    if (id.expert >= 0) {
      const std::string name = to_string(LinearId{id.layer, id.role});
      const auto [line, first] = line_of.emplace(std::pair(name, tensor["format"].get<std::string>()), lines.size());
      if (!first) {
        nlohmann::json& there = lines[line->second];
        there["bytes"] = there["bytes"].get<int64_t>() + tensor["bytes"].get<int64_t>();
        there["experts"] = there["experts"].get<int>() + 1;
        continue;
      }
      tensor["name"] = name;
      tensor["experts"] = 1;
    }
    lines.push_back(std::move(tensor));
  }
  return lines;
}

// Formats 630167424 as "630,167,424".
std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), ",");
  return text;
}

// Prints what the model is, and its size in the file and in memory. The two differ where codes had to be decoded.
void print_summary(const nlohmann::json& report, const std::string& name) {
  const nlohmann::json& m = report["config"];
  const auto number = [&](const char* key) { return m[key].get<int64_t>(); };
  const auto bits = [](int64_t bytes, int64_t parameters) {
    return 8.0 * static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(1, parameters));
  };
  fmt::print("{}: {}, {} parameters\n", foreign(name), report["architecture"].get<std::string>(),
             grouped(report["parameters"]));
  fmt::print(
      "  {} layers of width {}, {} heads, {} of keys and values{}{}; {} tokens{}; context {}\n", number("layers"),
      number("d"), number("heads"), number("kv_heads"),
      number("experts") > 0 ? fmt::format(", {} of {} experts a token{}", number("experts_per_row"), number("experts"),
                                          number("shared_expert") > 0 ? " and a shared one" : "")
                            : "",
      number("delta_layers") > 0
          ? fmt::format("; {} layers have a gated delta net in place of attention, with a state of {} a sequence",
                        number("delta_layers"), bytes_text(number("state_bytes")))
          : "",
      number("vocabulary"), m["tied_embeddings"].get<bool>() ? ", embedding and head are one matrix" : "",
      number("context"));
  const int64_t file = report["file_bytes"], held = report["matrix_bytes"];
  fmt::print("  file    {:>10}  {:6.3f} bits a parameter\n", bytes_text(file), bits(file, report["parameters"]));
  fmt::print("  memory  {:>10}  {:6.3f} bits a weight, for the weight matrices as they are held\n", bytes_text(held),
             bits(held, report["matrix_parameters"]));
  if (const nlohmann::json& table = report["per_layer_table"]; table["bytes"] != 0)
    fmt::print(
        "  of that {:>10}  {:6.3f} bits a weight, for the rows that each layer looks up, of which a token reads one\n",
        bytes_text(table["bytes"].get<int64_t>()), bits(table["bytes"], table["parameters"]));
  if (const auto by = report["quantised_by"].get<std::string>(); !by.empty())
    fmt::print("  quantised already, by {}\n", foreign(by));
  if (const auto trouble = report["tokenizer_trouble"].get<std::string>(); !trouble.empty())
    fmt::print("  no text can be made or read: {}\n", foreign(trouble, Lines::kept, 3000));
}

// Prints a line for each format with the number of its matrices and their share of the weights, the largest share
// first.
void print_formats(const nlohmann::json& report) {
  struct Share {
    std::string format;
    int64_t matrices = 0, parameters = 0, bytes = 0;
  };
  std::vector<Share> shares;
  for (const nlohmann::json& tensor : report["tensors"]) {
    const auto format = tensor["format"].get<std::string>();
    auto share = std::find_if(shares.begin(), shares.end(), [&](const Share& s) { return s.format == format; });
    if (share == shares.end()) share = shares.insert(shares.end(), Share{format});
    ++share->matrices;
    share->parameters += tensor["parameters"].get<int64_t>();
    share->bytes += tensor["bytes"].get<int64_t>();
  }
  std::stable_sort(shares.begin(), shares.end(),
                   [](const Share& a, const Share& b) { return a.parameters > b.parameters; });
  const auto all = static_cast<double>(std::max<int64_t>(1, report["matrix_parameters"].get<int64_t>()));
  fmt::print("{:<14} {:>8} {:>7} {:>10} {:>12}\n", "format", "matrices", "share", "memory", "bits/weight");
  for (const Share& s : shares)
    fmt::print("{:<14} {:>8} {:>6.1f}% {:>10} {:>12.3f}\n", s.format, s.matrices,
               100 * static_cast<double>(s.parameters) / all, bytes_text(s.bytes),
               8.0 * static_cast<double>(s.bytes) / static_cast<double>(std::max<int64_t>(1, s.parameters)));
  if (const nlohmann::json& kept = report["as_they_are"]; kept["tensors"] != 0)
    fmt::print("{:<14} {:>8} {:>7} {:>10}\n", "as they are", kept["tensors"].get<int64_t>(), "",
               bytes_text(kept["bytes"].get<int64_t>()));
  if (const nlohmann::json& own = report["predictor"]; !own.is_null())
    fmt::print("{:<14} {:>8} {:>7} {:>10} {:>12.3f}  its own predictor of a token more, for drafts\n",
               own["format"].get<std::string>(), own["matrices"].get<int64_t>(), "",
               bytes_text(own["bytes"].get<int64_t>()),
               8 * own["bytes"].get<double>() / std::max(1.0, own["parameters"].get<double>()));
  for (const auto& [name, bytes] : report["codebooks"].items())
    fmt::print("{:<14} {:>8} {:>7} {:>10}\n", name, "shared", "", bytes_text(bytes));
}

void print_matrices(const nlohmann::json& report) {
  for (const auto& t : with_experts_together(report["tensors"]))
    fmt::print("  {:<22} {:<12} {:>6} x {:<6} {:>10} {:>8.3f} bits{}\n", t["name"].get<std::string>(),
               t["format"].get<std::string>(), t["shape"][0].get<int64_t>(), t["shape"][1].get<int64_t>(),
               bytes_text(t["bytes"]), t["bits_per_parameter"].get<double>(),
               t.contains("experts") ? fmt::format("  in {} experts", t["experts"].get<int>()) : std::string());
}

// Prints what a certificate claims, in a few lines. `certify` measures whether the claim holds.
void print_certificate(const Checkpoint& checkpoint, const nlohmann::json& report) {
  if (!report["provenance"].is_object() || !report["provenance"].contains("certificate")) return;
  try {
    const Certificate c = read_certificate(checkpoint);
    const auto percent = [](double share) { return fmt::format("{:.2f}%", 100 * share); };
    const std::string asked = c.target.ear    ? "at least " + percent(*c.target.ear)
                              : c.target.kl   ? fmt::format("KL of at most {:g}", *c.target.kl)
                              : c.target.top1 ? percent(*c.target.top1) + " greedy agreement"
                                              : std::string("no target");
    fmt::print("certificate: {} overlap (EAR) in {}, {} to {} with {:g}% confidence; asked for: {}\n",
               percent(c.promised.ear.value), foreign(c.promised.domain), percent(c.promised.ear.ci95.low),
               percent(c.promised.ear.ci95.high), 100 * c.promised.confidence, asked);
    if (std::isfinite(c.all.top1.value))
      fmt::print("  with greedy decoding the same token as the original {} of the time\n", percent(c.all.top1.value));
    fmt::print("  for activations {}, cache {} and {} tokens of context\n", foreign(c.activations), foreign(c.kv),
               c.context);
    fmt::print("  on {} tokens of {} documents; measure it again: fidelio certify {} --reference ORIGINAL\n",
               c.all.tokens, c.all.documents, foreign(checkpoint.folder()));
  } catch (const Error& error) {
    fmt::print("certificate: it cannot be read: {}\n", foreign(error.what(), Lines::escaped, 300));
  }
}

void print_program(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  fmt::print("{}", to_text(build_program(config, config.max_positions)));
}

}  // namespace

void add_inspect(CLI::App& app) {
  struct Options {
    std::string model, json;
    bool all = false, program = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("inspect", "Show what a model is: size in file and memory, formats, certificate");
  verb->footer("Example:\n  fidelio inspect models/quill-26m");
  verb->add_option("MODEL", o->model, "Model folder or .gguf file")->required()->check(model_folder());
  verb->add_flag("--all", o->all, "List every weight matrix with its format and shape");
  add_json(*verb, o->json);
  verb->add_flag("--program", o->program, "Print the operations of the model's step instead, in the order they run in")
      ->excludes("--all")
      ->excludes("--json");
  verb->callback([o] {
    const Checkpoint checkpoint = Checkpoint::open(o->model);
    if (o->program) return print_program(checkpoint);
    const nlohmann::json report = inspect(checkpoint);
    write_json(o->json, report);
    if (quiet(o->json)) return;
    print_summary(report, folder_name(o->model));
    print_formats(report);
    print_certificate(checkpoint, report);
    if (o->all)
      print_matrices(report);
    else
      fmt::print("--all lists every matrix, --json - has everything there is to say.\n");
  });
}

}  // namespace fidelio::app
