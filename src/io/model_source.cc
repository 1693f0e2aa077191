#include "io/model_source.h"

#include <algorithm>
#include <filesystem>

#include "io/gguf/source.h"
#include "io/quantised/source.h"
#include "io/safetensors.h"

namespace fidelio {
namespace {

namespace fs = std::filesystem;

// The GGUF file that a path stands for; "" if it is a folder of safetensors.
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

}  // namespace

ModelSource open_model_source(const std::string& path) {
  if (const std::string file = gguf_file(path); !file.empty()) return gguf::open_source(file);
  if (std::error_code ignored; fs::exists(path, ignored) && !fs::is_directory(path, ignored)) {
    const std::string folder = fs::path(path).parent_path().string();
    throw Error("{} is a file: expected a model's folder (such as {}, where it holds config.json) or a .gguf file",
                path, folder.empty() ? "." : folder);
  }
  return quantised::open_source(path);
}

TextFiles open_text_files(const std::string& path) {
  const std::string file = gguf_file(path);
  return file.empty() ? TextFiles(path) : gguf::open_texts(file);
}

}  // namespace fidelio
