// All layers of a Llama-like decoder for one step's tokens, in one call: the operations of a small model's step are too
// short to have an interpreter, or its lock, between them.
#pragma once

#include <algorithm>
#include <memory>

#include "../kv_store/native.h"
#include "../linear/native.h"
#include "../lora/native.h"
#include "../paged_attention/native.h"
#include "../rms_norm/native.h"
#include "../rope/native.h"
#include "../silu_mul/native.h"

namespace tiergate {

// The structs are mirrored, field for field, in native.py.
struct Matrix {
    const uint32_t* packed;
    const void* bias;
    LoraMatrix lora;
    int64_t is_deterministic;
};

struct Layer {
    const void *attention_norm, *q_norm, *k_norm, *mlp_norm;
    Matrix qkv, o, gate_up, down;
    void* cache;
    int64_t window;
};

struct DecoderShape {
    int64_t num_layers, hidden_size, intermediate_size;
    float eps;
    AttentionShape attention;
};

struct Step {
    int64_t num_tokens;
    void* x;
    const void *cos, *sin;
    const int64_t* slots;
    AttentionBatch batch;  // its window is replaced by each layer's own
    const int64_t* rows;   // ascending: the rows whose last state is wanted; not read if these are all
    int64_t num_rows;
    LoraWork lora, rows_lora;  // of all tokens; of `rows`, by position in it
};

// x += y, [count] elements.
template <class Type>
void add(typename Type::Element* x, const typename Type::Element* y, int64_t count, int64_t num_threads) {
    parallel_rows(num_threads, count, 16384, [&](int64_t first, int64_t end) {
        for (int64_t i = first; i < end; i += 16)
            Type::store(x + i, end - i, Type::load(x + i, end - i) + Type::load(y + i, end - i));
    });
}

template <class Type>
class Decoder {
    using Element = typename Type::Element;

public:
    Decoder(const DecoderShape& shape, const Step& step, int64_t num_threads)
        : shape_(shape),
          step_(step),
          num_threads_(num_threads),
          num_slices_(shape.attention.num_heads + 2 * shape.attention.num_kv_heads),
          num_rows_(step.num_tokens),
          lora_(&step.lora),
          x_(static_cast<Element*>(step.x)),
          normed_(rows_of(shape.hidden_size)),
          heads_(rows_of(num_slices_ * shape.attention.head_dim)),
          mixed_(rows_of(shape.attention.num_heads * shape.attention.head_dim)),
          gate_up_(rows_of(2 * shape.intermediate_size)),
          wide_(rows_of(shape.intermediate_size)) {}

    // x becomes the state after the layers, in its first num_rows rows.
    void run(const Layer* layers) {
        for (int64_t i = 0; i < shape_.num_layers; ++i) {
            store(layers[i]);
            const bool is_last = i == shape_.num_layers - 1;
            if (is_last && step_.num_rows == 0) return;
            attend(layers[i]);
            // After the last attention, the wanted rows do not depend on any other row.
            if (is_last && step_.num_rows < step_.num_tokens) keep_wanted();
            finish(layers[i]);
        }
    }

private:
    // The part of a layer after attention.
    void finish(const Layer& layer) {
        const int64_t hidden = shape_.hidden_size, wide = shape_.intermediate_size;
        const int64_t dim = shape_.attention.head_dim;
        project(mixed_.get(), layer.o, normed_.get(), hidden, shape_.attention.num_heads * dim);
        add<Type>(x_, normed_.get(), num_rows_ * hidden, num_threads_);
        normalize(layer.mlp_norm);
        project(normed_.get(), layer.gate_up, gate_up_.get(), 2 * wide, hidden);
        silu_mul<Type>(gate_up_.get(), wide_.get(), num_rows_, wide, num_threads_);
        project(wide_.get(), layer.down, normed_.get(), hidden, wide);
        add<Type>(x_, normed_.get(), num_rows_ * hidden, num_threads_);
    }

