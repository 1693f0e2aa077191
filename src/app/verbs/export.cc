// This file is the verb `export`, which writes a model in the formats of other programs.
#include <filesystem>
#include <map>

#include "app/options/card.h"
#include "app/options/common.h"
#include "app/options/suggest.h"
#include "core/foreign/foreign_text.h"
#include "core/foreign/units.h"
#include "core/progress.h"
#include "io/checkpoint_files.h"
#include "io/export/export.h"

namespace fidelio::app {
namespace {

struct Export {
  std::string model, target, profile, out, json;
  bool exact = false;
};

std::vector<std::string> write_export(const Export& o, const Checkpoint& source) {
  const ServingProfile profile = o.profile == "vllm" ? ServingProfile::vllm : ServingProfile::any;
  if (o.target == "gguf") return export_gguf(source, o.out, o.exact);
  return o.target == "gptq" ? export_gptq(source, o.out, profile) : export_compressed_tensors(source, o.out, profile);
}

// Counts the bytes of a file, or of all files directly in a folder whose names have this ending.
int64_t bytes_of(const std::string& path, std::string_view ending = "") {
  namespace fs = std::filesystem;
  if (!fs::is_directory(path)) return static_cast<int64_t>(fs::file_size(path));
  int64_t bytes = 0;
  for (const auto& item : fs::directory_iterator(path))
    if (item.is_regular_file() && item.path().string().ends_with(ending))
      bytes += static_cast<int64_t>(item.file_size());
  return bytes;
}

// Returns a warning with the reason if an export is larger than the model it was made from, or than that model's
// source. Returns "" if it is not larger. The same weights may have headers and a vocabulary of other sizes, so a
// hundredth more counts as equal.
std::string size_warning(const Export& o, const Checkpoint& source) {
  // These are weights and vocabulary; a folder may hold other things, such as the same weights in another form.
  const bool folder = o.target != "gguf", from_folder = std::filesystem::is_directory(o.model);
  const int64_t made = folder ? bytes_of(o.out, ".safetensors") + bytes_of(o.out, ".json") : bytes_of(o.out);
  const int64_t model = source.file_bytes() + (from_folder ? bytes_of(o.model, ".json") : 0);
  const auto larger = [&](int64_t than) {
    return than > 0 && static_cast<double>(made) > 1.01 * static_cast<double>(than);
  };
  const nlohmann::json about = nlohmann::json::parse(source.provenance());
  int64_t original = 0;  // It is not known for models that an earlier fidelio or another program made.
  if (about.is_object() && about.contains("source_file_bytes") && about["source_file_bytes"].is_number_integer())
    original = about["source_file_bytes"].get<int64_t>();
  std::vector<std::string> than;
  if (larger(model)) than.push_back(fmt::format("{} ({})", o.model, bytes_text(model)));
  if (larger(original)) than.push_back(fmt::format("the model it was made of ({})", bytes_text(original)));
  if (than.empty()) return "";
  if (!larger(model))
    return fmt::format("{} ({}) is larger than {}, as {} ({}) is. A model of fewer bits a weight would be smaller",
                       o.out, bytes_text(made), than.front(), o.model, bytes_text(model));
  return fmt::format("{} ({}) is larger than {}. {}", o.out, bytes_text(made), fmt::join(than, " and than "),
                     why_larger(source, o.target));
}

// Users may also name the program that will read the export.
std::string instead_of(const std::string& target) {
  static const std::map<std::string, std::string> kReaders = {{"vllm", "--to compressed-tensors --profile vllm"},
                                                              {"sglang", "--to compressed-tensors"},
                                                              {"transformers", "--to compressed-tensors"},
                                                              {"llama.cpp", "--to gguf"},
                                                              {"llamacpp", "--to gguf"},
                                                              {"ollama", "--to gguf"},
                                                              {"gptqmodel", "--to gptq"},
                                                              {"autogptq", "--to gptq"}};
  const auto found = kReaders.find(lower_case(target));
  if (found != kReaders.end()) return fmt::format("; {} reads {}", target, found->second);
  const std::string near = nearest_word(lower_case(target), {"compressed-tensors", "gptq", "gguf"});
  return near.empty() ? "" : fmt::format("; did you mean {}?", near);
}

// Returns the notes for reading: several weights with the same words share one line, at the place of the first.
std::vector<std::string> gathered(const std::vector<std::string>& notes) {
  std::map<std::string, std::vector<std::string>> who;  // The key is the text from the format on.
  const auto said = [](const std::string& note) { return note.substr(std::min(note.find(" ("), note.size())); };
  for (const std::string& note : notes) who[said(note)].push_back(note.substr(0, note.find(" (")));
  std::vector<std::string> lines;
  for (const std::string& note : notes) {
    std::vector<std::string>& weights = who[said(note)];
    if (weights.empty()) continue;
    const std::string what = weights.size() < 3 || said(note).empty()
                                 ? fmt::format("{}", fmt::join(weights, ", "))
                                 : fmt::format("{} weights, {} to {}", weights.size(), weights.front(), weights.back());
    lines.push_back(what + said(note));
    weights.clear();
  }
  return lines;
}

// An export holds the weights of the checkpoint, so its card says the same, except for its size and how to run it.
void add_export_card(const Export& o, const Checkpoint& source, const std::vector<std::string>& notes) {
  CardFacts facts = facts_of_run(source, source.texts());
  facts.name = folder_name(o.out);
  facts.bytes = bytes_of(o.out, ".safetensors");
  facts.target = o.target;
  facts.notes = gathered(notes);
  write_card(o.out, facts);
}

void run_export(const Export& o) {
  check(o.target == "compressed-tensors" || o.target == "gptq" || o.target == "gguf",
        "--to {}: expected compressed-tensors, gptq or gguf{}", o.target, instead_of(o.target));
  check(o.profile.empty() || o.profile == "vllm", "--profile {}: expected vllm", o.profile);
  check(o.profile.empty() || o.target != "gguf", "--profile {} does not go with --to gguf", o.profile);
  check(!o.exact || o.target == "gguf", "--exact goes with --to gguf only; {} needs none", o.target);
  check_output_name(o.out);
  check_can_write({o.json});
  set_words_on_interrupt(fmt::format("Nothing is kept: {} appears when it is complete.", o.out));
  const Checkpoint source = Checkpoint::open(o.model);
  std::vector<std::string> notes;
  {
    Stages stages("export", {{"writing", 1, 0}});
    stages.next();
    notes = write_export(o, source);
  }
  if (o.target != "gguf")
    add_export_card(o, source, notes);
  else if (source.texts().exists(std::string(kOwnTextFile)))
    notes.push_back(fmt::format(
        "{0} stays in {1}: the certificate speaks of these answers of the model itself, and `certify {2} --text "
        "{1}/{0}` with its other texts beside it measures on them",
        kOwnTextFile, o.model, o.out));
  const int64_t bytes = bytes_of(o.out);
  const std::string warning = size_warning(o, source);
  nlohmann::json warnings = nlohmann::json::array();
  if (!warning.empty()) warnings.push_back(warning);
  write_json(o.json,
             {{"output", o.out}, {"target", o.target}, {"bytes", bytes}, {"notes", notes}, {"warnings", warnings}});
  if (!warning.empty()) fmt::print(stderr, "warning: {}\n", visible(warning));
  if (quiet(o.json)) return;
  for (const std::string& line : gathered(notes)) fmt::print("{}\n", line);
  fmt::print("{}: {}\n", o.out, bytes_text(bytes));
}

}  // namespace

void add_export(CLI::App& app) {
  auto o = std::make_shared<Export>();
  CLI::App* verb = app.add_subcommand("export", "Write a quantised model for other programs");
  verb->footer(
      "Examples:\n  fidelio export quill-int4 --to compressed-tensors --profile vllm -o quill-ct\n  fidelio export "
      "quill-int4 --to gguf -o quill.gguf");
  verb->add_option("MODEL", o->model, "Model folder made by fidelio, or any that it opens")
      ->required()
      ->check(model_folder());
  verb->add_option("--to", o->target, "compressed-tensors, gptq or gguf")->required();
  verb->add_option("--profile", o->profile, "vllm: refuse what vLLM's kernels do not load");
  verb->add_flag("--exact", o->exact, "gguf: zero points as Q8_0, which rounds nothing, at 8.5 bits a weight");
  verb->add_option("-o,--output", o->out, "Folder (gguf: file) to write; it appears complete or not at all")
      ->required();
  add_json(*verb, o->json);
  verb->callback([o] { run_export(*o); });
}

}  // namespace fidelio::app
