// All layers of a Llama-like decoder for one step's tokens, in one call: between two operations of a small model's
// step nothing else fits, neither an interpreter nor its lock.
#pragma once

#include "../kv_store/native.h"
#include "../linear/native.h"
#include "../paged_attention/native.h"
#include "../rms_norm/native.h"
#include "../rope/native.h"
#include "../silu_mul/native.h"

// The structs are mirrored, field for field, in native.py.
struct Matrix {
    const uint32_t* packed;
    const void* bias;
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
    AttentionBatch batch;  // whose window is the layers' own instead
};

// x += y, [count] elements.
template <class Type>
void add(typename Type::Element* x, const typename Type::Element* y, int64_t count, int64_t num_threads) {
    parallel_rows(num_threads, count, 16384, [&](int64_t first, int64_t end) {
        for (int64_t i = first; i < end; i += 16) {
            const __mmask16 mask = first_lanes(end - i);
            Type::store(x + i, mask, _mm512_add_ps(Type::load(x + i, mask), Type::load(y + i, mask)));
        }
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
          x_(static_cast<Element*>(step.x)),
          normed_(size_t(step.num_tokens * shape.hidden_size)),
          heads_(size_t(step.num_tokens * num_slices_ * shape.attention.head_dim)),
          mixed_(size_t(step.num_tokens * shape.attention.num_heads * shape.attention.head_dim)),
          gate_up_(size_t(step.num_tokens * 2 * shape.intermediate_size)),
          wide_(size_t(step.num_tokens * shape.intermediate_size)) {}

    void run(const Layer& layer) {
        const int64_t hidden = shape_.hidden_size, wide = shape_.intermediate_size;
        const int64_t dim = shape_.attention.head_dim;
        normalize(layer.attention_norm);
        project(normed_.data(), layer.qkv, heads_.data(), num_slices_ * dim, hidden);
        attend(layer);
        project(mixed_.data(), layer.o, normed_.data(), hidden, shape_.attention.num_heads * dim);
        add<Type>(x_, normed_.data(), step_.num_tokens * hidden, num_threads_);
        normalize(layer.mlp_norm);
        project(normed_.data(), layer.gate_up, gate_up_.data(), 2 * wide, hidden);
        silu_mul<Type>(gate_up_.data(), wide_.data(), step_.num_tokens, wide, num_threads_);
        project(wide_.data(), layer.down, normed_.data(), hidden, wide);
        add<Type>(x_, normed_.data(), step_.num_tokens * hidden, num_threads_);
    }

private:
    void normalize(const void* weight) {
        rms_norm<Type>(x_, shape_.hidden_size, static_cast<const Element*>(weight), normed_.data(), shape_.hidden_size,
                       step_.num_tokens, 1, shape_.hidden_size, shape_.eps, num_threads_);
    }

    void project(const Element* x, const Matrix& matrix, Element* y, int64_t out_size, int64_t in_size) {
        linear<Type>(x, matrix.packed, static_cast<const Element*>(matrix.bias), y, step_.num_tokens, out_size, in_size,
                     num_threads_);
    }

    void attend(const Layer& layer) {
        const AttentionShape& shape = shape_.attention;
        const int64_t dim = shape.head_dim, stride = num_slices_ * dim;
        Element* keys = heads_.data() + shape.num_heads * dim;
        normalize_heads(layer.q_norm, heads_.data(), shape.num_heads);
        normalize_heads(layer.k_norm, keys, shape.num_kv_heads);
        rope<Type>(heads_.data(), stride, static_cast<const Element*>(step_.cos),
                   static_cast<const Element*>(step_.sin), step_.num_tokens, shape.num_heads + shape.num_kv_heads,
                   dim, num_threads_);
        constexpr int64_t kBytes = sizeof(Element);
        store_kv(reinterpret_cast<const char*>(keys), stride * kBytes, static_cast<char*>(layer.cache), step_.slots,
                 step_.num_tokens, 2 * shape.num_kv_heads * dim * kBytes, num_threads_);
        AttentionBatch batch = step_.batch;
        batch.window = layer.window;
        Attention<Type>(batch, shape, static_cast<const Element*>(layer.cache), num_threads_)
            .run(heads_.data(), stride, mixed_.data());
    }

    void normalize_heads(const void* weight, Element* heads, int64_t num_heads) {
        const int64_t dim = shape_.attention.head_dim, stride = num_slices_ * dim;
        if (weight)
            rms_norm<Type>(heads, stride, static_cast<const Element*>(weight), heads, stride, step_.num_tokens,
                           num_heads, dim, shape_.eps, num_threads_);
    }

    const DecoderShape& shape_;
    const Step& step_;
    int64_t num_threads_, num_slices_;
    Element* x_;
    std::vector<Element> normed_, heads_, mixed_, gate_up_, wide_;
};

template <class Type>
void run_decoder(const DecoderShape& shape, const Layer* layers, const Step& step, int64_t num_threads) {
    Decoder<Type> decoder(shape, step, num_threads);
    for (int64_t i = 0; i < shape.num_layers; ++i) decoder.run(layers[i]);
}
