// Measured times. All are kept, so that percentiles are exact and time windows can be selected afterwards.
#pragma once

#include "common.h"

struct Sample {
    int64_t at_ns, value_ns;
};

struct Samples {
    struct Sample *items;
    size_t count, capacity;
};

static inline void samples_add(struct Samples *samples, int64_t at_ns, int64_t value_ns) {
    if (samples->count == samples->capacity) {
        samples->capacity = samples->capacity ? 2 * samples->capacity : 1024;
        samples->items = realloc(samples->items, samples->capacity * sizeof *samples->items);
        if (!samples->items) die("realloc");
    }
    samples->items[samples->count++] = (struct Sample){at_ns, value_ns};
}

static inline int compare_times(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

// Prints `{"count":..,"p50_ms":..,"p99_ms":..,"max_ms":..}` for the samples taken in [from, until).
static inline void samples_print(const struct Samples *samples, int64_t from_ns, int64_t until_ns) {
    int64_t *values = malloc((samples->count + 1) * sizeof *values);
    if (!values) die("malloc");
    size_t count = 0;
    for (size_t i = 0; i < samples->count; ++i)
        if (samples->items[i].at_ns >= from_ns && samples->items[i].at_ns < until_ns)
            values[count++] = samples->items[i].value_ns;
    if (count == 0) {
        printf("{\"count\":0,\"p50_ms\":null,\"p99_ms\":null,\"max_ms\":null}");
    } else {
        qsort(values, count, sizeof *values, compare_times);
        printf("{\"count\":%zu,\"p50_ms\":%.4f,\"p99_ms\":%.4f,\"max_ms\":%.4f}", count, (double)values[(count - 1) / 2] / NS_PER_MS,
               (double)values[(count - 1) * 99 / 100] / NS_PER_MS, (double)values[count - 1] / NS_PER_MS);
    }
    free(values);
}
