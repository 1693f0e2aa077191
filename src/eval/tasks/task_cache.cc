#include "eval/tasks/task_cache.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/foreign/json.h"

namespace fidelio {

using nlohmann::json;

TaskCache::TaskCache(const std::string& path, const json& settings) : path_(path) {
  std::string text;
  if (std::filesystem::exists(path)) {
    text = read_text_file(path);
    // Before anything is cut off: what does not begin as these files do is somebody else's.
    const std::string_view beginning = R"({"settings":)";
    const size_t known = std::min(text.size(), beginning.size());
    check(std::string_view(text).substr(0, known) == beginning.substr(0, known),
          "{} is not a file of task results: name another", path);
    text.resize(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
    std::filesystem::resize_file(path, text.size());
  }
  bool first = true;
  for (size_t begin = 0; begin < text.size(); first = false) {
    const size_t end = text.find('\n', begin);
    const json line = parse_json(std::string_view(text).substr(begin, end - begin), path);
    begin = end + 1;
    check(line.is_object() && (first ? line.contains("settings") : line.contains("key")),
          "{} is not a file of task results: name another", path);
    if (first)
      check(line["settings"] == settings,
            "{} holds results of other settings ({} there, {} here): name another file or remove it", path,
            line["settings"].dump(), settings.dump());
    else
      known_.emplace(line["key"].get<std::string>(), parse_item_result(line));
  }
  file_.reset(std::fopen(path.c_str(), "a"));
  check(file_ != nullptr, "{} cannot be written: {}", path, std::strerror(errno));
  if (first) {
    append(json{{"settings", settings}}.dump() + "\n");
  }
}

const ItemResult* TaskCache::find(const std::string& key) const {
  const auto found = known_.find(key);
  return found == known_.end() ? nullptr : &found->second;
}

void TaskCache::add(const std::string& key, const ItemResult& result) {
  json line = to_json(result);
  line["key"] = key;
  append(line.dump() + "\n");
}

void TaskCache::append(const std::string& text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() && std::fflush(file_.get()) == 0;
  check(written, "{} cannot be written: {}", path_, std::strerror(errno));
}

}  // namespace fidelio
