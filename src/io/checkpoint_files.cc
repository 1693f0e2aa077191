#include "io/checkpoint_files.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "core/file.h"
#include "io/checkpoint.h"
#include "text/chat_template.h"

namespace fidelio {
namespace {

// A reader of the folder needs these files beside the weights, and they are copied from checkpoint to checkpoint. The
// files of chat templates are copied, too.
constexpr std::array<const char*, 9> kCompanions = {"tokenizer.json",
                                                    "tekken.json",
                                                    "tokenizer_config.json",
                                                    "special_tokens_map.json",
                                                    "generation_config.json",
                                                    "added_tokens.json",
                                                    "tokenizer.model",
                                                    "vocab.json",
                                                    "merges.txt"};

}  // namespace

std::vector<std::string> companion_names(const TextFiles& files) {
  std::vector<std::string> names = chat_template_files(files);
  names.insert(names.end(), kCompanions.begin(), kCompanions.end());
  return names;
}

namespace {

// Returns the folder that a model's own links may point into. It is the model's folder or, in a Hugging Face cache,
// where snapshots are links to blobs, the folder of all its revisions.
std::filesystem::path home_of(const std::filesystem::path& folder) {
  const std::filesystem::path model = folder.parent_path().parent_path();
  const bool cached =
      folder.parent_path().filename() == "snapshots" && model.filename().string().starts_with("models--");
  return cached ? model : folder;
}

// A downloaded folder may hold links to private files of the person who downloads it, and copies of these would be
// published.
void check_own_file(const std::string& folder, const std::string& path) {
  const std::filesystem::path home = home_of(std::filesystem::canonical(folder)),
                              real = std::filesystem::canonical(path);
  const std::filesystem::path inside = real.lexically_relative(home);
  check(!inside.empty() && *inside.begin() != "..",
        "{} is a link to a file outside of {}: put the file itself there if it belongs to the model", path, folder);
}

}  // namespace

void copy_companion(const TextFiles& from, const std::string& name, const std::string& to) {
  const std::string path = from.path(name);
  if (std::filesystem::exists(path))
    check_own_file(from.name(), path);  // Texts made from a GGUF file are no files of their own.
  const auto text = from.read(name);
  if (!text) return;
  // Only folders inside `to` are created. If a signal has removed `to` itself meanwhile, it must not be created
  // again.
  if (const std::filesystem::path inner = std::filesystem::path(name).parent_path(); !inner.empty())
    std::filesystem::create_directory(to / inner);
  write_file_atomically(to + "/" + name, *text);
}

void copy_companions(const TextFiles& from, const std::string& to) {
  for (const std::string& name : companion_names(from)) copy_companion(from, name, to);
}

namespace {

// Returns true for the names that chat_template_files() gives, and for their folder.
bool is_template_file(const std::string& name) {
  const std::string folder = "additional_chat_templates";
  return name == "chat_template.jinja" || name == "chat_template.json" || name == folder ||
         (name.starts_with(folder + "/") && name.ends_with(".jinja") && name.find('/', folder.size() + 1) == name.npos);
}

// Returns true for the names that write_sharded_safetensors() gives to its files.
bool is_weights_file(const std::string& name) {
  if (name == "model.safetensors" || name == "model.safetensors.index.json") return true;
  const std::string form = "model-00001-of-00002.safetensors";
  if (name.size() != form.size()) return false;
  for (size_t i = 0; i < form.size(); ++i)
    if (form[i] >= '0' && form[i] <= '9' ? name[i] < '0' || name[i] > '9' : name[i] != form[i]) return false;
  return true;
}

}  // namespace

bool is_checkpoint_file(const std::string& name) {
  const auto is = [&](const char* companion) { return name == companion; };
  if (name == "config.json" || std::any_of(kCompanions.begin(), kCompanions.end(), is)) return true;
  return is_template_file(name) || is_weights_file(name);
}

}  // namespace fidelio
