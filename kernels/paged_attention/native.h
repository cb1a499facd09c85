// Causal attention over a paged cache, softmax and products in one pass over the keys.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "../native/pool.h"
#include "../native/vectors.h"

namespace tiergate {

// Keys are processed 64 at a time, starting at multiples of 64: a row's sums are the same alone, in a chunk and in a
// whole prompt, since hidden keys add exact zeros.
constexpr int64_t kKeys = 64;
constexpr int64_t kRowsPerTile = 48;
// From this many multiply-adds on, about a millisecond's, more threads pay, even if a step's other operations do not
// need them.
constexpr double kLong = 2e7;

// As `AttentionPlan`. The i-th sequence's new tokens are rows start[i] .. start[i + 1] - 1 and its last context tokens.
struct AttentionBatch {
    int64_t num_seqs;
    const int32_t* starts;
    const int32_t* context_lens;
    const int32_t* first_blocks;
    const int32_t* block_ids;
    int64_t window;       // the number of tokens that a token sees, itself included
    int64_t max_threads;  // for batches of more than kLong
};

struct AttentionShape {
    int64_t num_heads, num_kv_heads, head_dim, block_size;
    float scale;
};

// Some neighbouring tokens of one sequence, and the key heads from `head` to `end_head` with the query heads that share
// them.
struct AttentionTile {
    int64_t seq, head, end_head, first_row, num_tokens, first_position;

    int64_t end() const { return first_position + num_tokens; }
    int64_t cost() const { return (end_head - head) * num_tokens * end(); }
};

// Where the keys, or the values, of one head begin at 64 positions; null where no token sees them, since such slots may
// hold anything, even NaN.
template <class Type>
using HeadRows = std::array<const typename Type::Element*, kKeys>;

template <class Type>
class Attention {
public:
    using Element = typename Type::Element;
    using Left = typename Type::Left;

    Attention(const AttentionBatch& batch, const AttentionShape& shape, const Element* cache, int64_t num_threads)
        : batch_(batch),
          shape_(shape),
          cache_(cache),
          num_threads_(is_long(batch, shape) ? std::max(num_threads, batch.max_threads) : num_threads),
          shared_(shape.num_heads / shape.num_kv_heads) {
        const int64_t tokens_per_tile = std::max<int64_t>(1, kRowsPerTile / shared_);
        for (int64_t seq = 0; seq < batch.num_seqs; ++seq) {
            const int64_t start = batch.starts[seq], end = batch.starts[seq + 1];
            const int64_t num_heads = heads_per_tile(end - start);
            for (int64_t row = start; row < end; row += tokens_per_tile)
                for (int64_t head = 0; head < shape.num_kv_heads; head += num_heads)
                    tiles_.push_back({seq, head, std::min(head + num_heads, shape.num_kv_heads), row,
                                      std::min(tokens_per_tile, end - row), batch.context_lens[seq] - end + row});
        }
        // The longest first, so that no thread is left alone with a long one at the end.
        std::stable_sort(tiles_.begin(), tiles_.end(),
                         [](const AttentionTile& a, const AttentionTile& b) { return a.cost() > b.cost(); });
    }

    // q [tokens, heads, head_dim], tokens apart by q_stride elements; out [tokens, heads * head_dim] dense.
    void run(const Element* q, int64_t q_stride, Element* out) const {
        parallel_for(num_threads_, int64_t(tiles_.size()), [&](int64_t i) { attend(tiles_[i], q, q_stride, out); });
    }

private:
    static bool is_long(const AttentionBatch& batch, const AttentionShape& shape) {
        double num_pairs = 0;
        for (int64_t seq = 0; seq < batch.num_seqs; ++seq) {
            // On average, a new token does not see half of the other new ones.
            const double num_tokens = batch.starts[seq + 1] - batch.starts[seq];
            num_pairs += num_tokens * std::min(batch.context_lens[seq] - num_tokens / 2, double(batch.window));
        }
        return num_pairs * double(2 * shape.num_heads * shape.head_dim) > kLong;
    }

    // One token's attention waits for memory, which is fast only in long pieces: all heads of some slots. If there are
    // too few sequences for the threads, heads are divided among them.
    int64_t heads_per_tile(int64_t num_tokens) const {
        if (num_tokens > 1) return 1;
        return batch_.num_seqs >= 2 * num_threads_ ? shape_.num_kv_heads
                                                   : (shape_.num_kv_heads + num_threads_ - 1) / num_threads_;
    }

    // The results so far of one key head's queries; a row is one of the `shared_` query heads of a token.
    struct State {
        Left* queries;
        float *sums, *totals, *peaks;
    };

