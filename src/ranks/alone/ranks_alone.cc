// This file stands in for ranks.cc in programs without MPI, as the wheel for Python is, which must run where no MPI is
// installed.
#include <cstdlib>

#include "core/error.h"
#include "ranks/ranks.h"

namespace fidelio {

std::unique_ptr<Ranks> launched_ranks() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* value = std::getenv(name); value != nullptr)
      check(
          std::atoi(value) <= 1,
          "{} asks for {} processes, and this program was built without MPI; start it alone, or use the Debian package "
          "or a build of the source",
          name, value);
  return std::make_unique<Ranks>();
}

}  // namespace fidelio
