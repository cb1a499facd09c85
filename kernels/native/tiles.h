// AMX's tiles: 8 of at most 16 rows of 64 bytes, and the product of bfloat16 pairs. A thread configures its tiles before
// it uses them and releases them afterwards, so that the system need not save 8 KiB at every context switch.
//
// Two builds have tiles: one for processors with AMX, and one with TIERGATE_EMULATED_TILES for tests on any other. In
// the latter, tiles are plain C++ with the architecture's semantics, and a use that would fault there ends the process.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__AMX_BF16__) || defined(TIERGATE_EMULATED_TILES)
#define TIERGATE_TILES
#endif

namespace tiergate {

constexpr int kTiles = 8;
constexpr int64_t kTileRows = 16, kTileBytes = 64;

// The operand of LDTILECFG. A tile of no rows must have no bytes.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

#ifdef TIERGATE_EMULATED_TILES

// As Intel's Software Developer's Manual, volume 2, defines tiles for palette 1.
class EmulatedTiles {
public:
    static EmulatedTiles& of_this_thread() {
        thread_local EmulatedTiles tiles;
        return tiles;
    }

    void configure(const TileShapes& shapes) {
        require(shapes.palette == 1 && shapes.start_row == 0, "palette");
        for (uint8_t byte : shapes.reserved) require(byte == 0, "reserved bytes");
        for (int i = 0; i < 16; ++i) {
            require(i < kTiles || (!shapes.rows[i] && !shapes.row_bytes[i]), "tiles beyond the last");
            require(shapes.rows[i] <= kTileRows && shapes.row_bytes[i] <= kTileBytes, "a tile's size");
            require(!shapes.rows[i] == !shapes.row_bytes[i], "rows without bytes");
        }
        shapes_ = shapes;
        std::memset(tiles_, 0, sizeof(tiles_));
        is_configured_ = true;
    }

    void release() { is_configured_ = false; }

    void zero(int tile) {
        require_shape(tile);
        std::memset(tiles_[tile], 0, sizeof(tiles_[tile]));
    }

    // Bytes and rows beyond the tile's shape become zero.
    void load(int tile, const void* from, int64_t stride) {
        zero(tile);
        for (int64_t row = 0; row < shapes_.rows[tile]; ++row)
            std::memcpy(tiles_[tile][row], static_cast<const char*>(from) + row * stride, shapes_.row_bytes[tile]);
    }

    void store(int tile, void* to, int64_t stride) const {
        require_shape(tile);
        for (int64_t row = 0; row < shapes_.rows[tile]; ++row)
            std::memcpy(static_cast<char*>(to) + row * stride, tiles_[tile][row], shapes_.row_bytes[tile]);
    }

    // TDPBF16PS. The even and the odd numbers of a row are summed separately, from zero and in their order; the two
    // sums are added, and then added to the tile.
    [[gnu::noinline]] void multiply_add(int sums, int left, int right) {
        for (int tile : {sums, left, right}) require_shape(tile);
        require(sums != left && sums != right && left != right, "one tile twice");
        require(shapes_.rows[sums] == shapes_.rows[left], "rows of the sums and the left side");
        require(shapes_.row_bytes[sums] == shapes_.row_bytes[right], "columns of the sums and the right side");
        require(shapes_.row_bytes[left] == 4 * shapes_.rows[right], "units of the left and the right side");
        require(shapes_.row_bytes[sums] % 4 == 0, "whole numbers");
        // The processor rounds to nearest even and treats denormal inputs and results as zero, whatever MXCSR says.
        const RoundingMode mode(0x9fc0);
        for (int64_t row = 0; row < shapes_.rows[sums]; ++row) {
            float pairs[2][kTileBytes / 4] = {};
            for (int64_t unit = 0; unit < shapes_.rows[right]; ++unit)
                for (int64_t i = 0; i < 2; ++i) {
                    const float factor = number(tiles_[left][row], 2 * unit + i);
                    for (int64_t column = 0; column < shapes_.row_bytes[sums] / 4; ++column)
                        pairs[i][column] =
                            std::fma(factor, number(tiles_[right][unit], 2 * column + i), pairs[i][column]);
                }
            for (int64_t column = 0; column < shapes_.row_bytes[sums] / 4; ++column) {
                float sum;
                std::memcpy(&sum, tiles_[sums][row] + 4 * column, 4);
                sum += pairs[0][column] + pairs[1][column];
                std::memcpy(tiles_[sums][row] + 4 * column, &sum, 4);
            }
        }
    }

private:
    // The compiler moves no reading or writing of memory past a change of the mode.
    struct RoundingMode {
        explicit RoundingMode(uint32_t mode) : before(_mm_getcsr()) { set(mode); }
        ~RoundingMode() { set(before); }
        static void set(uint32_t mode) { asm volatile("ldmxcsr %0" ::"m"(mode) : "memory"); }
        uint32_t before;
    };

    static void require(bool holds, const char* what) {
        if (holds) return;
        std::fprintf(stderr, "tiles: a processor would fault: %s\n", what);
        std::abort();
    }

    void require_shape(int tile) const {
        require(is_configured_, "not configured");
        require(shapes_.rows[tile] > 0, "a tile without a shape");
    }

    static float number(const char* row, int64_t index) {
        uint32_t bits = 0;
        std::memcpy(reinterpret_cast<char*>(&bits) + 2, row + 2 * index, 2);
        float value;
        std::memcpy(&value, &bits, 4);
        return value;
    }

    TileShapes shapes_;
    char tiles_[kTiles][kTileRows][kTileBytes];
    bool is_configured_ = false;
};

inline void configure_tiles(const TileShapes& shapes) { EmulatedTiles::of_this_thread().configure(shapes); }
inline void release_tiles() { EmulatedTiles::of_this_thread().release(); }
template <int kTile>
void zero_tile() {
    EmulatedTiles::of_this_thread().zero(kTile);
}
template <int kTile>
void load_tile(const void* from, int64_t stride) {
    EmulatedTiles::of_this_thread().load(kTile, from, stride);
}
template <int kTile>
void store_tile(void* to, int64_t stride) {
    EmulatedTiles::of_this_thread().store(kTile, to, stride);
}
template <int kSums, int kLeft, int kRight>
void multiply_tiles() {
    EmulatedTiles::of_this_thread().multiply_add(kSums, kLeft, kRight);
}

#elif defined(TIERGATE_TILES)

// Not the compiler's intrinsics: GCC's (12 at least) do not say that a load of a tile reads memory, nor that a
// configuration is more than 8 bytes, so stores before them may be dropped or moved behind them.
inline void configure_tiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
inline void release_tiles() { asm volatile("tilerelease" ::: "memory"); }
template <int kTile>
[[gnu::always_inline]] inline void zero_tile() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
// stride: bytes from one row to the next.
template <int kTile>
[[gnu::always_inline]] inline void load_tile(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void store_tile(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}
// sums += left right, of bfloat16: left [rows][2 units], right [units][columns][2].
template <int kSums, int kLeft, int kRight>
[[gnu::always_inline]] inline void multiply_tiles() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kLeft), "i"(kRight));
}

#endif

}  // namespace tiergate
