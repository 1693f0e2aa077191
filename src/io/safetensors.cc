#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/foreign/foreign_text.h"
#include "core/foreign/json.h"

#include "io/identity/weights_hash.h"
#include "io/unserved/unserved.h"

namespace fidelio {
namespace {

using Json = nlohmann::json;
static_assert(std::endian::native == std::endian::little, "safetensors data is mapped as it lies in the file");

constexpr uint64_t kMaxHeader = 100'000'000;  // This is the limit of the reference implementation.

constexpr int kHeaderNesting = 4;  // The format needs no more.

const Json& member(const Json& object, const char* key, const std::string& where) {
  const auto it = object.find(key);
  check(it != object.end(), "{}: \"{}\" is missing", where, key);
  return *it;
}

int64_t natural(const Json& value, const char* key, const std::string& where) {
  check(value.is_number_unsigned() && value.get<uint64_t>() <= std::numeric_limits<int64_t>::max(),
        "{}: \"{}\" holds {}, expected integers from 0 to 2^63 - 1", where, key, foreign(value.dump()));
  return value.get<int64_t>();
}

struct Entry {
  std::string name;
  DType dtype;
  Shape shape;
  int64_t begin, end;  // They are offsets into the data.
};

// Returns the bytes of a tensor. Throws Error if they, or the product of the dimensions other than zero, exceed int64.
int64_t checked_bytes(DType dtype, const Shape& shape, const std::string& where) {
  int64_t product = size_of(dtype);
  bool empty = false, overflow = false;
  for (int i = 0; i < shape.rank; ++i) {
    check(shape[i] >= 0, "{}: dimension {} of shape {} is negative", where, i, to_string(shape));
    if (shape[i] == 0)
      empty = true;
    else
      overflow = overflow || __builtin_mul_overflow(product, shape[i], &product);
  }
  check(!overflow, "{}: shape {} of {} needs more than 2^63 bytes", where, to_string(shape), name_of(dtype));
  return empty ? 0 : product;
}

Entry parse_entry(const std::string& name, const Json& value, const std::string& file) {
  const std::string where = fmt::format("{}: tensor \"{}\"", file, name);
  check(value.is_object(), "{}: expected an object, got a JSON {}", where, value.type_name());
  Entry entry{name, DType::f32, {}, 0, 0};
  const Json& dtype = member(value, "dtype", where);
  check(dtype.is_string(), "{}: \"dtype\" is a JSON {}, expected a string", where, dtype.type_name());
  try {
    entry.dtype = parse_dtype(dtype.get_ref<const std::string&>());
  } catch (const Error& e) {
    throw Error("{}: {}", where, e.what());
  }
  const Json& shape = member(value, "shape", where);
  check(shape.is_array(), "{}: \"shape\" is a JSON {}, expected an array", where, shape.type_name());
  check(shape.size() <= 4, "{}: {} dimensions, at most 4 are supported", where, shape.size());
  for (const Json& dim : shape) entry.shape.dim[entry.shape.rank++] = natural(dim, "shape", where);
  const Json& offsets = member(value, "data_offsets", where);
  check(offsets.is_array() && offsets.size() == 2, "{}: \"data_offsets\" must be an array of two integers", where);
  entry.begin = natural(offsets[0], "data_offsets", where);
  entry.end = natural(offsets[1], "data_offsets", where);
  const int64_t bytes = checked_bytes(entry.dtype, entry.shape, where);
  check(entry.begin <= entry.end && entry.end - entry.begin == bytes,
        "{}: offsets {} to {} do not match {} bytes of {} {}", where, entry.begin, entry.end, bytes,
        name_of(entry.dtype), to_string(entry.shape));
  return entry;
}

// The offsets must tile [0, data_bytes).
void check_tiling(std::vector<Entry>& entries, int64_t data_bytes, const std::string& file) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t reached = 0;
  const Entry* before = nullptr;
  for (const Entry& entry : entries) {
    check(entry.begin >= reached, "{}: tensor \"{}\" at {} overlaps \"{}\", which ends at {}", file, entry.name,
          entry.begin, before ? before->name : "", reached);
    check(entry.begin == reached, "{}: gap of {} bytes before tensor \"{}\"", file, entry.begin - reached, entry.name);
    check(entry.end <= data_bytes,
          "{}: tensor \"{}\" ends at byte {} of the data, but the file has only {}: truncated?", file, entry.name,
          entry.end, data_bytes);
    reached = entry.end;
    before = &entry;
  }
  check(reached == data_bytes, "{}: {} bytes after the last tensor belong to none", file, data_bytes - reached);
}

struct Header {
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
  const std::byte* data = nullptr;
};

Header parse_header(const MappedFile& mapped) {
  const std::string& file = mapped.path();
  const std::span<const std::byte> bytes = mapped.bytes();
  check(bytes.size() >= 8, "{}: truncated: {} bytes, a safetensors file has at least 8", file, bytes.size());
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  check(length <= kMaxHeader, "{}: header of {} bytes, the limit is {}: not a safetensors file?", file, length,
        kMaxHeader);
  check(length <= bytes.size() - 8, "{}: truncated: header of {} bytes in a file of {}", file, length, bytes.size());
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, length);
  check(text.starts_with('{'), "{}: the header is not JSON: it must start with '{{'", file);
  const Json json = parse_unique_json(text, file + ": the header", kHeaderNesting);

