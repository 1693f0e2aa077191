// This file keeps the results of a run in a JSONL file that grows, so that an interrupted run can go on. The first
// line holds the settings; each further line holds one result and is written as soon as the result is known. Each
// line carries a SHA-256 of its contents. When the file is opened again, an incomplete last line and damaged lines
// are ignored, and those questions are asked anew.
#pragma once
#include <cstdio>
#include <memory>
#include <string>
#include <unordered_map>

#include "eval/tasks/tasks.h"

namespace fidelio {

class TaskCache {
 public:
  // Opens or creates the file. `settings` is everything that a result depends on. Throws Error if the file exists
  // with other settings, is not a cache, or cannot be written.
  TaskCache(const std::string& path, const nlohmann::json& settings);
  // Returns true if the file begins as a cache does, with a line of settings that is undamaged.
  static bool is_one(const std::string& path);

  // Returns the result stored under this key, or nullptr.
  const ItemResult* find(const std::string& key) const;
  // Appends the result to the file.
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
