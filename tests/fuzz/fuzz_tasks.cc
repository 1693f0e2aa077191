// This fuzzer reads files of questions.
#include "eval/tasks/task_data.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fidelio;
  const fuzzing::MemoryFile file(fuzzing::text_of(data, size));
  fuzzing::try_to([&] { read_tasks(file.path()); });
  return 0;
}
