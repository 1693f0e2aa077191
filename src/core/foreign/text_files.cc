#include "core/foreign/text_files.h"

#include <filesystem>
#include <set>

#include "core/file.h"

namespace fidelio {

std::optional<std::string> TextFiles::read(const std::string& file) const {
  if (const auto found = texts_.find(file); found != texts_.end()) return found->second;
  if (!exists(file)) return std::nullopt;
  return read_text_file(path(file));
}

bool TextFiles::exists(const std::string& file) const {
  std::error_code ignored;
  return texts_.contains(file) || (on_disk_ && std::filesystem::exists(path(file), ignored));
}

std::vector<std::string> TextFiles::list(const std::string& folder, std::string_view ending) const {
  std::set<std::string> names;
  for (const auto& [name, text] : texts_)
    if (name.starts_with(folder + "/") && name.ends_with(ending)) names.insert(name);
  std::error_code ignored;
  if (on_disk_ && std::filesystem::is_directory(path(folder), ignored))
    for (const auto& entry : std::filesystem::directory_iterator(path(folder), ignored))
      if (const std::string name = entry.path().filename(); name.ends_with(ending)) names.insert(folder + "/" + name);
  return {names.begin(), names.end()};
}

std::string TextFiles::require(const std::string& file) const {
  if (auto text = read(file)) return *std::move(text);
  check(on_disk_, "{} has no {}", name_, file);
  return read_text_file(path(file));  // It throws an Error that says why the file cannot be read.
}

}  // namespace fidelio