    void attend(const AttentionTile& tile, const Element* q, int64_t q_stride, Element* out) const {
        const int64_t num_heads = tile.end_head - tile.head, num_rows = tile.num_tokens * shared_;
        const int64_t dim = shape_.head_dim, width = (dim + 15) / 16 * 16;
        // Numbers of the left side are written in whole lanes.
        State all{scratch<Left, 1>(num_heads * num_rows * dim + 16), scratch<float, 2>(num_heads * num_rows * width),
                  scratch<float, 3>(num_heads * num_rows * 16), scratch<float, 4>(num_heads * num_rows)};
        auto state_of = [&](int64_t head) {
            const int64_t rows = (head - tile.head) * num_rows;
            return State{all.queries + rows * dim, all.sums + rows * width, all.totals + rows * 16,
                         all.peaks + rows};
        };
        for (int64_t head = tile.head; head < tile.end_head; ++head)
            gather_queries(tile, head, q, q_stride, state_of(head).queries);
        std::fill_n(all.sums, num_heads * num_rows * width, 0.f);
        std::fill_n(all.totals, num_heads * num_rows * 16, 0.f);
        std::fill_n(all.peaks, num_heads * num_rows, -std::numeric_limits<float>::infinity());
        for (int64_t position = begin(tile) / kKeys * kKeys; position < tile.end(); position += kKeys) {
            if (num_heads > 1) sweep(tile, position);
            for (int64_t head = tile.head; head < tile.end_head; ++head) take(tile, head, position, state_of(head));
        }
        for (int64_t head = tile.head; head < tile.end_head; ++head) finish(tile, head, state_of(head), out);
    }

    void gather_queries(const AttentionTile& tile, int64_t head, const Element* q, int64_t q_stride,
                        Left* queries) const {
        // A token's query heads that share a key head are neighbours.
        const int64_t count = shared_ * shape_.head_dim;
        for (int64_t token = 0; token < tile.num_tokens; ++token)
            to_left<Type>(q + (tile.first_row + token) * q_stride + head * count, count, queries + token * count);
    }

    // Processes the keys and values of 64 positions.
    void take(const AttentionTile& tile, int64_t head, int64_t position, const State& state) const {
        const int64_t dim = shape_.head_dim, num_units = dim / Type::kPerUnit, width = (dim + 15) / 16 * 16;
        const int64_t num_rows = tile.num_tokens * shared_, first = begin(tile);
        uint32_t* packed = scratch<uint32_t, 5>(kKeys * std::max(num_units, width));
        float* scores = scratch<float, 6>(num_rows * kKeys);
        Left* weights = scratch<Left, 7>(num_rows * kKeys);
        pack_keys(find(tile, position, first, head), num_units, packed);
        multiply_rows<Type, 4>(state.queries, dim, packed, num_units, scores, kKeys, num_rows, false);
        auto weigh_rows = [&]<bool kAreAllVisible>() {
            for (int64_t row = 0; row < num_rows; ++row) {
                const int64_t end = tile.first_position + row / shared_ + 1 - position;
                weigh<kAreAllVisible>(scores + row * kKeys, end - batch_.window, end, weights + row * kKeys,
                                      state.peaks[row], state.totals + row * 16, state.sums + row * width, width);
            }
        };
        const bool are_all_visible =
            position + kKeys <= tile.first_position + 1 && position >= tile.end() - batch_.window;
        are_all_visible ? weigh_rows.template operator()<true>() : weigh_rows.template operator()<false>();
        add_values(find(tile, position, first, shape_.num_kv_heads + head), weights, dim, packed, state.sums, num_rows,
                   width);
    }

    void finish(const AttentionTile& tile, int64_t head, const State& state, Element* out) const {
        const int64_t dim = shape_.head_dim, width = (dim + 15) / 16 * 16;
        for (int64_t row = 0; row < tile.num_tokens * shared_; ++row) {
            const int64_t query_head = head * shared_ + row % shared_;
            Element* to = out + ((tile.first_row + row / shared_) * shape_.num_heads + query_head) * dim;
            const Lanes total = splat(sum_of(load_floats(state.totals + row * 16)));
            for (int64_t k = 0; k < dim; k += 16)
                Type::store(to + k, dim - k, load_floats(state.sums + row * width + k) / total);
        }
    }

    // The first position that any of the tile's tokens sees.
    int64_t begin(const AttentionTile& tile) const {
        return std::max<int64_t>(0, tile.first_position - batch_.window + 1);
    }

    int64_t slot_size() const { return 2 * shape_.num_kv_heads * shape_.head_dim; }

    const Element* slot(const AttentionTile& tile, int64_t position) const {
        const int32_t* table = batch_.block_ids + batch_.first_blocks[tile.seq];
        const int64_t block = table[position / shape_.block_size];
        return cache_ + (block * shape_.block_size + position % shape_.block_size) * slot_size();
    }

    // The visible ones of the 64 positions from `position` on; heads from num_kv_heads on are the values'.
    HeadRows<Type> find(const AttentionTile& tile, int64_t position, int64_t first_visible, int64_t head) const {
        HeadRows<Type> rows{};
        const int64_t size = shape_.block_size, end = std::min(tile.end(), position + kKeys);
        for (int64_t first = position; first < end; first += size) {
            const Element* block = slot(tile, first) + head * shape_.head_dim;
            for (int64_t k = std::max<int64_t>(0, first_visible - first); k < std::min(size, end - first); ++k)
                rows[first - position + k] = block + k * slot_size();
        }
        return rows;
    }

