// This file makes runners on the CPU backend.
#include "kernels/cpu/cpu.h"
#include "runtime/runner_impl.h"

namespace fidelio {
namespace {

Cpu cpu_of(const RunnerOptions& options) {
  Cpu::Options cpu;
  cpu.threads = options.threads;
  if (!options.isa.empty()) cpu.isa = cpu::parse_isa(options.isa);
  return Cpu(cpu);
}

class CpuRunner final : public RunnerImpl<Cpu> {
 public:
  CpuRunner(const Checkpoint& checkpoint, const RunnerOptions& options, const CpuRunner* sibling)
      : RunnerImpl(cpu_of(options), checkpoint, options, sibling) {}
  std::unique_ptr<Runner> make_sibling(const Checkpoint& checkpoint, const RunnerOptions& options) const override {
    check(options.isa == this->options().isa, "a sibling's weights are packed for another instruction set");
    return std::make_unique<CpuRunner>(checkpoint, options, this);
  }
};

}  // namespace

std::unique_ptr<Runner> make_cpu_runner(const Checkpoint& checkpoint, const RunnerOptions& options) {
  return std::make_unique<CpuRunner>(checkpoint, options, nullptr);
}

}  // namespace fidelio
