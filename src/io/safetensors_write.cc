#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "io/safetensors.h"

namespace fidelio {
namespace {

// Tensors are our own, so a wrong one is a bug of the caller, but the product may still be too large for the format.
int64_t bytes_of(const TensorToWrite& tensor) {
  int64_t bytes = size_of(tensor.dtype);
  for (int i = 0; i < tensor.shape.rank; ++i)
    check(tensor.shape[i] >= 0 && !__builtin_mul_overflow(bytes, tensor.shape[i], &bytes),
          "cannot write tensor \"{}\": shape {}", tensor.name, to_string(tensor.shape));
  return bytes;
}

std::string quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error("cannot write a safetensors header: a name or value is not valid UTF-8");
  }
}

// The header is assembled by hand, because nlohmann's objects sort their keys and readers expect the order of the data.
std::string header_of(std::span<const TensorToWrite> tensors, std::map<std::string, std::string> metadata) {
  const std::string& format = metadata.try_emplace("format", "pt").first->second;
  check(format == "pt", "safetensors metadata \"format\" must be \"pt\", got \"{}\"", format);
  std::string header = "{\"__metadata__\":{", separator;
  for (const auto& [key, value] : metadata) {
    header += separator + quoted(key) + ":" + quoted(value);
    separator = ",";
  }
  header += "}";
  std::set<std::string> names = {"__metadata__"};
  int64_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    check(names.insert(tensor.name).second, "cannot write tensor \"{}\": the name is taken", tensor.name);
    std::string dims;
    for (int i = 0; i < tensor.shape.rank; ++i) dims += (i ? "," : "") + std::to_string(tensor.shape[i]);
    const int64_t end = offset + bytes_of(tensor);
    header += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", quoted(tensor.name),
                          name_of(tensor.dtype), dims, offset, end);
    offset = end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

void write_to(AtomicFile& file, std::span<const TensorToWrite> tensors,
              const std::map<std::string, std::string>& metadata) {
  const std::string header = header_of(tensors, metadata);
  const uint64_t length = header.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(header);
  for (const TensorToWrite& tensor : tensors) {
    const int64_t expected = bytes_of(tensor);
    int64_t written = 0;
    tensor.produce([&](std::span<const std::byte> bytes) {
      written += static_cast<int64_t>(bytes.size());
      check(written <= expected, "tensor \"{}\" of {} bytes was given {}", tensor.name, expected, written);
      file.write(bytes);
    });
    check(written == expected, "tensor \"{}\" of {} bytes was given {}", tensor.name, expected, written);
  }
}

// Returns the (exclusive) ends of the shards. Each takes tensors in order while they fit, and at least one.
std::vector<size_t> shard_ends(const std::vector<TensorToWrite>& tensors, int64_t max_shard_bytes) {
  std::vector<size_t> ends;
  int64_t filled = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = bytes_of(tensors[i]);
    if (i > 0 && filled + bytes > max_shard_bytes) {
      ends.push_back(i);
      filled = 0;
    }
    filled += bytes;
  }
  ends.push_back(tensors.size());
  return ends;
}

void check_no_weights_in(const std::string& folder) {
  std::error_code reason;
  for (const auto& item : std::filesystem::directory_iterator(folder, reason)) {
    const std::string name = item.path().filename().string();
    check(!name.ends_with(".safetensors") && name != "model.safetensors.index.json",
          "{} holds {} already: remove it or write to another folder", folder, name);
  }
  check(!reason, "cannot write to {}: {}", folder, reason.message());
}

}  // namespace

TensorToWrite to_write(std::string name, OwnedTensor tensor) {
  const DType dtype = tensor.view.dtype;
  const Shape shape = tensor.view.shape;
  return {std::move(name), dtype, shape, [tensor = std::move(tensor)](const ByteSink& sink) {
            sink({tensor.view.data, static_cast<size_t>(tensor.view.bytes())});
          }};
}

void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  AtomicFile file(path);
  write_to(file, tensors, metadata);
  file.commit();
}

void write_sharded_safetensors(const std::string& folder, const std::vector<TensorToWrite>& tensors,
                               int64_t max_shard_bytes, const std::map<std::string, std::string>& metadata) {
  check_no_weights_in(folder);
  const std::vector<size_t> ends = shard_ends(tensors, max_shard_bytes);
  if (ends.size() == 1) return write_safetensors(folder + "/model.safetensors", tensors, metadata);

  // No shard gets its name before all are written.
  std::vector<std::unique_ptr<AtomicFile>> shards;
  nlohmann::json weight_map = nlohmann::json::object();
  int64_t total = 0;
  size_t begin = 0;
  for (size_t shard = 0; shard < ends.size(); ++shard) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, ends.size());
    shards.push_back(std::make_unique<AtomicFile>(folder + "/" + name));
    write_to(*shards.back(), std::span(tensors).subspan(begin, ends[shard] - begin), metadata);
    for (; begin < ends[shard]; ++begin) {
      check(!weight_map.contains(tensors[begin].name), "cannot write tensor \"{}\": the name is taken",
            tensors[begin].name);
      weight_map[tensors[begin].name] = name;
      total += bytes_of(tensors[begin]);
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}};
  for (const auto& shard : shards) shard->commit();
  write_file_atomically(folder + "/model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace fidelio
