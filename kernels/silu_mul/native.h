// silu(gate) * up, rounded after silu as two operations would be.
#pragma once

#include "../native/pool.h"
#include "../native/vectors.h"

// gate_up [num_rows, 2 * size] dense -> out [num_rows, size] dense.
template <class Type>
void silu_mul(const typename Type::Element* gate_up, typename Type::Element* out, int64_t num_rows, int64_t size,
              int64_t num_threads) {
    const Lanes one = _mm512_set1_ps(1.f);
    parallel_rows(num_threads, num_rows, 8, [&](int64_t first, int64_t end) {
        for (int64_t row = first; row < end; ++row)
            for (int64_t k = 0; k < size; k += 16) {
                const __mmask16 mask = first_lanes(size - k);
                const auto* gate = gate_up + row * 2 * size + k;
                const Lanes x = Type::load(gate, mask);
                const Lanes silu = _mm512_div_ps(x, _mm512_add_ps(one, exp(_mm512_sub_ps(_mm512_setzero_ps(), x))));
                Type::store(out + row * size + k, mask,
                            _mm512_mul_ps(Type::round(silu), Type::load(gate + size, mask)));
            }
    });
}
