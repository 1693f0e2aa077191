#include "app/texts.h"

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

}  // namespace fidelio::app
