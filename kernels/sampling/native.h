// One draw for each row of logits, as in reference.py: inverts the cumulative distribution, in the vocabulary's order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "../native/pool.h"
#include "../native/vectors.h"

namespace tiergate {

// Neighbours that are summed in float32, before their sums are added in float64.
constexpr int64_t kNeighbours = 64;
// Weights fall into buckets by their exponent and 3 bits of mantissa, so that only one bucket needs sorting to find
// where a cut is.
constexpr int kBucketShift = 20, kNumBuckets = 1 << 11;

// Each parameter's numbers for all rows; top_k 0, top_p 1 and min_p 0 cut nothing.
struct SamplingParameters {
    const float* temperature;
    const int64_t* top_k;
    const float *top_p, *min_p;
    const double* uniform;
};

class RowSampler {
public:
    explicit RowSampler(int64_t vocab)
        : vocab_(vocab),
          num_blocks_((vocab + kNeighbours - 1) / kNeighbours),
          weights_(scratch<float, 9>(size_t(num_blocks_ * kNeighbours))) {}

    int64_t draw(const float* logits, const SamplingParameters& parameters, int64_t row) {
        weigh(logits, parameters.temperature[row]);
        cut(parameters.top_k[row], parameters.top_p[row], parameters.min_p[row]);
        return invert(parameters.uniform[row]);
    }

private:
    // The softmax without its divisor: the likeliest token weighs 1, places beyond the vocabulary weigh 0.
    void weigh(const float* logits, float temperature) {
        Lanes largest = splat(-std::numeric_limits<float>::infinity());
        for (int64_t i = 0; i < vocab_; i += 16) {
            const int64_t count = vocab_ - i;
            largest = larger(largest, select(lanes_between(0, count), Float32::load(logits + i, count), largest));
        }
        const Lanes peak = splat(largest_of(largest)), factor = splat(1.f / temperature);
        for (int64_t i = 0; i < num_blocks_ * kNeighbours; i += 16) {
            const int64_t count = std::max<int64_t>(vocab_ - i, 0);
            const Lanes logit = count ? Float32::load(logits + i, count) : peak;
            store_floats(weights_ + i, select(lanes_between(0, count), exp((logit - peak) * factor), splat(0.f)));
        }
    }

    // Of the top_k likeliest tokens, keeps the fewest that have top_p of their sum, and of these the ones with at least
    // min_p of the likeliest's weight. Tokens that weigh as much as the last one kept are kept, too.
    void cut(int64_t top_k, float top_p, float min_p) {
        constexpr double kAll = std::numeric_limits<double>::infinity();
        const int64_t most = top_k > 0 ? std::min(top_k, vocab_) : vocab_;
        float floor = min_p;
        if (most < vocab_ || top_p < 1.f) {
            fill_buckets();
            Kept kept = keep(most, kAll);
            if (top_p < 1.f) kept = keep(most, double(top_p) * kept.mass);
            floor = std::max(floor, kept.smallest);
        }
        if (floor > 0.f)
            for (int64_t i = 0; i < vocab_; ++i) weights_[i] = weights_[i] < floor ? 0.f : weights_[i];
    }

    static uint32_t bucket_of(float weight) {
        uint32_t bits;
        std::memcpy(&bits, &weight, sizeof bits);
        return bits >> kBucketShift & (kNumBuckets - 1);
    }

    void fill_buckets() {
        std::fill_n(counts_, kNumBuckets, 0);
        std::fill_n(masses_, kNumBuckets, 0.);
        for (int64_t i = 0; i < vocab_; ++i) {
            const uint32_t bucket = bucket_of(weights_[i]);
            ++counts_[bucket];
            masses_[bucket] += double(weights_[i]);
        }
    }

    struct Kept {
        float smallest;
        double mass;
    };

    // Keeps weights from the heaviest on, at least one and at most `most`, until their mass is `enough`.
    Kept keep(int64_t most, double enough) const {
        enough = std::max(enough, std::numeric_limits<double>::min());
        int64_t count = 0;
        double mass = 0;
        uint32_t bucket = kNumBuckets;
        while (bucket > 0 && count + counts_[bucket - 1] < most && mass + masses_[bucket - 1] < enough) {
            --bucket;
            count += counts_[bucket];
            mass += masses_[bucket];
        }
        if (bucket == 0) return {0.f, mass};
        --bucket;
        float* members = scratch<float, 10>(size_t(counts_[bucket]));
        const float* end = std::copy_if(weights_, weights_ + vocab_, members,
                                        [=](float weight) { return bucket_of(weight) == bucket; });
        std::sort(members, members + counts_[bucket], std::greater<>());
        float smallest = 0.f;
        for (const float* next = members; next < end && count < most && mass < enough; ++next, ++count) {
            smallest = *next;
            mass += double(*next);
        }
        return {smallest, mass};
    }

    // The first token at which the cumulative sum exceeds the part `uniform` of the whole; any if a weight is NaN.
    int64_t invert(double uniform) const {
        double* reached = scratch<double, 11>(size_t(num_blocks_));
        double sum = 0;
        for (int64_t block = 0; block < num_blocks_; ++block) {
            const float* from = weights_ + block * kNeighbours;
            const Lanes first = load_floats(from) + load_floats(from + 16);
            sum += double(sum_of(first + (load_floats(from + 32) + load_floats(from + 48))));
            reached[block] = sum;
        }
        // Rounded, the product may be the whole sum, which no token exceeds.
        const double target = std::min(uniform * sum, std::nextafter(sum, 0.));
        const int64_t found = std::upper_bound(reached, reached + num_blocks_, target) - reached;
        const int64_t block = std::min(found, num_blocks_ - 1), end = std::min((block + 1) * kNeighbours, vocab_);
        int64_t token = block * kNeighbours;
        sum = block > 0 ? reached[block - 1] : 0;
        for (int64_t i = token; i < end && !(sum > target); ++i)
            if (weights_[i] > 0.f) {
                token = i;
                sum += double(weights_[i]);
            }
        return token;
    }

    int64_t vocab_, num_blocks_;
    float* weights_;
    int64_t counts_[kNumBuckets];
    double masses_[kNumBuckets];
};

// logits [num_rows, vocab] dense -> ids [num_rows].
inline void sample(const float* logits, int64_t num_rows, int64_t vocab, const SamplingParameters& parameters,
                   int64_t* ids, int64_t num_threads) {
    parallel_for(num_threads, num_rows,
                 [&](int64_t row) { ids[row] = RowSampler(vocab).draw(logits + row * vocab, parameters, row); });
}

}  // namespace tiergate
