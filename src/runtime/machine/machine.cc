#include "runtime/machine/machine.h"

#include <fstream>

namespace fidelio {

std::string machine_name(std::optional<int> gpu) {
  if (gpu) return cuda_name(*gpu);
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (const size_t colon = line.find(": "); line.starts_with("model name") && colon != std::string::npos)
      return line.substr(colon + 2);
  return "processor";
}

}  // namespace fidelio
