// x / sqrt(mean(x^2) + eps) * weight, rounded once before the weight is applied, as the reference does.
#pragma once

#include <cmath>

#include "../native/pool.h"
#include "../native/vectors.h"

namespace tiergate {

// [num_outer][num_inner][size] elements, inner rows dense, outer ones a stride apart; x and out may be the same.
template <class Type>
void rms_norm(const typename Type::Element* x, int64_t x_stride, const typename Type::Element* weight,
              typename Type::Element* out, int64_t out_stride, int64_t num_outer, int64_t num_inner, int64_t size,
              float eps, int64_t num_threads) {
    parallel_rows(num_threads, num_outer, 16, [&](int64_t first, int64_t end) {
        for (int64_t i = first * num_inner; i < end * num_inner; ++i) {
            const auto* row = x + i / num_inner * x_stride + i % num_inner * size;
            auto* to = out + i / num_inner * out_stride + i % num_inner * size;
            Lanes sum = splat(0.f);
            for (int64_t k = 0; k < size; k += 16) {
                const Lanes value = Type::load(row + k, size - k);
                sum = fused(value, value, sum);
            }
            const Lanes scale = splat(1.f / std::sqrt(sum_of(sum) / float(size) + eps));
            for (int64_t k = 0; k < size; k += 16) {
                const Lanes normed = Type::round(Type::load(row + k, size - k) * scale);
                Type::store(to + k, size - k, normed * Type::load(weight + k, size - k));
            }
        }
    });
}

}  // namespace tiergate
