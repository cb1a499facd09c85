// The pool and the kernels under the thread sanitizer: two engines of one process, each multiplying, adding adapters
// and attending with threads of the pool. Prints how many of the results differ from those of one thread.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "../../kernels/decoder_layers/native.h"

using namespace tiergate;

constexpr int64_t kTokens = 9, kHidden = 128, kWide = 192, kHeads = 4, kKeyHeads = 2, kDim = 32, kBlocks = 3;
constexpr int64_t kRounds = 20;

static std::vector<float> numbers(int64_t count, uint32_t seed) {
    std::vector<float> all(count);
    for (float& number : all) {
        seed = seed * 1664525 + 1013904223;
        number = (float(seed >> 8) / float(1 << 23) - 1) * 0.1f;
    }
    return all;
}

struct Projection {
    Projection(int64_t out_size, int64_t in_size, std::vector<int64_t> slices)
        : packed((out_size + kPanel - 1) / kPanel * kPanel * in_size),
          a(2 * int64_t(slices.size()) * kPageRanks * in_size),
          b(2 * kPageRanks * out_size),
          ranks(2 * slices.size(), 11) {
        const auto weight = numbers(out_size * in_size, 1);
        pack_weight<Float32>(weight.data(), out_size, in_size, packed.data(), 1);
        a = numbers(int64_t(a.size()), 2);
        b = numbers(int64_t(b.size()), 3);
        matrix = {packed.data(), nullptr, {a.data(), b.data(), ranks.data(), int64_t(slices.size()), {}}};
        int64_t end = 0;
        for (size_t i = 0; i < slices.size(); ++i) matrix.lora.offsets[i + 1] = end += slices[i];
    }

    std::vector<uint32_t> packed;
    std::vector<float> a, b;
    std::vector<int32_t> ranks;
    Matrix matrix;
};

// Two layers' step of one sequence of kTokens, of which some have an adapter of two pages and some one of one.
static std::vector<float> step(int64_t num_threads) {
    const std::vector<float> norm(kHidden, 1.f);
    Projection qkv((kHeads + 2 * kKeyHeads) * kDim, kHidden, {kHeads * kDim, kKeyHeads * kDim, kKeyHeads * kDim});
    Projection o(kHidden, kHeads * kDim, {kHidden}), gate_up(2 * kWide, kHidden, {kWide, kWide});
    Projection down(kHidden, kWide, {kHidden});
    std::vector<std::vector<float>> caches(2, std::vector<float>(kBlocks * 16 * 2 * kKeyHeads * kDim));
    std::vector<Layer> layers;
    for (auto& cache : caches)
        layers.push_back({norm.data(), nullptr, nullptr, norm.data(), qkv.matrix, o.matrix, gate_up.matrix,
                          down.matrix, cache.data(), int64_t(1) << 40});
    const DecoderShape shape{2, kHidden, kWide, 1e-5f, {kHeads, kKeyHeads, kDim, 16, 0.2f}};
    auto x = numbers(kTokens * kHidden, 4);
    const auto cos = numbers(kTokens * kDim, 5), sin = numbers(kTokens * kDim, 6);
    std::vector<int64_t> slots(kTokens);
    for (int64_t i = 0; i < kTokens; ++i) slots[i] = 16 + i;
    const int32_t starts[] = {0, kTokens}, lens[] = {kTokens}, firsts[] = {0, 1}, blocks[] = {1};
    const int32_t rows[] = {0, 2, 3, 5, 8}, pages[] = {1, 0, 0};
    const ShrinkItem shrink[] = {{1, 0, 3, 0}, {0, 0, 3, 1}, {0, 3, 2, 0}};
    const ExpandItem expand[] = {{0, 2, 0, 3}, {2, 1, 3, 2}};
    const LoraWork lora{rows, pages, shrink, expand, 5, 3, 2, 2};
    const Step all{kTokens, x.data(), cos.data(), sin.data(), slots.data(),
                   {1, starts, lens, firsts, blocks, int64_t(1) << 40, num_threads}, nullptr, kTokens, lora, {}};
    run_decoder<Float32>(shape, layers.data(), all, num_threads);
    return x;
}

int main() {
    const auto expected = step(1);
    for (float number : expected)
        if (!(std::abs(number) > 0 && std::abs(number) < 1e6f)) return std::puts("no figures"), 1;
    std::vector<int> wrong(2);
    auto engine = [&](int which) {
        for (int64_t round = 0; round < kRounds; ++round) {
            const auto got = step(3);
            wrong[which] += std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) != 0;
        }
    };
    std::thread other(engine, 1);
    engine(0);
    other.join();
    std::printf("%d\n", wrong[0] + wrong[1]);
}
