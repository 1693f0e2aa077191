#include <map>

#include "app/options/common.h"
#include "core/foreign/foreign_text.h"
#include "core/foreign/units.h"
#include "text/tokenizer/config.h"

namespace fidelio::app {
namespace {

nlohmann::json inspect(const Checkpoint& c) {
  nlohmann::json tensors = nlohmann::json::array();
  nlohmann::json codebooks = nlohmann::json::object();
  int64_t linear_bytes = 0, linear_parameters = 0;
  for (LinearId id : linears_of(c.config())) {
    const FormatSpec spec = c.format(id);
    const Shape shape = shape_of(c.config(), id);
    const int64_t bytes = stored_bytes(spec, shape[0], shape[1]);
    const bool inner = id.role != Role::embedding && id.role != Role::head;
    if (inner) {
      linear_bytes += bytes;
      linear_parameters += elements_of(c.config(), id);
    }
    if (spec.shared && !codebooks.contains(shared_name(spec))) {
      codebooks[shared_name(spec)] = shared_bytes(spec);
      linear_bytes += shared_bytes(spec);
    }
    tensors.push_back(
        {{"name", to_string(id)},
         {"format", to_string(spec)},
         {"shape", {shape[0], shape[1]}},
         {"bytes", bytes},
         {"bits_per_parameter", 8.0 * static_cast<double>(bytes) / static_cast<double>(elements_of(c.config(), id))},
         {"paper_bits", paper_bits(spec)}});
  }
  const ModelConfig& m = c.config();
  return {
      {"architecture", std::string(name_of(m.architecture))},
      {"parameters", c.parameters()},
      {"file_bytes", c.file_bytes()},
      {"bits_per_parameter", 8.0 * static_cast<double>(c.file_bytes()) / static_cast<double>(c.parameters())},
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
        {"tied_embeddings", m.tie_embeddings}}},
      {"tokenizer_trouble", tokenizer_trouble(c.texts())},
      {"quantised_by", c.quantised_by()},
      {"notes", c.notes()},
      {"provenance", nlohmann::json::parse(c.provenance())},
      {"codebooks", codebooks},
      {"tensors", tensors}};
}

// For readers: one line for a matrix of all of a layer's experts in one format, of which there may be a hundred.
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

}  // namespace

void add_inspect(CLI::App& app) {
  struct Options {
    std::string model, json;
  };
  auto o = std::make_shared<Options>();
  CLI::App* verb =
      app.add_subcommand("inspect", "Show what a model folder holds: shapes, formats, true bits per parameter");
  verb->footer("Example:\n  fidelio inspect models/quill-26m");
  verb->add_option("MODEL", o->model, "Model folder or .gguf file")->required()->check(model_folder());
  add_json(*verb, o->json);
  verb->callback([o] {
    const nlohmann::json report = inspect(Checkpoint::open(o->model));
    write_json(o->json, report);
    if (quiet(o->json)) return;
    fmt::print("{}  {} parameters  {}  {:.3f} bits/parameter (whole file), {:.3f} (linears)\n",
               report["architecture"].get<std::string>(), report["parameters"].get<int64_t>(),
               bytes_text(report["file_bytes"]), report["bits_per_parameter"].get<double>(),
               report["linear_bits_per_parameter"].get<double>());
    if (const auto by = report["quantised_by"].get<std::string>(); !by.empty())
      fmt::print("quantised already, by {}\n", by);
    if (const auto trouble = report["tokenizer_trouble"].get<std::string>(); !trouble.empty())
      fmt::print("no text can be made or read: {}\n", foreign(trouble, Lines::kept, 3000));
    for (const auto& t : with_experts_together(report["tensors"]))
      fmt::print("  {:<18} {:<12} {:>6} x {:<6} {:>10} {:>8.3f} bits{}\n", t["name"].get<std::string>(),
                 t["format"].get<std::string>(), t["shape"][0].get<int64_t>(), t["shape"][1].get<int64_t>(),
                 bytes_text(t["bytes"]), t["bits_per_parameter"].get<double>(),
                 t.contains("experts") ? fmt::format("  in {} experts", t["experts"].get<int>()) : std::string());
    for (const auto& [name, bytes] : report["codebooks"].items())
      fmt::print("  {:<51} {:>10}\n", name, bytes_text(bytes));
  });
}

}  // namespace fidelio::app
