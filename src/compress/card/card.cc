#include "compress/card/card.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compress/card/card_head.h"
#include "compress/certificate/words.h"
#include "core/error.h"
#include "core/file.h"
#include "core/foreign/foreign_text.h"
#include "core/foreign/units.h"
#include "eval/report/table.h"
#include "io/export/export.h"

namespace fidelio {
namespace {

using Head = std::map<std::string, std::vector<std::string>>;

std::string text_or_none(const nlohmann::json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

std::string first_of(const Head& head, const std::string& key) {
  const auto found = head.find(key);
  return found == head.end() || found->second.empty() ? "" : found->second.front();
}

// Returns the name of the original. It is the one that a card of ours names (an export has the checkpoint's card), or
// else its name on the Hub, or else its folder's.
std::string base_model(const CardFacts& facts, const Head& head) {
  if (first_of(head, "library_name") == "fidelio" && !first_of(head, "base_model").empty())
    return first_of(head, "base_model");
  std::string name = facts.source;
  if (name.find('/') == std::string::npos && !facts.hub_name.empty()) return facts.hub_name;
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  return name;
}

const char* library_of(const CardFacts& facts) {
  if (facts.target == "fidelio") return "fidelio";
  return facts.target == "gguf" ? "gguf" : "transformers";
}

std::string yaml_head(const CardFacts& facts, const Head& head) {
  std::string text = "---\n";
  if (const std::string base = base_model(facts, head); !base.empty()) {
    if (base.find('/') == std::string::npos)
      text += "# The original's name on the Hub, OWNER/NAME, belongs here before this is published.\n";
    text += fmt::format("base_model: {}\nbase_model_relation: quantized\n", yaml_text(base));
  }
  for (const char* key : {"license", "license_name", "license_link"})
    if (const std::string value = first_of(head, key); !value.empty())
      text += fmt::format("{}: {}\n", key, yaml_text(value));
  if (const auto language = head.find("language"); language != head.end() && !language->second.empty()) {
    text += "language:\n";
    for (const std::string& one : language->second) text += fmt::format("- {}\n", yaml_text(one));
  }
  const std::string pipeline = first_of(head, "pipeline_tag");
  text += fmt::format("library_name: {}\npipeline_tag: {}\ntags:\n- fidelio\n- quantized\n", library_of(facts),
                      pipeline.empty() ? "text-generation" : yaml_text(pipeline));
  if (facts.target != "fidelio") text += fmt::format("- {}\n", facts.target);
  return text + "---\n\n";
}

std::string sizes(const CardFacts& facts, const std::string& base) {
  const auto parameters = static_cast<double>(facts.parameters);
  std::string text = fmt::format("# {}\n\n", markdown_text(facts.name));
  text += base.empty() ? "A model" : fmt::format("{}", markdown_text(base));
  text += fmt::format(", compressed by fidelio to {} ({:.3f} bits a parameter, {:.4g} million parameters)",
                      bytes_text(facts.bytes), 8 * static_cast<double>(facts.bytes) / parameters, parameters / 1e6);
  if (facts.source_file_bytes) text += fmt::format("; the original has {}", bytes_text(*facts.source_file_bytes));
  return text + ".\n\n";
}

std::string with_interval(const Estimate& e, double times, int digits) {
  return interval_text({times * e.value, {times * e.ci95.low, times * e.ci95.high}}, digits);
}

std::string row_of(const std::string& name, const DomainFidelity& measured) {
  return fmt::format("| {} | {} | {} | {} | {} |\n", markdown_text(name), measured.tokens,
                     with_interval(measured.ear, 1, 5), with_interval(measured.kl, 1, 6),
                     with_interval(measured.top1, 100, 2));
}

std::string fidelity(const CardFacts& facts, const Certificate& certificate) {
  std::string text =
      "## How near it is to the original\n\nMeasured token by token beside the original. Intervals are of 95% "
      "certainty, from one document to the next.\n\n"
      "| text | tokens | overlap of next-token probabilities (EAR) | KL divergence, nats a token | same first choice, "
      "% |\n"
      "|---|---|---|---|---|\n";
  for (const DomainFidelity& d : certificate.domains) text += row_of(d.domain, d);
  if (certificate.domains.size() > 1) text += row_of("all of it", certificate.all);
  text += "\n";
  for (const PlainWords& words : in_plain_words(certificate, facts.kept))
    text += fmt::format("**{}**: {}\n\n", words.about, markdown_text(words.sentence));
  if (facts.target != "fidelio")
    text +=
        "These figures were measured by fidelio with the weights that this export was made of. Other programs compute "
        "with kernels of their own.\n\n";
  return text;
}

std::string unmeasured(const CardFacts& facts) {
  return fmt::format(
      "## How near it is to the original\n\nThis has not been measured. `fidelio eval {} --reference ORIGINAL --text "
      "FILE` "
      "measures it on a text of yours.\n\n",
      facts.target == "fidelio" ? "FOLDER" : "MODEL");
}

std::string contents(const CardFacts& facts) {
  int64_t all = 0;
  for (const auto& [format, weights] : facts.formats) all += weights;
  const char* what = facts.target == "fidelio" ? "What it holds" : "What the exported model held";
  std::string text = fmt::format("## {}\n\n", what) + "| format | share of the weights, % |\n|---|---|\n";
  for (const auto& [format, weights] : facts.formats)
    text += fmt::format("| {} | {:.1f} |\n", format, 100 * static_cast<double>(weights) / static_cast<double>(all));
  text += "\n";
  for (const std::string& note : facts.notes) text += fmt::format("- {}\n", markdown_text(note));
  return text + (facts.notes.empty() ? "" : "\n");
}

std::string running(const CardFacts& facts) {
  const std::string name = visible(facts.name);
  std::string text = "## How to run it\n\n";
  const auto block = [](const std::string& lines) { return "```\n" + lines + "\n```\n\n"; };
  if (facts.target == "fidelio") {
    text += block(
        fmt::format("fidelio chat {}\nfidelio serve {}      # an OpenAI-compatible server on port 8000", name, name));
    if (!facts.made_anew.empty()) {
      std::string lines;
      for (const std::string& line : facts.made_anew) lines += (lines.empty() ? "" : "\n") + visible(line);
      return text +
             "Other programs do not read this folder, and none holds all of its formats. These commands make the "
             "model anew with formats that `fidelio export` can write for vLLM and for llama.cpp:\n\n" +
             block(lines);
    }
    text +=
        "Other programs do not read this folder. `fidelio export` writes the model for them, where its formats are "
        "ones "
        "that they hold:\n\n";
    return text +
           block(fmt::format("fidelio export {} --to compressed-tensors --profile vllm -o OUT   # vLLM, transformers\n"
                             "fidelio export {} --to gguf -o OUT.gguf                           # llama.cpp, Ollama",
                             name, name));
  }
  if (facts.target == "gguf") return text + block(fmt::format("llama-cli -m {}", name));
  text += block(fmt::format("vllm serve {}", name));
  if (facts.target == "gptq") return text + "GPTQModel reads it too.\n\n";
  if (facts.asymmetric)
    return text + "It is asymmetric (it has zero points): vLLM reads it, transformers does not yet.\n\n";
  return text +
         block(
             "from transformers import AutoModelForCausalLM, AutoTokenizer  # with compressed-tensors installed\n"
             "model = AutoModelForCausalLM.from_pretrained(\"" +
             name + "\")");
}

std::string making(const CardFacts& facts) {
  if (facts.command.empty()) return "";
  return fmt::format("## How it was made\n\nBy {}:\n\n```\n{}\n```\n", visible(facts.version), visible(facts.command));
}

}  // namespace

CardFacts card_facts(const Checkpoint& checkpoint, const TextFiles& source) {
  CardFacts facts;
  facts.name = std::filesystem::path(std::filesystem::path(checkpoint.folder()) / "").parent_path().filename().string();
  const nlohmann::json provenance = nlohmann::json::parse(checkpoint.provenance());
  facts.source = text_or_none(provenance, "source");
  if (provenance.is_object() && provenance.contains("source_file_bytes") &&
      provenance["source_file_bytes"].is_number_integer())
    facts.source_file_bytes = provenance["source_file_bytes"].get<int64_t>();
  if (provenance.is_object() && provenance.contains("certificate")) try {
      facts.certificate = read_certificate(checkpoint);
    } catch (const Error&) {
      // It is another version's or damaged, and what it says is not repeated.
    }
  facts.source_card = source.read("README.md").value_or("");
  const nlohmann::json config = nlohmann::json::parse(source.require("config.json"), nullptr, false);
  // transformers writes here the name that it was given, which is a path of somebody's machine or a name on the Hub.
  const std::string told = text_or_none(config, "_name_or_path");
  const bool hub =
      std::ranges::count(told, '/') == 1 && told.front() != '/' && told.front() != '.' && told.back() != '/';
  if (hub) facts.hub_name = told;
  facts.bytes = checkpoint.file_bytes();
  facts.parameters = checkpoint.parameters();
  bool integers = true;  // No other program holds grids, fp4 or fp8 (io/export/export.h).
  for (LinearId id : linears_of(checkpoint.config())) {
    const FormatSpec format = checkpoint.format(id);
    integers &= format.is_dense() || format.kind == Kind::integer;
    facts.formats[to_string(format)] += shape_of(checkpoint.config(), id).elements();
    facts.asymmetric |= id.layer >= 0 && format.kind == Kind::integer && !format.symmetric;
  }
  if (!integers)
    for (const char* target : {"compressed-tensors", "gguf"})
      facts.made_anew.push_back(line_that_fits(checkpoint, target));
  return facts;
}

std::string model_card(const CardFacts& facts) {
  const Head head = read_card_head(facts.source_card);
  std::string text = yaml_head(facts, head) + sizes(facts, base_model(facts, head));
  text += facts.certificate ? fidelity(facts, *facts.certificate) : unmeasured(facts);
  return text + contents(facts) + running(facts) + making(facts);
}

bool write_card(const std::string& folder, const CardFacts& facts) {
  const std::string file = folder + "/README.md";
  if (std::filesystem::exists(std::filesystem::symlink_status(file))) return false;
  write_file_atomically(file, model_card(facts));
  return true;
}

}  // namespace fidelio