  Header header;
  header.data = bytes.data() + 8 + length;
  for (const auto& [name, value] : json.items()) {
    if (name != "__metadata__") {
      header.entries.push_back(parse_entry(name, value, file));
      continue;
    }
    check(value.is_object(), "{}: \"__metadata__\" is a JSON {}, expected an object", file, value.type_name());
    for (const auto& [key, text_value] : value.items()) {
      check(text_value.is_string(), "{}: \"__metadata__\" has a JSON {} for \"{}\", expected a string", file,
            text_value.type_name(), key);
      header.metadata[key] = text_value.get<std::string>();
    }
  }
  check_tiling(header.entries, static_cast<int64_t>(bytes.size() - 8 - length), file);
  return header;
}

// Returns a map from tensor to file, both as the index names them.
std::map<std::string, std::string> read_index(const std::string& path) {
  const Json json = parse_unique_json(read_text_file(path), path + ": the index", kHeaderNesting);
  const Json& map = member(json, "weight_map", path);
  check(map.is_object() && !map.empty(), "{}: \"weight_map\" must be an object that names at least one tensor", path);
  std::map<std::string, std::string> index;
  for (const auto& [tensor, file] : map.items()) {
    check(file.is_string(), "{}: \"weight_map\" has a JSON {} for \"{}\", expected a file name", path, file.type_name(),
          tensor);
    const auto& name = file.get_ref<const std::string&>();
    // The file must have a plain name, as a downloaded index must not make the program read files elsewhere.
    check(!name.empty() && name != "." && name != ".." &&
              name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos,
          "{}: \"{}\" is in {}, expected the name of a file in the same folder", path, tensor, foreign(file.dump()));
    index[tensor] = name;
  }
  return index;
}

