// How documents differ from the typical one of their kind, learned from several kinds of text together. A kind of text
// has some 28 documents in a certificate, among which a sort of document that is one of twenty is often missing; all
// kinds together, and the documents that plans were tried on, have 168.
#pragma once
#include <span>
#include <vector>

namespace fidelio {

class DocumentPool {
 public:
  // Adds documents of one kind of text that were measured together: sums of a positive quantity and counts of positions.
  // Each is compared with the median of these, so that other documents of the kind, added by themselves, may have been
  // measured under another plan. Fewer than four documents, or ones that lose nothing, tell nothing of others.
  void add(int kind, std::span<const double> sums, std::span<const double> counts);

  // Ratios of all documents to the medians, as they would be in this kind of text. An ordinary document's logarithm is
  // scaled by how much ordinary documents of the kind differ, because some kinds are more alike than others. A strange
  // document's ratio is left as it is: more than three deviations off, a deviation being 1.4826 times the median distance
  // of the kind.
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
