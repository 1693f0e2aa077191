#include "eval/tasks/task_cache.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/foreign/json.h"
#include "core/hash.h"
#include "core/standard_error.h"

namespace fidelio {

using nlohmann::json;

namespace {

constexpr std::string_view kBeginning = R"({"settings":)";

std::string sealed(json line) {
  line["sha256"] = sha256_hex(line.dump());
  return line.dump() + "\n";
}

// Returns the line as it was written, without its seal, or null if the line was changed since.
json unsealed(std::string_view text, const std::string& path) {
  try {
    json line = parse_json(text, path);
    const std::string seal = line.at("sha256");
    line.erase("sha256");
    return sha256_hex(line.dump()) == seal ? line : json();
  } catch (const std::exception&) {
    return {};
  }
}

// Returns the complete lines. A last line that a crash left without its end is dropped.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1))
    lines.push_back(text.substr(0, end));
  return lines;
}

}  // namespace

bool TaskCache::is_one(const std::string& path) {
  const std::string text = read_text_file(path);
  const auto lines = lines_of(text);
  return text.empty() || (!lines.empty() && unsealed(lines.front(), path).contains("settings"));
}

TaskCache::TaskCache(const std::string& path, const json& settings) : path_(path) {
  std::string text;
  if (std::filesystem::exists(path)) text = read_text_file(path);
  // This is checked before any line is dropped: a file that does not begin like a cache belongs to somebody else.
  const size_t known = std::min(text.size(), kBeginning.size());
  check(std::string_view(text).substr(0, known) == kBeginning.substr(0, known),
        "{} is not a file of task results: name another", path);
  const std::vector<std::string_view> lines = lines_of(text);
  std::string whole;
  for (size_t i = 0; i < lines.size(); ++i) {
    const json line = unsealed(lines[i], path);
    if (i == 0) {
      check(line.contains("settings"),
            "{} is damaged, or of an earlier fidelio: its first line; name another or remove it", path);
      check(line["settings"] == settings,
            "{} holds results of other settings ({} there, {} here): name another file or remove it", path,
            line["settings"].dump(), settings.dump());
    } else if (line.contains("key")) {
      known_.emplace(line["key"].get<std::string>(), parse_item_result(line));
    } else {
      continue;
    }
    whole += std::string(lines[i]) + "\n";
  }
  if (const auto kept = static_cast<size_t>(std::count(whole.begin(), whole.end(), '\n')); kept < lines.size())
    print_error(fmt::format("{} of {} results in {} are damaged: these questions are asked again\n",
                            lines.size() - kept, lines.size() - 1, path));
  if (whole.empty()) whole = sealed(json{{"settings", settings}});
  if (whole != text) write_file_atomically(path, whole);
  file_.reset(std::fopen(path.c_str(), "a"));
  check(file_ != nullptr, "{} cannot be written: {}", path, std::strerror(errno));
}

const ItemResult* TaskCache::find(const std::string& key) const {
  const auto found = known_.find(key);
  return found == known_.end() ? nullptr : &found->second;
}

void TaskCache::add(const std::string& key, const ItemResult& result) {
  json line = to_json(result);
  line["key"] = key;
  append(sealed(std::move(line)));
}

void TaskCache::append(const std::string& text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() && std::fflush(file_.get()) == 0;
  check(written, "{} cannot be written: {}", path_, std::strerror(errno));
}

}  // namespace fidelio
