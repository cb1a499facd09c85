// Rounds of work of different sizes, one right after the other, for a second: prints in how many of them a chunk was
// worked on other than once.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>

#include "../../kernels/native/pool.h"

using namespace tiergate;

int main() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    std::array<std::atomic<int>, 24> counts;
    int64_t num_wrong = 0;
    for (int64_t round = 0; round % 1000 || std::chrono::steady_clock::now() < end; ++round) {
        const int64_t num_chunks = 2 + round * 7 % 22;
        for (auto& count : counts) count.store(0);
        parallel_for(3, num_chunks, [&](int64_t i) { counts[i].fetch_add(1); });
        bool is_wrong = false;
        for (int64_t i = 0; i < num_chunks; ++i) is_wrong |= counts[i].load() != 1;
        num_wrong += is_wrong;
    }
    std::printf("%ld\n", long(num_wrong));
}
