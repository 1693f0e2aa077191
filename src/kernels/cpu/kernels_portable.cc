// This file is compiled for any machine and exports the set of the kernels in the bodies that it includes.
#include "kernels/cpu/attention/attention_body.h"
#include "kernels/cpu/delta/delta_chunk_body.h"
#include "kernels/cpu/linear/dense_body.h"
#include "kernels/cpu/ops_body.h"

namespace fidelio::cpu {

const KernelSet kPortable = {
    .bf16_f32 = multiply<Fma<WeightBf16>>,
    .f16_f32 = multiply<Fma<WeightF16>>,
    .f32_f32 = multiply<Fma<WeightF32>>,
    .e4m3_f32 = multiply<Fma<WeightE4m3>>,
    .bf16_bf16 = nullptr,
    .to_bf16 = to_bf16,
    .norm = norm,
    .swiglu = swiglu,
    .geglu = geglu,
    .clamped = clamped,
    .sigmoid_gated = sigmoid_gated,
    .add_gated = add_gated,
    .softcap = softcap,
    .turn = turn,
    .rotate = rotate,
    .append = append,
    .attend = attend,
    .merge = merge,
    .convolve = convolve,
    .delta_rows = delta_rows,
    .delta_chunk = delta_chunk,
};

}  // namespace fidelio::cpu
