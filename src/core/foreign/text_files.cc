#include "core/foreign/text_files.h"

#include <filesystem>

#include "core/file.h"

namespace fidelio {

std::optional<std::string> TextFiles::read(const std::string& file) const {
  if (const auto found = texts_.find(file); found != texts_.end()) return found->second;
  std::error_code ignored;
  if (!on_disk_ || !std::filesystem::exists(path(file), ignored)) return std::nullopt;
  return read_text_file(path(file));
}

std::string TextFiles::require(const std::string& file) const {
  if (auto text = read(file)) return *std::move(text);
  check(on_disk_, "{} has no {}", name_, file);
  return read_text_file(path(file));  // which says why not
}

}  // namespace fidelio