std::vector<std::string> glob_safetensors(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& item : std::filesystem::directory_iterator(folder)) {
    // An adapter, or a copy under the names of Mistral's own code, may stand beside a model or in its place.
    const std::string name = item.path().filename().string();
    const bool other = name.starts_with("adapter_model") || name.starts_with("consolidated");
    if (item.path().extension() == ".safetensors" && !other) paths.push_back(item.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

struct Safetensors::Contents {
  struct Located {
    DType dtype;
    Shape shape;
    const std::byte* data;
    size_t file;
  };
  std::vector<std::shared_ptr<const MappedFile>> files;
  std::map<std::string, Located, std::less<>> tensors;
  std::map<std::string, std::string> metadata;

  void add(const std::string& path) {
    files.push_back(MappedFile::open(path));
    Header header = parse_header(*files.back());
    for (const Entry& entry : header.entries) {
      const auto [it, fresh] = tensors.try_emplace(
          entry.name, Located{entry.dtype, entry.shape, header.data + entry.begin, files.size() - 1});
      check(fresh, "tensor \"{}\" is both in {} and in {}", entry.name, files[it->second.file]->path(), path);
    }
    metadata.merge(header.metadata);
  }

  void add_indexed(const std::string& folder, const std::string& index_path) {
    const auto index = read_index(index_path);
    std::set<std::string> names;
    for (const auto& [tensor, file] : index) names.insert(file);
    for (const std::string& name : names) {
      const std::string path = folder + "/" + name;
      check(std::filesystem::exists(path), "{}: names the shard {}, which is missing: download it again?", index_path,
            name);
      add(path);
    }
    for (const auto& [tensor, file] : index) {
      const auto it = tensors.find(tensor);
      check(it != tensors.end() && files[it->second.file]->path() == folder + "/" + file,
            "{}/{}: lacks the tensor \"{}\" that {} promises", folder, file, tensor, index_path);
    }
  }
};

Safetensors Safetensors::open(const std::string& path) {
  auto contents = std::make_shared<Contents>();
  try {
    if (!std::filesystem::is_directory(path)) {
      contents->add(path);
      return Safetensors(std::move(contents));
    }
    const std::string index = path + "/model.safetensors.index.json", single = path + "/model.safetensors";
    // If a model in one file was written over one in shards, the index belongs to the old one. transformers looks
    // for the one file first, too.
    if (std::filesystem::exists(single)) {
      contents->add(single);
    } else if (std::filesystem::exists(index)) {
      contents->add_indexed(path, index);
    } else {
      for (const std::string& file : glob_safetensors(path)) contents->add(file);
    }
  } catch (const std::filesystem::filesystem_error& e) {
    throw Error("cannot open {}: {}", path, e.code().message());
  }
  if (contents->files.empty()) {
    const std::string about = about_folder(path);
    throw Error("{}: no *.safetensors file of a model in this folder: {}", path,
                about.empty() ? "its weights are missing; download it again" : about);
  }
  return Safetensors(std::move(contents));
}

bool Safetensors::contains(std::string_view name) const { return contents_->tensors.contains(name); }

OwnedTensor Safetensors::get(std::string_view name) const {
  const auto it = contents_->tensors.find(name);
  check(it != contents_->tensors.end(), "no tensor \"{}\" in {}{}", name, contents_->files.front()->path(),
        contents_->files.size() > 1 ? fmt::format(" and {} more files", contents_->files.size() - 1) : "");
  const Contents::Located& found = it->second;
  const Tensor view{found.dtype, found.shape, const_cast<std::byte*>(found.data)};
  if (reinterpret_cast<uintptr_t>(found.data) % static_cast<uintptr_t>(size_of(found.dtype)) == 0)
    return {view, contents_->files[found.file]};
  OwnedTensor copy = OwnedTensor::allocate(found.dtype, found.shape);
  if (view.bytes() > 0) std::memcpy(copy.view.data, found.data, static_cast<size_t>(view.bytes()));
  return copy;
}

OwnedTensor Safetensors::get(std::string_view name, DType dtype, const Shape& shape) const {
  OwnedTensor tensor = get(name);
  check(tensor.view.dtype == dtype && tensor.view.shape == shape, "{}: tensor \"{}\": expected {} {}, got {} {}",
        contents_->files[contents_->tensors.find(name)->second.file]->path(), name, name_of(dtype), to_string(shape),
        name_of(tensor.view.dtype), to_string(tensor.view.shape));
  return tensor;
}

std::vector<std::string> Safetensors::names() const {
  std::vector<std::string> names;
  for (const auto& [name, located] : contents_->tensors) names.push_back(name);
  return names;
}

const std::map<std::string, std::string>& Safetensors::metadata() const { return contents_->metadata; }

std::vector<std::string> Safetensors::files() const {
  std::vector<std::string> paths;
  for (const auto& file : contents_->files) paths.push_back(file->path());
  return paths;
}

int64_t Safetensors::file_bytes() const {
  int64_t bytes = 0;
  for (const auto& file : contents_->files) bytes += static_cast<int64_t>(file->bytes().size());
  return bytes;
}

Hashes Safetensors::tensor_hashes() const {
  WeightsHash hash;
  for (const std::string& name : names()) {
    const OwnedTensor tensor = get(name);
    hash.add(name, {tensor.view.data, static_cast<size_t>(tensor.view.bytes())});
    drop(tensor.view);
  }
  return hash.tensors();
}

void Safetensors::drop(const Tensor& tensor) const {
  for (const auto& file : contents_->files) {
    const auto bytes = file->bytes();
    if (tensor.data >= bytes.data() && tensor.data < bytes.data() + bytes.size())
      file->drop(tensor.data, static_cast<size_t>(tensor.bytes()));
  }
}

}  // namespace fidelio
