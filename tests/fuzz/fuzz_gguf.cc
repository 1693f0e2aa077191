// This fuzzer reads a GGUF file: its keys in every type, the config and tokenizer made from them, every block of its
// tensors, and the whole model.
#include <nlohmann/json.hpp>

#include "fuzz.h"
#include "io/gguf/config.h"
#include "io/gguf/file.h"
#include "io/gguf/sampling.h"
#include "io/gguf/source.h"
#include "io/gguf/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fidelio;
  const fuzzing::MemoryFile input(fuzzing::text_of(data, size));
  fuzzing::try_to([&] {
    const auto file = gguf::File::open(input.path());
    for (const std::string& key : file->keys_under("")) {
      fuzzing::try_to([&] { file->integer(key); });
      fuzzing::try_to([&] { file->number(key); });
      fuzzing::try_to([&] { file->boolean(key); });
      fuzzing::try_to([&] { file->text(key); });
      fuzzing::try_to([&] { file->texts(key); });
      fuzzing::try_to([&] { file->integers(key); });
      fuzzing::try_to([&] { file->numbers(key); });
    }
    fuzzing::try_to([&] { gguf::config_of(*file); });
    fuzzing::try_to([&] { gguf::tokenizer_files(*file); });
    fuzzing::try_to([&] { gguf::unread_sampling(*file); });
    for (const auto& [name, tensor] : file->tensors()) {
      std::vector<float> values(static_cast<size_t>(tensor.type->elements));
      for (int64_t r = 0; r < tensor.rows; ++r)
        for (int64_t block = 0; block < tensor.columns / tensor.type->elements; ++block)
          tensor.type->decode(tensor.row(r) + block * tensor.type->bytes, values.data());
    }
  });
  fuzzing::try_to([&] {
    const ModelSource source = gguf::open_source(input.path());
    for (const std::string& name : source.tensors->names()) fuzzing::try_to([&] { source.tensors->get(name); });
    for (const auto& [id, linear] : source.linears) fuzzing::try_to([&, &read = linear.read] { decode(read()); });
  });
  return 0;
}
