// This test checks that the rows of one kind form a batch of their own, with their pages and logit rows.
#include "runtime/execution/batch_part.h"

#include <gtest/gtest.h>

namespace fidelio {
namespace {

TEST(BatchPart, PartsOfAMixedBatchAreItsRowsAndLogits) {
  const std::vector<int32_t> ids = {10, 11, 12, 13, 14, 15, 16, 17}, pages = {3, 1, 2};
  Batch whole;
  whole.append(std::span(ids).first(3), 64, pages, 1, RowKind::prompt);
  whole.append(std::span(ids).subspan(3, 1), 5, std::span(pages).first(1), 1, RowKind::output);
  whole.append(std::span(ids).subspan(4, 2), 0, std::span(pages).last(1), 0, RowKind::prompt);
  whole.append(std::span(ids).subspan(6, 2), 33, std::span(pages).last(2), 2, RowKind::output);
  ASSERT_TRUE(has_both_kinds(whole));

  BatchPart part;
  take_kind(whole, RowKind::output, part);
  EXPECT_FALSE(has_both_kinds(part.batch));
  EXPECT_EQ(part.batch.ids, (std::vector<int32_t>{13, 16, 17}));
  EXPECT_EQ(part.batch.logit_rows, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(part.places, (std::vector<size_t>{1, 2, 3}));
  ASSERT_EQ(part.batch.segments.size(), 2u);
  EXPECT_EQ(part.batch.segments[1].first_row, 1);
  EXPECT_EQ(part.batch.segments[1].position, 33);
  EXPECT_EQ(std::vector<int32_t>(part.batch.pages_of(part.batch.segments[1]).begin(),
                                 part.batch.pages_of(part.batch.segments[1]).end()),
            (std::vector<int32_t>{1, 2}));

  take_kind(whole, RowKind::prompt, part);
  EXPECT_EQ(part.batch.ids, (std::vector<int32_t>{10, 11, 12, 14, 15}));
  EXPECT_EQ(part.batch.logit_rows, (std::vector<int32_t>{2}));
  EXPECT_EQ(part.places, (std::vector<size_t>{0}));
}

}  // namespace
}  // namespace fidelio