    // Reads 64 positions' slots from end to end before their heads are picked out: the processor predicts a sequential
    // run and fetches it at memory speed, five times as fast as pieces of a head's size, prefetched or not.
    void sweep(const AttentionTile& tile, int64_t position) const {
        const int64_t count = (tile.end_head - tile.head) * shape_.head_dim, line = 64 / int64_t(sizeof(Element));
        uint32_t touched = 0;
        for (int64_t end = std::min(tile.end(), position + kKeys); position < end; ++position) {
            const Element* keys = slot(tile, position) + tile.head * shape_.head_dim;
            const Element* values = keys + shape_.num_kv_heads * shape_.head_dim;
            for (int64_t k = 0; k < count; k += line) touched |= reinterpret_cast<const uint16_t&>(keys[k]);
            for (int64_t k = 0; k < count; k += line) touched |= reinterpret_cast<const uint16_t&>(values[k]);
        }
        // Keeps the compiler from dropping the reads, whose result is not used.
        asm volatile("" ::"r"(touched));
    }

    // -> [num_units][64]
    static void pack_keys(const HeadRows<Type>& keys, int64_t num_units, uint32_t* packed) {
        for (int64_t first = 0; first < kKeys; first += 16)
            for (int64_t unit = 0; unit < num_units; unit += 16) {
                const uint32_t* rows[16];
                for (int64_t k = 0; k < 16; ++k) {
                    const auto* row = reinterpret_cast<const uint32_t*>(keys[first + k]);
                    rows[k] = row ? row + unit : nullptr;
                }
                transpose(rows, num_units - unit, packed + unit * kKeys + first, kKeys);
            }
    }

    // One row's scores -> its weights, 2^(score - peak); also updates the row's running peak, total and sums.
    // The keys from `begin` to `end`, counted from the first of these 64, are visible.
    template <bool kAreAllVisible>
    void weigh(float* scores, int64_t begin, int64_t end, Left* weights, float& peak, float* totals, float* sums,
               int64_t width) const {
        const Lanes hidden = splat(-std::numeric_limits<float>::infinity());
        const Lanes scale = splat(shape_.scale * 1.44269504f);
        Lanes scaled[4], largest = splat(peak);
        Mask visible[4];
        for (int i = 0; i < 4; ++i) {
            scaled[i] = load_floats(scores + 16 * i) * scale;
            if constexpr (!kAreAllVisible) {
                visible[i] = lanes_between(begin - 16 * i, end - 16 * i);
                scaled[i] = select(visible[i], scaled[i], hidden);
            }
            largest = larger(largest, scaled[i]);
        }
        const float new_peak = largest_of(largest);
        if (new_peak > peak) {
            if (peak > -std::numeric_limits<float>::infinity()) {
                const Lanes factor = exp2(splat(peak - new_peak));
                store_floats(totals, load_floats(totals) * factor);
                for (int64_t i = 0; i < width; i += 16) store_floats(sums + i, load_floats(sums + i) * factor);
            }
            peak = new_peak;
        }
        Lanes total = load_floats(totals);
        for (int i = 0; i < 4; ++i) {
            Lanes weight = exp2(scaled[i] - splat(peak));
            if constexpr (!kAreAllVisible) weight = select(visible[i], weight, splat(0.f));
            total = total + weight;
            Type::store_left(weights + 16 * i, weight);
        }
        store_floats(totals, total);
    }

    // sums += weights times values, in groups of at most 64 columns, so that a group's sums stay in registers.
    static void add_values(const HeadRows<Type>& values, const Left* weights, int64_t dim, uint32_t* packed,
                           float* sums, int64_t num_rows, int64_t width) {
        for (int64_t column = 0; column < width; column += 64) {
            auto add = [&]<int V>() {
                pack_values<V>(values, column, dim, packed);
                multiply_rows<Type, V>(weights, kKeys, packed, kKeys / Type::kPerUnit, sums + column, width, num_rows,
                                       true);
            };
            switch (std::min<int64_t>(64, width - column) / 16) {
                case 1: add.template operator()<1>(); break;
                case 2: add.template operator()<2>(); break;
                case 3: add.template operator()<3>(); break;
                default: add.template operator()<4>();
            }
        }
    }

    // Columns `column` .. `column` + 16 V - 1 -> [units of keys][16 V].
    template <int V>
    static void pack_values(const HeadRows<Type>& values, int64_t column, int64_t dim, uint32_t* packed) {
        for (int64_t unit = 0; unit < kKeys / Type::kPerUnit; ++unit)
            for (int v = 0; v < V; ++v) {
                const int64_t first = column + 16 * v;
                const Units units = Type::join(values.data() + unit * Type::kPerUnit, first, dim - first);
                store_units(packed + (unit * V + v) * 16, units);
            }
    }

    const AttentionBatch& batch_;
    const AttentionShape& shape_;
    const Element* cache_;
    int64_t num_threads_, shared_;
    std::vector<AttentionTile> tiles_;
};

}  // namespace tiergate
