#include "io/model_source.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/gguf/source.h"
#include "io/hf_config.h"
#include "io/quantised/source.h"
#include "io/safetensors.h"
#include "io/unserved/unserved.h"

namespace fidelio {
namespace {

namespace fs = std::filesystem;

// Returns the GGUF file that a path stands for, or "" if it is a folder of safetensors.
std::string gguf_file(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return fs::path(path).extension() == ".gguf" ? path : "";
  if (fs::exists(path + "/config.json", ignored)) return "";
  std::vector<std::string> found;
  for (const auto& item : fs::directory_iterator(path, ignored))
    if (item.path().extension() == ".gguf") found.push_back(item.path().string());
  std::sort(found.begin(), found.end());
  check(found.size() <= 1, "{}: holds {} GGUF files; name the one that is meant, such as {}", path, found.size(),
        found.empty() ? "" : found.front());
  return found.empty() ? "" : found.front();
}

// A path that exists and cannot be opened is reported by the code that opens it.
bool is_missing(const std::string& path) {
  std::error_code ignored;
  return fs::status(path, ignored).type() == fs::file_type::not_found;
}

void check_is_there(const std::string& path) {
  check(!is_missing(path), "there is no {}: expected a model's folder, with config.json, or a .gguf file", path);
}

void check_is_model_folder(const std::string& path) {
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  check(folder || !fs::exists(path, ignored),
        "{} is a file: expected a model's folder (such as {}, where it holds config.json) or a .gguf file", path,
        fs::path(path).has_parent_path() ? fs::path(path).parent_path().string() : ".");
  if (!folder || !is_missing(path + "/config.json")) return;
  const std::string about = about_folder(path);
  throw Error("{} is no model's folder: it holds neither config.json nor a .gguf file{}", path,
              about.empty() ? "" : "; " + about);
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0;
}

// Some people tune the head of a model whose config.json still says that it is the embedding. The file is right then,
// as in transformers: two different tensors are two matrices.
void untie_other_head(ModelSource& source) {
  const TensorFiles& files = *source.tensors;
  const std::string embedding = stored_name(files, weight_name({-1, Role::embedding})),
                    head = stored_name(files, weight_name({-1, Role::head}));
  if (!files.contains(embedding) || !files.contains(head) || !load_config(source.texts).tie_embeddings) return;
  const OwnedTensor a = files.get(embedding), b = files.get(head);
  const bool same = same_bytes(a.view, b.view);
  files.drop(a.view);
  files.drop(b.view);
  if (same) return;
  nlohmann::json config = text_config(source.texts);
  config["tie_word_embeddings"] = false;
  source.texts.put("config.json", config.dump(2));
  source.notes.push_back(fmt::format(
      "{} is another matrix than the embedding, so it is the head, whatever \"tie_word_embeddings\" says", head));
}

}  // namespace

std::string stored_name(const TensorFiles& files, const std::string& name) {
  constexpr std::string_view kModel = "model.";
  if (files.contains(name)) return name;
  if (name.starts_with("mtp.") && files.contains("model.mtp.fc.weight")) return "model." + name;
  const std::string inside = name.starts_with(kModel) ? name.substr(kModel.size()) : "";
  // Some fine-tunes of gpt-oss have a module more in their routers.
  constexpr std::string_view kRouter = ".mlp.router.";
  if (const size_t at = name.find(kRouter); at != std::string::npos)
    if (std::string linear = std::string(name).insert(at + kRouter.size(), "linear."); files.contains(linear))
      return linear;
  if (files.contains("language_model.model.embed_tokens.weight")) return "language_model." + name;
  if (!inside.empty() && files.contains("model.language_model.embed_tokens.weight"))
    return "model.language_model." + inside;
  return name;
}

ModelSource open_model_source(const std::string& path) {
  check_is_there(path);
  if (const std::string file = gguf_file(path); !file.empty()) return gguf::open_source(file);
  check_is_model_folder(path);
  ModelSource source = quantised::open_source(path);
  untie_other_head(source);
  return source;
}

TextFiles open_text_files(const std::string& path) {
  check_is_there(path);
  const std::string file = gguf_file(path);
  return file.empty() ? TextFiles(path) : gguf::open_texts(file);
}

}  // namespace fidelio
