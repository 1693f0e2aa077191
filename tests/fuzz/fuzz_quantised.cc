// This fuzzer opens a folder that another program quantised: the statements of config.json or of a file beside it, and
// arbitrary tensors. An input is three texts separated by zero bytes: quantization_config, quantize_config.json and the
// header of model.safetensors, whose data is made here as long as the header says.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/foreign/json.h"
#include "fuzz.h"
#include "io/quantised/source.h"
#include "io/safetensors.h"

namespace {

using namespace fidelio;
using nlohmann::json;

// The folder is in memory, one for each process, and removed at its end.
struct Folder {
  Folder() { check(::mkdtemp(path.data()) != nullptr, "no folder for a model"); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path = std::filesystem::exists("/dev/shm") ? "/dev/shm/fuzz-XXXXXX" : "/tmp/fuzz-XXXXXX";
};
const std::string& folder() {
  static const Folder one;
  return one.path;
}

void put(const std::string& name, std::string_view bytes) {
  std::ofstream(folder() + "/" + name, std::ios::binary) << bytes;
}

constexpr const char* kConfig =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":32,"intermediate_size":32,
        "num_hidden_layers":1,"num_attention_heads":1,"vocab_size":8,"quantization_config":)";

// Returns the bytes of data that a header needs, up to a limit worth making.
size_t data_bytes(std::string_view header) {
  uint64_t most = 0;
  fuzzing::try_to([&] {
    const json tensors = parse_json(header, "header");
    for (const auto& [name, tensor] : tensors.items()) {
      if (!tensor.is_object() || !tensor.contains("data_offsets") || !tensor["data_offsets"].is_array()) continue;
      for (const json& at : tensor["data_offsets"])
        if (at.is_number_unsigned()) most = std::max(most, at.get<uint64_t>());
    }
  });
  return static_cast<size_t>(std::min<uint64_t>(most, 1 << 16));
}

void put_tensors(std::string_view header) {
  const uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), 8);
  bytes += header;
  for (size_t i = 0, n = data_bytes(header); i < n; ++i) bytes += static_cast<char>(i * 37 >> 3);
  put("model.safetensors", bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = fuzzing::text_of(data, size);
  const size_t first = std::min(input.find('\0'), input.size()),
               second = std::min(input.find('\0', std::min(first + 1, input.size())), input.size());
  const std::string_view stated = input.substr(0, first),
                         beside = input.substr(std::min(first + 1, second), second - std::min(first + 1, second)),
                         header = input.substr(std::min(second + 1, input.size()));
  put("config.json", kConfig + (stated.empty() ? "null" : std::string(stated)) + "}");
  std::filesystem::remove(folder() + "/quantize_config.json");
  if (!beside.empty()) put("quantize_config.json", beside);
  put_tensors(header);
  fuzzing::try_to([&] {
    const ModelSource source = quantised::open_source(folder());
    for (const auto& [id, linear] : source.linears)
      fuzzing::try_to([&, &read = linear.read] {
        const LinearWeight w = read();
        std::vector<float> row(static_cast<size_t>(w.in));
        for (int64_t r = 0; r < w.out; ++r) decode_row(w, r, row);
      });
  });
  return 0;
}
