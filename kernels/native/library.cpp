// The functions that Python calls: one per operation, with C's calling convention, mostly for float32 or bfloat16. Each
// returns whether it found the memory that it needs; if not, its results are undefined.
#include "../decoder_layers/native.h"
#include "../sampling/native.h"

#include <cstddef>
#include <string_view>
#include <vector>

using namespace tiergate;

template <class Type>
static const typename Type::Element* in(const void* from) {
    return static_cast<const typename Type::Element*>(from);
}

template <class Type>
static typename Type::Element* out(void* to) {
    return static_cast<typename Type::Element*>(to);
}

static int64_t has_memory(const auto& work) {
    try {
        work();
        return 1;
    } catch (const std::exception&) {
        return 0;
    }
}

// Calls work with the type that the flag stands for.
static int64_t with_type(int64_t is_bfloat16, const auto& work) {
    return has_memory([&] {
        if (is_bfloat16) work.template operator()<BFloat16>();
        else work.template operator()<Float32>();
    });
}

// Each struct that Python mirrors: its name, its size and where its fields begin.
struct Layout {
    const char* name;
    std::vector<int64_t> numbers;
};

static const std::vector<Layout>& layouts() {
#define AT(field) int64_t(offsetof(Struct, field))
    static const std::vector<Layout> all = {
        [] {
            using Struct = AttentionBatch;
            return Layout{"AttentionBatch",
                          {sizeof(Struct), AT(num_seqs), AT(starts), AT(context_lens), AT(first_blocks), AT(block_ids),
                           AT(window), AT(max_threads)}};
        }(),
        [] {
            using Struct = AttentionShape;
            return Layout{"AttentionShape",
                          {sizeof(Struct), AT(num_heads), AT(num_kv_heads), AT(head_dim), AT(block_size), AT(scale)}};
        }(),
        [] {
            using Struct = SamplingParameters;
            return Layout{"SamplingParameters",
                          {sizeof(Struct), AT(temperature), AT(top_k), AT(top_p), AT(min_p), AT(uniform)}};
        }(),
        [] {
            using Struct = LoraWork;
            return Layout{"LoraWork",
                          {sizeof(Struct), AT(rows), AT(pages), AT(shrink), AT(expand), AT(num_rows), AT(num_shrink),
                           AT(num_expand), AT(num_places)}};
        }(),
        [] {
            using Struct = LoraMatrix;
            return Layout{"LoraMatrix",
                          {sizeof(Struct), AT(a), AT(b), AT(ranks), AT(num_slices), AT(offsets)}};
        }(),
        [] {
            using Struct = Matrix;
            return Layout{"Matrix", {sizeof(Struct), AT(packed), AT(bias), AT(lora), AT(is_deterministic)}};
        }(),
        [] {
            using Struct = Layer;
            return Layout{"Layer",
                          {sizeof(Struct), AT(attention_norm), AT(q_norm), AT(k_norm), AT(mlp_norm), AT(qkv), AT(o),
                           AT(gate_up), AT(down), AT(cache), AT(window)}};
        }(),
        [] {
            using Struct = DecoderShape;
            return Layout{"DecoderShape",
                          {sizeof(Struct), AT(num_layers), AT(hidden_size), AT(intermediate_size), AT(eps),
                           AT(attention)}};
        }(),
        [] {
            using Struct = Step;
            return Layout{"Step",
                          {sizeof(Struct), AT(num_tokens), AT(x), AT(cos), AT(sin), AT(slots), AT(batch), AT(rows),
                           AT(num_rows), AT(lora), AT(rows_lora)}};
        }(),
    };
#undef AT
    return all;
}

// The library exports only the functions that Python calls by name.
#pragma GCC visibility push(default)
extern "C" {

int64_t panel_size() { return kPanel; }

// Writes the size of a struct and where its fields begin, in order. Returns 0 if no such struct has `count` numbers.
int64_t layout(const char* name, int64_t* numbers, int64_t count) {
    for (const Layout& each : layouts()) {
        if (std::string_view(each.name) != name || int64_t(each.numbers.size()) != count) continue;
        std::copy_n(each.numbers.data(), count, numbers);
        return 1;
    }
    return 0;
}

int64_t pack_weight(int64_t is_bfloat16, const void* weight, int64_t out_size, int64_t in_size, void* packed,
                    int64_t num_threads) {
    return with_type(is_bfloat16, [&]<class T>() {
        pack_weight<T>(in<T>(weight), out_size, in_size, static_cast<uint32_t*>(packed), num_threads);
    });
}

int64_t linear(int64_t is_bfloat16, const void* x, const void* packed, const void* bias, void* y, int64_t num_rows,
               int64_t out_size, int64_t in_size, int64_t is_deterministic, int64_t num_threads) {
    return with_type(is_bfloat16, [&]<class T>() {
        linear<T>(in<T>(x), static_cast<const uint32_t*>(packed), in<T>(bias), out<T>(y), num_rows, out_size, in_size,
                  is_deterministic, num_threads);
    });
}

int64_t paged_attention(int64_t is_bfloat16, const void* q, int64_t q_stride, const void* cache, void* result,
                        const AttentionBatch* batch, const AttentionShape* shape, int64_t num_threads) {
    return with_type(is_bfloat16, [&]<class T>() {
        Attention<T>(*batch, *shape, in<T>(cache), num_threads).run(in<T>(q), q_stride, out<T>(result));
    });
}

int64_t rms_norm(int64_t is_bfloat16, const void* x, int64_t x_stride, const void* weight, void* result,
                 int64_t num_outer, int64_t num_inner, int64_t size, float eps, int64_t num_threads) {
    return with_type(is_bfloat16, [&]<class T>() {
        rms_norm<T>(in<T>(x), x_stride, in<T>(weight), out<T>(result), num_inner * size, num_outer, num_inner, size,
                    eps, num_threads);
    });
}

int64_t rope(int64_t is_bfloat16, void* x, int64_t x_stride, const void* cos, const void* sin, int64_t num_tokens,
             int64_t num_heads, int64_t head_dim, int64_t num_threads) {
    return with_type(is_bfloat16, [&]<class T>() {
        rope<T>(out<T>(x), x_stride, in<T>(cos), in<T>(sin), num_tokens, num_heads, head_dim, num_threads);
    });
}

int64_t silu_mul(int64_t is_bfloat16, const void* gate_up, void* result, int64_t num_rows, int64_t size,
                 int64_t num_threads) {
    return with_type(is_bfloat16, [&]<class T>() {
        silu_mul<T>(in<T>(gate_up), out<T>(result), num_rows, size, num_threads);
    });
}

int64_t sample(const float* logits, int64_t num_rows, int64_t vocab, const SamplingParameters* parameters, int64_t* ids,
               int64_t num_threads) {
    return has_memory([&] { sample(logits, num_rows, vocab, *parameters, ids, num_threads); });
}

int64_t add_lora(int64_t is_bfloat16, const LoraWork* work, const LoraMatrix* pages, const void* x, void* y,
                 int64_t in_size, int64_t out_size, int64_t num_threads) {
    return with_type(is_bfloat16, [&]<class T>() {
        add_lora<T>(*work, *pages, in<T>(x), out<T>(y), in_size, out_size, num_threads);
    });
}

int64_t run_layers(int64_t is_bfloat16, const DecoderShape* shape, const Layer* layers, const Step* step,
                   int64_t num_threads) {
    return with_type(is_bfloat16, [&]<class T>() { run_decoder<T>(*shape, layers, *step, num_threads); });
}

}  // extern "C"
#pragma GCC visibility pop
