// This file reads the keys of an architecture in a GGUF file. Only the files that make a config.json of them include
// it.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "io/gguf/blocks.h"
#include "io/gguf/file.h"

namespace fidelio::gguf {

// This class reads the keys of one architecture and remembers which were asked for.
class Keys {
 public:
  Keys(const File& file, std::string_view architecture) : file_(file), prefix_(std::string(architecture) + ".") {}

  std::optional<int64_t> integer(const std::string& name) {
    asked_.insert(prefix_ + name);
    return file_.integer(prefix_ + name);
  }
  int64_t required(const std::string& name) {
    const auto value = integer(name);
    check(value.has_value(), "{}: the key \"{}{}\" is missing", file_.path(), prefix_, name);
    return *value;
  }
  std::optional<double> number(const std::string& name) {
    asked_.insert(prefix_ + name);
    return file_.number(prefix_ + name);
  }
  std::optional<std::string> text(const std::string& name) {
    asked_.insert(prefix_ + name);
    const auto value = file_.text(prefix_ + name);
    return value ? std::optional(std::string(*value)) : std::nullopt;
  }
  std::optional<bool> boolean(const std::string& name) {
    asked_.insert(prefix_ + name);
    return file_.boolean(prefix_ + name);
  }
  std::optional<std::vector<int64_t>> integers(const std::string& name) {
    asked_.insert(prefix_ + name);
    return file_.integers(prefix_ + name);
  }
  std::optional<std::vector<bool>> booleans(const std::string& name) {
    asked_.insert(prefix_ + name);
    return file_.booleans(prefix_ + name);
  }
  // Returns a number for each layer: those of an array, or one for all.
  std::vector<int64_t> by_layer(const std::string& name, int64_t layers) {
    asked_.insert(prefix_ + name);
    if (!file_.is_array(prefix_ + name)) return std::vector<int64_t>(static_cast<size_t>(layers), required(name));
    std::vector<int64_t> values = *file_.integers(prefix_ + name);
    expect(std::ssize(values) >= layers, name, fmt::format("a number for each of {} layers", layers));
    values.resize(static_cast<size_t>(layers));
    return values;
  }
  void expect(bool right, const std::string& name, std::string_view expected) const {
    check(right, "{}: key \"{}{}\": expected {}; a model with something else is not supported", file_.path(), prefix_,
          name, expected);
  }
  // A key that nobody asked for could change the computation.
  void refuse_unknown() const {
    for (const std::string& key : file_.keys_under(prefix_))
      check(asked_.contains(key), "{}: the key {} is not understood, so the model might be computed wrongly",
            file_.path(), shown(key));
  }
  const File& file() const { return file_; }

 private:
  const File& file_;
  std::string prefix_;
  std::set<std::string> asked_;
};

inline const StoredMatrix& tensor(const File& file, const std::string& name) {
  const auto found = file.tensors().find(name);
  check(found != file.tensors().end(), "{}: no tensor \"{}\"", file.path(), name);
  return found->second;
}
inline bool has_tensor(const File& file, std::string_view name) { return file.tensors().contains(name); }

inline std::vector<double> vector_of(const File& file, const std::string& name) {
  const StoredMatrix& m = tensor(file, name);
  check(m.rows == 1 && m.type->elements == 1, "{}: tensor \"{}\" is no vector of numbers", file.path(), name);
  std::vector<float> values(static_cast<size_t>(m.columns));
  decode_row(*m.type, m.row(0), values);
  return {values.begin(), values.end()};
}

// Returns the config.json of Gemma 4, but for its tokens and its dtype.
nlohmann::json gemma4_config(Keys& keys, int64_t layers);

}  // namespace fidelio::gguf
