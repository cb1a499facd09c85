// The pool and the kernels under the thread sanitizer: two engines of one process, one in float32 and one in bfloat16,
// each multiplying, adding adapters and attending with threads of the pool. Prints how many of the results differ from
// those of one thread.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "../../kernels/decoder_layers/native.h"

using namespace tiergate;

constexpr int64_t kTokens = 9, kHidden = 128, kWide = 192, kHeads = 4, kKeyHeads = 2, kDim = 32, kBlocks = 3;
constexpr int64_t kRounds = 20;

template <class Type>
using Numbers = std::vector<typename Type::Element>;

template <class Type>
static Numbers<Type> numbers(int64_t count, uint32_t seed) {
    Numbers<Type> all(count);
    for (auto& number : all) {
        seed = seed * 1664525 + 1013904223;
        Type::store(&number, 1, splat((float(seed >> 8) / float(1 << 23) - 1) * 0.1f));
    }
    return all;
}

template <class Type>
struct Projection {
    Projection(int64_t out_size, int64_t in_size, std::vector<int64_t> slices)
        : packed((out_size + kPanel - 1) / kPanel * kPanel * in_size / Type::kPerUnit),
          a(2 * int64_t(slices.size()) * kPageRanks * in_size),
          b(2 * kPageRanks * out_size),
          ranks(2 * slices.size(), 11) {
        const auto weight = numbers<Type>(out_size * in_size, 1);
        pack_weight<Type>(weight.data(), out_size, in_size, packed.data(), 1);
        a = numbers<Type>(int64_t(a.size()), 2);
        b = numbers<Type>(int64_t(b.size()), 3);
        matrix = {packed.data(), nullptr, {a.data(), b.data(), ranks.data(), int64_t(slices.size()), {}}, 0};
        int64_t end = 0;
        for (size_t i = 0; i < slices.size(); ++i) matrix.lora.offsets[i + 1] = end += slices[i];
    }

    std::vector<uint32_t> packed;
    Numbers<Type> a, b;
    std::vector<int32_t> ranks;
    Matrix matrix;
};

// Two layers' step of one sequence of kTokens, of which some have an adapter of two pages and some one of one.
template <class Type>
static Numbers<Type> step(int64_t num_threads) {
    const auto norm = numbers<Type>(kHidden, 7);
    Projection<Type> qkv((kHeads + 2 * kKeyHeads) * kDim, kHidden, {kHeads * kDim, kKeyHeads * kDim, kKeyHeads * kDim});
    Projection<Type> o(kHidden, kHeads * kDim, {kHidden}), gate_up(2 * kWide, kHidden, {kWide, kWide});
    Projection<Type> down(kHidden, kWide, {kHidden});
    std::vector<Numbers<Type>> caches(2, Numbers<Type>(kBlocks * 16 * 2 * kKeyHeads * kDim));
    std::vector<Layer> layers;
    for (auto& cache : caches)
        layers.push_back({norm.data(), nullptr, nullptr, norm.data(), qkv.matrix, o.matrix, gate_up.matrix,
                          down.matrix, cache.data(), int64_t(1) << 40});
    const DecoderShape shape{2, kHidden, kWide, 1e-5f, {kHeads, kKeyHeads, kDim, 16, 0.2f}};
    auto x = numbers<Type>(kTokens * kHidden, 4);
    const auto cos = numbers<Type>(kTokens * kDim, 5), sin = numbers<Type>(kTokens * kDim, 6);
    std::vector<int64_t> slots(kTokens);
    for (int64_t i = 0; i < kTokens; ++i) slots[i] = 16 + i;
    const int32_t starts[] = {0, kTokens}, lens[] = {kTokens}, firsts[] = {0, 1}, blocks[] = {1};
    const int32_t rows[] = {0, 2, 3, 5, 8}, pages[] = {1, 0, 0};
    const ShrinkItem shrink[] = {{1, 0, 3, 0}, {0, 0, 3, 1}, {0, 3, 2, 0}};
    const ExpandItem expand[] = {{0, 2, 0, 3}, {2, 1, 3, 2}};
    const LoraWork lora{rows, pages, shrink, expand, 5, 3, 2, 2};
    const Step all{kTokens, x.data(), cos.data(), sin.data(), slots.data(),
                   {1, starts, lens, firsts, blocks, int64_t(1) << 40, num_threads}, nullptr, kTokens, lora, {}};
    run_decoder<Type>(shape, layers.data(), all, num_threads);
    return x;
}

// How many of an engine's results are not those of one thread.
template <class Type>
static void run_engine(int& wrong) {
    const auto expected = step<Type>(1);
    for (const auto& number : expected) {
        const float value = sum_of(Type::load(&number, 1));
        wrong += !(std::abs(value) > 0 && std::abs(value) < 1e6f);
    }
    for (int64_t round = 0; round < kRounds; ++round) {
        const auto got = step<Type>(3);
        wrong += std::memcmp(got.data(), expected.data(), got.size() * sizeof(got[0])) != 0;
    }
}

int main() {
    int wrong[2] = {0, 0};
    std::thread other(run_engine<BFloat16>, std::ref(wrong[1]));
    run_engine<Float32>(wrong[0]);
    other.join();
    std::printf("%d\n", wrong[0] + wrong[1]);
}
