// This file learns how much documents differ from the typical one of their kind, from several kinds of text together.
// One kind of text has some 28 documents in a certificate, and a sort of document that makes up one in twenty is
// often missing among them. All kinds together have 112.
#pragma once
#include <span>
#include <vector>

namespace fidelio {

class DocumentPool {
 public:
  // Adds documents of one kind of text that were measured together, as sums of a positive quantity and counts of
  // positions. Each is compared with the median of these documents, so documents of the same kind that were measured
  // under another plan can be added by another call. Fewer than four documents, or documents that lose nothing, are
  // ignored because they tell nothing about others.
  void add(int kind, std::span<const double> sums, std::span<const double> counts);

  // Returns the ratios of all documents to their medians, as they would be in this kind of text. An ordinary
  // document's logarithm is scaled by how much ordinary documents of this kind differ, because documents of some
  // kinds are more alike than those of others. A strange document keeps its ratio. It is strange if it lies more than
  // three deviations from the median, where a deviation is 1.4826 times the median distance within the kind.
  std::vector<double> ratios(int kind) const;

 private:
  struct Residual {
    double log = 0;
    int kind = 0;
  };
  double spread_of(int kind) const;

  std::vector<Residual> residuals_;
};

}  // namespace fidelio
