#include "kernels/cpu/cpu.h"
#include "runtime/runner_impl.h"

namespace fidelio {

std::unique_ptr<Runner> make_cpu_runner(const Checkpoint& checkpoint, const RunnerOptions& options) {
  Cpu::Options cpu;
  cpu.threads = options.threads;
  if (!options.isa.empty()) cpu.isa = cpu::parse_isa(options.isa);
  return std::make_unique<RunnerImpl<Cpu>>(Cpu(cpu), checkpoint, options);
}

}  // namespace fidelio