    std::unique_ptr<Element[]> rows_of(int64_t size) const {
        return std::make_unique_for_overwrite<Element[]>(size_t(step_.num_tokens * size));
    }

    void keep_wanted() {
        num_rows_ = step_.num_rows;
        lora_ = &step_.rows_lora;
        for (int64_t i = 0; i < num_rows_; ++i) {
            move_row(x_, shape_.hidden_size, step_.rows[i], i);
            move_row(mixed_.get(), shape_.attention.num_heads * shape_.attention.head_dim, step_.rows[i], i);
        }
    }

    static void move_row(Element* rows, int64_t size, int64_t from, int64_t to) {
        if (from != to) std::copy_n(rows + from * size, size, rows + to * size);
    }

    void normalize(const void* weight) {
        rms_norm<Type>(x_, shape_.hidden_size, static_cast<const Element*>(weight), normed_.get(), shape_.hidden_size,
                       num_rows_, 1, shape_.hidden_size, shape_.eps, num_threads_);
    }

    void project(const Element* x, const Matrix& matrix, Element* y, int64_t out_size, int64_t in_size) {
        linear<Type>(x, matrix.packed, static_cast<const Element*>(matrix.bias), y, num_rows_, out_size, in_size,
                     matrix.is_deterministic, num_threads_);
        add_lora<Type>(*lora_, matrix.lora, x, y, in_size, out_size, num_threads_);
    }

    // Computes queries, keys and values into heads_, and stores keys and values in their slots.
    void store(const Layer& layer) {
        const AttentionShape& shape = shape_.attention;
        const int64_t stride = num_slices_ * shape.head_dim;
        Element* keys = heads_.get() + shape.num_heads * shape.head_dim;
        normalize(layer.attention_norm);
        project(normed_.get(), layer.qkv, heads_.get(), stride, shape_.hidden_size);
        normalize_heads(layer.q_norm, heads_.get(), shape.num_heads);
        normalize_heads(layer.k_norm, keys, shape.num_kv_heads);
        rope<Type>(heads_.get(), stride, static_cast<const Element*>(step_.cos),
                   static_cast<const Element*>(step_.sin), step_.num_tokens, shape.num_heads + shape.num_kv_heads,
                   shape.head_dim, num_threads_);
        constexpr int64_t kBytes = sizeof(Element);
        store_kv(reinterpret_cast<const char*>(keys), stride * kBytes, static_cast<char*>(layer.cache), step_.slots,
                 step_.num_tokens, 2 * shape.num_kv_heads * shape.head_dim * kBytes, num_threads_);
    }

    void attend(const Layer& layer) {
        AttentionBatch batch = step_.batch;
        batch.window = layer.window;
        Attention<Type>(batch, shape_.attention, static_cast<const Element*>(layer.cache), num_threads_)
            .run(heads_.get(), num_slices_ * shape_.attention.head_dim, mixed_.get());
    }

    void normalize_heads(const void* weight, Element* heads, int64_t num_heads) {
        const int64_t dim = shape_.attention.head_dim, stride = num_slices_ * dim;
        if (weight)
            rms_norm<Type>(heads, stride, static_cast<const Element*>(weight), heads, stride, step_.num_tokens,
                           num_heads, dim, shape_.eps, num_threads_);
    }

    const DecoderShape& shape_;
    const Step& step_;
    int64_t num_threads_, num_slices_, num_rows_;
    const LoraWork* lora_;
    Element* x_;
    // Not initialised, which would be a pass over memory for nothing.
    std::unique_ptr<Element[]> normed_, heads_, mixed_, gate_up_, wide_;
};

template <class Type>
void run_decoder(const DecoderShape& shape, const Layer* layers, const Step& step, int64_t num_threads) {
    Decoder<Type>(shape, step, num_threads).run(layers);
}

}  // namespace tiergate
