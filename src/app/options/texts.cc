#include "app/options/texts.h"

#include <filesystem>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"

namespace fidelio::app {

std::vector<EvalText> read_texts(const std::vector<std::string>& files, const Tokenizer& tokenizer) {
  std::vector<EvalText> texts;
  for (const std::string& path : files) {
    const std::string text = read_text_file(path);
    texts.push_back({path, sha256_hex(text), tokenizer.encode(text, false)});
  }
  return texts;
}

std::string bundled_text(const std::string& name) {
  namespace fs = std::filesystem;
  const fs::path above = fs::read_symlink("/proc/self/exe").parent_path().parent_path();
  const fs::path places[] = {above / "models" / "data" / name, above / "share" / "fidelio" / "data" / name};
  for (const fs::path& place : places)
    if (fs::exists(place)) return place.lexically_normal().string();
  throw Error("{} comes with fidelio but is in neither {} nor {}; give a text of your own", name,
              places[0].lexically_normal().string(), places[1].lexically_normal().string());
}

}  // namespace fidelio::app
