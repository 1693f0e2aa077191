// The results of a run as a JSONL file that grows: a first line with the settings, then one result a line, written out
// as it comes. What a crash leaves of a last line is cut off when the file is opened again.
#pragma once
#include <cstdio>
#include <memory>
#include <string>
#include <unordered_map>

#include "eval/tasks/tasks.h"

namespace fidelio {

class TaskCache {
 public:
  // `settings` is everything a result depends on. Throws Error if the file exists with other settings, is no such file,
  // or cannot be written.
  TaskCache(const std::string& path, const nlohmann::json& settings);

  const ItemResult* find(const std::string& key) const;
  void add(const std::string& key, const ItemResult& result);

 private:
  void append(const std::string& text);

  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::unordered_map<std::string, ItemResult> known_;
};

}  // namespace fidelio
