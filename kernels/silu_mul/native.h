// silu(gate) * up, rounded after silu as two operations would be.
#pragma once

#include "../native/pool.h"
#include "../native/vectors.h"

namespace tiergate {

// gate_up [num_rows, 2 * size] dense -> out [num_rows, size] dense.
template <class Type>
void silu_mul(const typename Type::Element* gate_up, typename Type::Element* out, int64_t num_rows, int64_t size,
              int64_t num_threads) {
    const Lanes one = splat(1.f);
    parallel_rows(num_threads, num_rows, 8, [&](int64_t first, int64_t end) {
        for (int64_t row = first; row < end; ++row)
            for (int64_t k = 0; k < size; k += 16) {
                const int64_t count = size - k;
                const auto* gate = gate_up + row * 2 * size + k;
                const Lanes x = Type::load(gate, count);
                const Lanes silu = x / (one + exp(splat(0.f) - x));
                Type::store(out + row * size + k, count,
                            Type::round(silu) * Type::load(gate + size, count));
            }
    });
}

}  // namespace tiergate
