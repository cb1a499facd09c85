// Writes new keys and values into their slots.
#pragma once

#include <cstring>

#include "../native/pool.h"

namespace tiergate {

// kv: num_tokens rows of row_bytes, kv_stride bytes apart; cache: dense rows of row_bytes.
inline void store_kv(const char* kv, int64_t kv_stride, char* cache, const int64_t* slots, int64_t num_tokens,
                     int64_t row_bytes, int64_t num_threads) {
    parallel_rows(num_threads, num_tokens, 64, [&](int64_t first, int64_t end) {
        for (int64_t i = first; i < end; ++i) std::memcpy(cache + slots[i] * row_bytes, kv + i * kv_stride, row_bytes);
    });
}

}  // namespace tiergate
