#include "io/gguf/file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/foreign/foreign_text.h"
#include "core/hash.h"

namespace fidelio::gguf {
namespace {

static_assert(std::endian::native == std::endian::little, "values are read as they lie in the file");

constexpr int64_t kLongest = std::numeric_limits<int64_t>::max();
constexpr uint64_t kSmallestKey = 8 + 4 + 1, kSmallestTensor = 8 + 4 + 8 + 4 + 8;
constexpr int64_t kMaxAlignment = 1 << 20;

template <typename T>
T read_as(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// Returns the bytes of a value of this type, or 0 for strings, arrays and types that do not exist.
size_t fixed_size(uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBool:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kF32:
      return 4;
    case kU64:
    case kI64:
    case kF64:
      return 8;
    default:
      return 0;
  }
}

const BlockType* read_type(uint32_t number, const std::string& where) {
  const BlockType* type = block_type(number);
  const std::string_view name = name_of_unread_type(number);
  check(type != nullptr,
        "{}: type {}{} is not read here; give a file of Q8_0 or the original model. Those that are: {}", where, number,
        name.empty() ? std::string() : fmt::format(" ({})", name), known_block_types());
  return type;
}

}  // namespace

std::string shown(std::string_view text) {
  constexpr size_t kShown = 80;
  return "\"" + fidelio::foreign(text, Lines::escaped, kShown) + "\"";
}

// This class walks over the header and checks every step against the bytes that are left.
class File::Reader {
 public:
  explicit Reader(const MappedFile& file) : path_(file.path()), rest_(file.bytes()), size_(file.bytes().size()) {}

