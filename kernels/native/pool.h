// Threads that share an operation's chunks. Chunks are claimed one at a time, so that a thread that the system holds up
// delays one chunk and not a fixed share of the work, as OpenMP's would. On machines where an HTTP server runs on the
// same cores, such delays are the rule and not the exception.
#pragma once

#include <immintrin.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace tiergate {

class Pool {
public:
    static Pool& instance() {
        // Never destroyed: at exit its threads may still be waiting.
        static Pool* pool = new Pool();
        return *pool;
    }

    // Runs work(i) for i in 0 .. num_chunks - 1 on up to `num_threads` threads, including the caller. If work throws,
    // there was no memory: the other chunks are worked on nevertheless, and then std::bad_alloc is thrown.
    template <class Work>
    void run(int64_t num_threads, int64_t num_chunks, const Work& work) {
        std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
        // Another engine of this process may be using the threads.
        if (num_threads <= 1 || num_chunks <= 1 || !lock.try_lock()) {
            for (int64_t i = 0; i < num_chunks; ++i) work(i);
            return;
        }
        start_threads(num_threads - 1);
        const uint32_t round = round_.load() + 1;
        // Must come first: from here on no claim of the last round succeeds, whatever it has read of this one.
        next_.store(uint64_t(round) << 32 | kNoChunk);
        call_.store([](const void* context, int64_t i) { (*static_cast<const Work*>(context))(i); });
        context_.store(&work);
        num_chunks_.store(num_chunks);
        num_open_.store(num_chunks);
        max_threads_.store(num_threads);
        next_.store(uint64_t(round) << 32);
        round_.store(round);
        round_.notify_all();
        claim(round);
        for (int spins = 0; num_open_.load(std::memory_order_acquire) > 0; ++spins) {
            if (spins < kSpins) _mm_pause();
            else sched_yield();
        }
        if (has_failed_.exchange(false)) throw std::bad_alloc();
    }

private:
    using Call = void (*)(const void*, int64_t);
    static constexpr int kSpins = 4000;
    static constexpr uint32_t kNoChunk = 0xffffffff;

    void start_threads(int64_t count) {
        try {
            while (int64_t(threads_.size()) < count) start_thread();
        } catch (const std::system_error&) {
            // The system gives no more threads: the existing ones do the work.
        }
    }

    void start_thread() {
        const int64_t index = int64_t(threads_.size()) + 1;
        threads_.emplace_back([this, index, seen = round_.load()]() mutable {
            for (;;) {
                // Operations follow each other within microseconds; only between steps is it worth sleeping.
                for (int spins = 0; round_.load() == seen && spins < kSpins; ++spins) _mm_pause();
                round_.wait(seen);
                seen = round_.load();
                if (index < max_threads_.load()) claim(seen);
            }
        });
        threads_.back().detach();
    }

    // A claim names its round: a late thread finds the round over and touches nothing of the next one. A claimed chunk
    // belongs to the call that was read before, since `run` ends the old round before it writes any of the new one.
    void claim(uint32_t round) {
        const Call call = call_.load();
        const void* context = context_.load();
        const int64_t num_chunks = num_chunks_.load();
        uint64_t next = next_.load();
        while (uint32_t(next >> 32) == round && int64_t(next & 0xffffffff) < num_chunks) {
            if (!next_.compare_exchange_weak(next, next + 1)) continue;
            try {
                call(context, int64_t(next & 0xffffffff));
            } catch (...) {
                has_failed_.store(true);
            }
            num_open_.fetch_sub(1, std::memory_order_release);
            next = next_.load();
        }
    }

    std::mutex mutex_;
    std::vector<std::thread> threads_;
    std::atomic<Call> call_{nullptr};
    std::atomic<const void*> context_{nullptr};
    std::atomic<int64_t> num_chunks_{0}, num_open_{0}, max_threads_{0};
    std::atomic<uint64_t> next_{0};
    std::atomic<uint32_t> round_{0};
    std::atomic<bool> has_failed_{false};
};

inline void parallel_for(int64_t num_threads, int64_t num_chunks, const auto& work) {
    Pool::instance().run(num_threads, num_chunks, work);
}

// Rows in chunks of about `rows_per_chunk`: work(first, end).
inline void parallel_rows(int64_t num_threads, int64_t num_rows, int64_t rows_per_chunk, const auto& work) {
    const int64_t num_chunks = (num_rows + rows_per_chunk - 1) / rows_per_chunk;
    parallel_for(num_threads, num_chunks, [&](int64_t i) {
        const int64_t first = i * rows_per_chunk;
        work(first, first + rows_per_chunk < num_rows ? first + rows_per_chunk : num_rows);
    });
}

}  // namespace tiergate
