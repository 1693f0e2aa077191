// This fuzzer reads a safetensors file and fidelio's own metadata in it: every tensor is read as far as it claims to
// go. If only the length of a header is wrong, it is corrected, so the search is not stopped by it.
#include <cstring>

#include "formats/finite.h"
#include "fuzz.h"
#include "io/checkpoint.h"
#include "io/safetensors.h"

namespace {

using namespace fidelio;

void read_all(std::string_view bytes) {
  const fuzzing::MemoryFile file(bytes);
  fuzzing::try_to([&] {
    const Safetensors tensors = Safetensors::open(file.path());
    for (const std::string& name : tensors.names()) {
      const OwnedTensor tensor = tensors.get(name);
      first_not_finite(tensor.view);
      unsigned sum = 0;
      for (int64_t i = 0; i < tensor.view.bytes(); ++i) sum += static_cast<unsigned>(tensor.view.data[i]);
      if (sum == 0xffffffff) __builtin_trap();
    }
    for (const auto& [key, value] : tensors.metadata()) fuzzing::try_to([&, text = value] { parse_format(text); });
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(fuzzing::text_of(data, size));
  read_all(bytes);
  const size_t end = bytes.rfind('}');
  if (end == std::string::npos || end < 8) return 0;
  const uint64_t length = end - 7;
  std::memcpy(bytes.data(), &length, 8);
  read_all(bytes);
  return 0;
}
