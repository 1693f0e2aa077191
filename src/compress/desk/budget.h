// A Budget is the number of bytes that all files of a checkpoint may take together, and how much of it their header
// needs.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "compress/inputs/job_texts.h"
#include "compress/job.h"
#include "sensitivity/candidates.h"

namespace fidelio {

// Returns the bytes that a job asks for, by --bytes or by --bits a parameter; 0 if it names no size.
int64_t bytes_asked(const Job& job, int64_t parameters);

class Budget {
 public:
  // `record_bytes` is the size of the record of used texts (TextAccount), before tuning has added its samples to it.
  // The other arguments must outlive the budget.
  Budget(const Job& job, const Checkpoint& source, const std::vector<LinearGroup>& groups, const JobTexts& texts,
         int64_t record_bytes);

  bool given() const { return bytes_ > 0; }
  int64_t bytes() const { return bytes_; }  // 0 without a budget
  // Returns an upper bound of the header of a file with these formats. Linears that it does not name stay as they are.
  int64_t header_bytes(const std::map<LinearId, FormatSpec>& formats) const;
  // Says whether weights of so many bytes in these formats fit, with their header. Everything fits without a budget.
  bool fits(int64_t weight_bytes, const std::map<LinearId, FormatSpec>& formats) const;
  // Throws Error if even the smallest plan that there can be does not fit. It is computed from sizes alone, before
  // anything is made.
  void check_possible() const;

 private:
  const Job& job_;
  const Checkpoint& source_;
  const std::vector<LinearGroup>& groups_;
  const JobTexts& texts_;
  int64_t record_bytes_, bytes_;
};

}  // namespace fidelio
