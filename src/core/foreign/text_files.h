// This file gives access to the small text files of a folder (config.json, tokenizer.json, ...), wherever they come
// from: a folder on disk, or texts made in memory from a file that says the same in another form (GGUF).
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
  // These texts exist in memory alone. `name` is what messages call the place.
  TextFiles(std::string name, std::map<std::string, std::string> texts)
      : name_(std::move(name)), on_disk_(false), texts_(std::move(texts)) {}

  const std::string& name() const { return name_; }
  std::string path(const std::string& file) const { return name_ + "/" + file; }  // This is for messages.
  // Returns the text, or nothing where there is no such file. Throws Error for a file that cannot be read.
  std::optional<std::string> read(const std::string& file) const;
  // Returns the names, in order, of the files within `folder` that end in `ending`, for example "folder/a.jinja". The
  // list is empty where the folder does not exist.
  std::vector<std::string> list(const std::string& folder, std::string_view ending) const;
  bool exists(const std::string& file) const;
  std::string require(const std::string& file) const;  // It throws Error where there is no such file.
  // Adds a text, in place of a file of that name.
  void put(const std::string& file, std::string text) { texts_[file] = std::move(text); }

 private:
  std::string name_;
  bool on_disk_ = true;
  std::map<std::string, std::string> texts_;  // These texts are looked up before the files on disk.
};

}  // namespace fidelio
