// The program's own intervals, for tools/check_certificate.py: every line of standard input is one sample of documents,
// pairs of a sum and a count; every line of output is low and high of the mean, low and high of a new document.
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "eval/statistics/clusters.h"

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream numbers(line);
    std::vector<double> sums, counts;
    for (double sum, count; numbers >> sum >> count;) {
      sums.push_back(sum);
      counts.push_back(count);
    }
    const fidelio::Interval mean = fidelio::cluster_mean(sums, counts).ci95;
    const fidelio::Interval next = fidelio::next_document(sums, counts).ci95;
    std::printf("%.17g %.17g %.17g %.17g\n", mean.low, mean.high, next.low, next.high);
  }
}
