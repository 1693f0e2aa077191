#include "core/foreign/limits.h"

#include "core/error.h"

namespace fidelio {

void Meter::refuse_work() const {
  throw Error("{}: reading this takes more work than its size warrants; it may never end", what_);
}

void Meter::refuse_memory() const { throw Error("{}: reading this takes more memory than its size warrants", what_); }

}  // namespace fidelio
