// The results of a run as a JSONL file that grows: a first line with the settings, then one result a line, written out
// as it comes, each with a SHA-256 of what it holds. What a crash leaves of a last line, and lines that were damaged, are
// left out when the file is opened again: those questions are asked anew.
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
  // Returns true if a file begins as these do, with settings that are what was written.
  static bool is_one(const std::string& path);

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
