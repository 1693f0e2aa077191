// This file describes what the vector-code kernels of one instruction set are given. It has plain data only: files
// compiled for a wider instruction set include nothing else of the project.
//
// Rows lie as in the file (formats/vector_code.h). For each row of x the kernels are given x times the weight's
// column scales, so that a vector's share of the product is 8 multiply-adds with signed bytes of a codebook that
// stays in the first-level cache. There are two kinds of products:
//
//   f32     FP32. Lane j of accumulator v % 2 adds column 8 v + j, v ascending; then both accumulators, then the lanes.
//   words   x is integers of 16 bits under one scale for every 1024 columns. Lane j of 8 adds columns 2 j and 2 j + 1
//           of every 16 in a group, exactly; groups are scaled and added in FP32, ascending; then the lanes.
//
// Nothing in either order depends on the number of rows of x, so products are row-invariant.
#pragma once
#include <cstdint>

namespace fidelio::cpu::vectors {

constexpr int kDim = 8;
constexpr int kTile = 4;         // rows of x that share one decoding of a weight's row
constexpr int kGroup = 128;      // vectors that share a scale of words
constexpr float kSteps = 32767;  // the largest word

struct Row {
  const uint8_t* index;  // (vectors)
  const uint8_t* high;   // (ceil(vectors / 2)) nibbles, or null
  const uint8_t* sign;   // 4 signs: nibbles; 8 signs: bytes; 1 sign: null
  const int8_t* book;    // (entries, 8) of the row's block
  const uint16_t* sparse_index;
  const int8_t* sparse_value;  // (sparse, 8)
  const float* sparse_scale;
  int64_t sparse;  // corrections of this row
};

// A Job computes sums[m] = row . scaled x_m and corrections[m] = its corrections . x_m, for `rows` <= kTile rows of
// x, which are `stride` values apart and padded with zeros to whole fours of vectors.
struct Job {
  Row row;
  int64_t vectors;
  int signs;
  const float* scaled;   // for f32
  const int16_t* words;  // for words
  const float* scale;    // (rows, groups), for words
  int64_t groups;
  const float* x;
  int64_t stride, rows;
  float* sums;
  float* corrections;
};
using Multiply = void (*)(const Job&);
void multiply_portable(const Job& job);
void multiply_avx2(const Job& job);
void multiply_words_portable(const Job& job);
void multiply_words_avx2(const Job& job);
void multiply_words_avx512(const Job& job);  // has the bits of AVX2's
void correct_avx2(const Job& job);           // computes corrections alone

}  // namespace fidelio::cpu::vectors