  std::span<const std::byte> take(uint64_t bytes, const char* what) {
    check(bytes <= rest_.size(), "{}: truncated: {} of {} bytes at byte {}, where {} are left", path_, what, bytes,
          at(), rest_.size());
    const auto taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return taken;
  }
  template <typename T>
  T number(const char* what) {
    return read_as<T>(take(sizeof(T), what).data());
  }
  std::string_view text(const char* what) {
    const auto length = number<uint64_t>(what);
    const auto bytes = take(length, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  size_t at() const { return size_ - rest_.size(); }
  size_t left() const { return rest_.size(); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::span<const std::byte> rest_;
  size_t size_;
};

std::shared_ptr<const File> File::open(const std::string& path) {
  std::shared_ptr<File> file(new File);
  file->mapped_ = MappedFile::open(path);
  Reader reader(*file->mapped_);
  const auto magic = reader.take(4, "the magic number");
  check(std::memcmp(magic.data(), "GGUF", 4) == 0, "{}: does not start with \"GGUF\": no GGUF file", path);
  const auto version = reader.number<uint32_t>("the version");
  check(version == 2 || version == 3, "{}: GGUF version {}, expected 2 or 3 (of little-endian files)", path, version);
  const auto tensors = reader.number<uint64_t>("the number of tensors"),
             keys = reader.number<uint64_t>("the number of keys");
  check(keys <= reader.left() / kSmallestKey && tensors <= reader.left() / kSmallestTensor,
        "{}: says that it has {} keys and {} tensors, for which its {} bytes have no room", path, keys, tensors,
        reader.left());
  file->read_keys(reader, keys);
  file->read_tensors(reader, tensors);
  return file;
}

void File::read_keys(Reader& reader, uint64_t count) {
  for (; count > 0; --count) {
    const std::string_view key = reader.text("a key");
    Value value;
    const std::byte* stored = reader.take(0, "a value").data();
    const size_t stored_at = reader.at();
    value.type = reader.number<uint32_t>("the type of a value");
    const std::string named = shown(key);
    if (value.type == kArray) {
      value.element = reader.number<uint32_t>("the type of an array's elements");
      value.count = reader.number<uint64_t>("the length of an array");
      const size_t size = fixed_size(value.element);
      check(size > 0 || value.element == kString, "{}: key {}: an array of values of type {}, which is not read",
            reader.path(), named, value.element);
      if (size > 0) {
        check(value.count <= reader.left() / size, "{}: truncated: key {} has {} elements of {} bytes, {} are left",
              reader.path(), named, value.count, size, reader.left());
        value.bytes = reader.take(value.count * size, "an array");
      } else {
        check(value.count <= reader.left() / 8, "{}: truncated: key {} has {} strings, {} bytes are left",
              reader.path(), named, value.count, reader.left());
        const std::byte* begin = reader.take(0, "an array").data();
        const size_t from = reader.at();
        for (uint64_t i = 0; i < value.count; ++i) reader.text("a string of an array");
        value.bytes = {begin, reader.at() - from};
      }
    } else if (value.type == kString) {
      value.bytes = std::as_bytes(std::span(reader.text("a string")));
    } else {
      check(fixed_size(value.type) > 0, "{}: key {}: a value of type {}, expected 0 to 12", reader.path(), named,
            value.type);
      value.bytes = reader.take(fixed_size(value.type), "a value");
    }
    value.stored = {stored, reader.at() - stored_at};
    check(keys_.emplace(std::string(key), value).second, "{}: has the key {} twice", reader.path(), named);
  }
}

void File::read_tensors(Reader& reader, uint64_t count) {
  check(!has("split.count") || integer("split.count") == 1,
        "{}: one of several files; join them first (llama-gguf-split --merge)", path());
  struct Place {
    uint64_t begin, end;
    std::string name;
  };
  std::vector<Place> places;
  for (; count > 0; --count) {
    const std::string name(reader.text("a tensor's name"));
    const std::string where = fmt::format("{}: tensor {}", path(), shown(name));
    StoredMatrix m;
    const auto dimensions = reader.number<uint32_t>("a tensor's dimensions");
    check(dimensions >= 1 && dimensions <= 4, "{}: {} dimensions, expected 1 to 4", where, dimensions);
    m.dimensions = static_cast<int>(dimensions);
    for (uint32_t i = 0; i < dimensions; ++i) {
      const auto size = reader.number<uint64_t>("a tensor's size");
      check(size >= 1 && size <= static_cast<uint64_t>(kLongest), "{}: a dimension of {}, expected 1 to 2^63 - 1",
            where, size);
      if (i == 0)
        m.columns = static_cast<int64_t>(size);
      else
        check(!__builtin_mul_overflow(m.rows, static_cast<int64_t>(size), &m.rows), "{}: has more than 2^63 rows",
              where);
      if (i == 1) m.rows_each = m.rows;
    }
    const auto type = reader.number<uint32_t>("a tensor's type");
    m.type = read_type(type, where);
    check(m.columns % m.type->elements == 0, "{}: {} columns are no whole {} blocks of {}", where, m.columns,
          m.type->name, m.type->elements);
    int64_t bytes = 0;
    check(!__builtin_mul_overflow(m.columns / m.type->elements, m.type->bytes, &bytes) &&
              !__builtin_mul_overflow(bytes, m.rows, &bytes),
          "{}: needs more than 2^63 bytes", where);
    const auto offset = reader.number<uint64_t>("a tensor's offset");
    check(offset <= static_cast<uint64_t>(kLongest - bytes), "{}: an offset of {}", where, offset);
    places.push_back({offset, offset + static_cast<uint64_t>(bytes), name});
    check(tensors_.emplace(name, m).second, "{} is there twice", where);
  }

  const int64_t alignment = integer("general.alignment").value_or(32);
  check(alignment >= 1 && alignment <= kMaxAlignment, "{}: key \"general.alignment\": expected 1 to {}, got {}", path(),
        kMaxAlignment, alignment);
  const auto step = static_cast<uint64_t>(alignment);
  const uint64_t data = (reader.at() + step - 1) / step * step, size = mapped_->bytes().size();
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < places.size(); ++i) {
    const Place& p = places[i];
    check(data <= size && p.end <= size - data,
          "{}: tensor {} ends at byte {} of the data, of which there are {}: truncated?", path(), shown(p.name), p.end,
          size < data ? 0 : size - data);
    if (i > 0)
      check(places[i - 1].end <= p.begin, "{}: tensors {} and {} overlap", path(), shown(places[i - 1].name),
            shown(p.name));
    tensors_.find(p.name)->second.data = mapped_->bytes().data() + data + p.begin;
  }
}

void File::refuse(std::string_view key, std::string_view expected) const {
  const Value& value = *find(key);
  std::string got = value.type == kArray ? fmt::format("an array of {}", value.count)
                    : value.type == kString
                        ? shown({reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size()})
                        : fmt::format("a value of type {}", value.type);
  if (const auto number = integer_of(value.type, value.bytes.data())) got = fmt::format("{}", *number);
  throw Error("{}: key {}: expected {}, got {}", path(), shown(key), expected, got);
}

std::optional<int64_t> File::integer_of(uint32_t type, const std::byte* data) {
  switch (type) {
    case kU8:
      return read_as<uint8_t>(data);
    case kI8:
      return read_as<int8_t>(data);
    case kU16:
      return read_as<uint16_t>(data);
    case kI16:
      return read_as<int16_t>(data);
    case kU32:
      return read_as<uint32_t>(data);
    case kI32:
      return read_as<int32_t>(data);
    case kI64:
      return read_as<int64_t>(data);
    case kU64: {
      const auto value = read_as<uint64_t>(data);
      return value <= static_cast<uint64_t>(kLongest) ? std::optional(static_cast<int64_t>(value)) : std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> File::number_of(uint32_t type, const std::byte* data) {
  if (const auto integer = integer_of(type, data)) return static_cast<double>(*integer);
  const double value = type == kF32   ? static_cast<double>(read_as<float>(data))
                       : type == kF64 ? read_as<double>(data)
                                      : std::nan("");
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::optional<int64_t> File::integer(std::string_view key) const {
  const Value* value = find(key);
  if (!value) return std::nullopt;
  const auto number =
      value->type == kArray || value->type == kString ? std::nullopt : integer_of(value->type, value->bytes.data());
  if (!number) refuse(key, "an integer below 2^63");
  return number;
}

std::optional<double> File::number(std::string_view key) const {
  const Value* value = find(key);
  if (!value) return std::nullopt;
  const auto number =
      value->type == kArray || value->type == kString ? std::nullopt : number_of(value->type, value->bytes.data());
  if (!number) refuse(key, "a finite number");
  return number;
}

std::optional<bool> File::boolean(std::string_view key) const {
  const Value* value = find(key);
  if (!value) return std::nullopt;
  if (value->type != kBool) refuse(key, "true or false");
  return read_as<uint8_t>(value->bytes.data()) != 0;
}

std::optional<std::string_view> File::text(std::string_view key) const {
  const Value* value = find(key);
  if (!value) return std::nullopt;
  if (value->type != kString) refuse(key, "a string");
  return std::string_view(reinterpret_cast<const char*>(value->bytes.data()), value->bytes.size());
}

const File::Value* File::find_array(std::string_view key, std::string_view of) const {
  const Value* value = find(key);
  if (value && value->type != kArray) refuse(key, fmt::format("an array of {}", of));
  return value;
}

std::optional<std::vector<std::string_view>> File::texts(std::string_view key) const {
  const Value* value = find_array(key, "strings");
  if (!value) return std::nullopt;
  if (value->element != kString) refuse(key, "an array of strings");
  std::vector<std::string_view> texts;
  texts.reserve(value->count);
  const std::byte* at = value->bytes.data();  // The lengths were checked when the key was read.
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto length = read_as<uint64_t>(at);
    texts.emplace_back(reinterpret_cast<const char*>(at) + 8, length);
    at += 8 + length;
  }
  return texts;
}

std::optional<std::vector<int64_t>> File::integers(std::string_view key) const {
  const Value* value = find_array(key, "integers");
  if (!value) return std::nullopt;
  std::vector<int64_t> numbers;
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto number = value->element == kString
                            ? std::nullopt
                            : integer_of(value->element, value->bytes.data() + i * fixed_size(value->element));
    if (!number) refuse(key, "an array of integers");
    numbers.push_back(*number);
  }
  return numbers;
}

bool File::is_array(std::string_view key) const {
  const Value* value = find(key);
  return value && value->type == kArray;
}

std::optional<std::vector<bool>> File::booleans(std::string_view key) const {
  const Value* value = find_array(key, "true and false");
  if (!value) return std::nullopt;
  if (value->element != kBool) refuse(key, "an array of true and false");
  std::vector<bool> flags;
  for (uint64_t i = 0; i < value->count; ++i) flags.push_back(value->bytes[i] != std::byte{0});
  return flags;
}

std::optional<std::vector<double>> File::numbers(std::string_view key) const {
  const Value* value = find_array(key, "finite numbers");
  if (!value) return std::nullopt;
  std::vector<double> numbers;
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto number = value->element == kString
                            ? std::nullopt
                            : number_of(value->element, value->bytes.data() + i * fixed_size(value->element));
    if (!number) refuse(key, "an array of finite numbers");
    numbers.push_back(*number);
  }
  return numbers;
}

std::map<std::string, std::string> File::key_hashes() const {
  std::map<std::string, std::string> hashes;
  for (const auto& [key, value] : keys_) {
    if (key.starts_with("fidelio.")) continue;
    Sha256 hash;
    hash.update(value.stored);
    hashes[key] = hash.hex();
  }
  return hashes;
}

std::vector<std::string> File::keys_under(std::string_view prefix) const {
  std::vector<std::string> keys;
  for (auto it = keys_.lower_bound(prefix); it != keys_.end() && it->first.starts_with(prefix); ++it)
    keys.push_back(it->first);
  return keys;
}

}  // namespace fidelio::gguf
