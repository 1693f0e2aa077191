// The small text files of a folder (config.json, tokenizer.json, ...), wherever they come from: a folder on disk, or
// texts made in memory from a file that says the same in another way.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fidelio {

class TextFiles {
 public:
  TextFiles(std::string folder) : name_(std::move(folder)) {}  // NOLINT: a folder's path is its text files
  TextFiles(const char* folder) : name_(folder) {}             // NOLINT
  // In memory alone; `name` is what messages call the place.
  TextFiles(std::string name, std::map<std::string, std::string> texts)
      : name_(std::move(name)), on_disk_(false), texts_(std::move(texts)) {}

  const std::string& name() const { return name_; }
  std::string path(const std::string& file) const { return name_ + "/" + file; }  // for messages
  // The text, or nothing where there is no such file. Throws Error for one that cannot be read.
  std::optional<std::string> read(const std::string& file) const;
  // Names, in order, of the files in a folder within it that end in `ending`: "folder/a.jinja". None where it is not there.
  std::vector<std::string> list(const std::string& folder, std::string_view ending) const;
  bool exists(const std::string& file) const;
  std::string require(const std::string& file) const;  // throws Error where there is none
  void put(const std::string& file, std::string text) { texts_[file] = std::move(text); }  // in place of what is there

 private:
  std::string name_;
  bool on_disk_ = true;
  std::map<std::string, std::string> texts_;  // these come first
};

}  // namespace fidelio
