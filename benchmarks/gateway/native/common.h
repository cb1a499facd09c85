// Shared by upstream and load generator: time, fatal errors, open files, a growing buffer, timestamps in chunks.
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define NS_PER_MS 1000000LL
#define NS_PER_S 1000000000LL

// A stream's chunk carries its time of sending, as `"t=` and 19 digits: nanoseconds of CLOCK_MONOTONIC.
#define STAMP_MARK "\"t="
#define STAMP_DIGITS 19

static inline int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * NS_PER_S + time.tv_nsec;
}

static inline void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, errno ? strerror(errno) : "cannot go on");
    exit(1);
}

// Thousands of streams need as many descriptors; the soft limit is often 1,024.
static inline void raise_file_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0) die("getrlimit");
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0) die("setrlimit");
}

struct Buffer {
    char *bytes;
    size_t length, capacity;
};

static inline void buffer_append(struct Buffer *buffer, const char *bytes, size_t length) {
    if (buffer->length + length > buffer->capacity) {
        buffer->capacity = 2 * (buffer->length + length);
        buffer->bytes = realloc(buffer->bytes, buffer->capacity);
        if (!buffer->bytes) die("realloc");
    }
    memcpy(buffer->bytes + buffer->length, bytes, length);
    buffer->length += length;
}

static inline void buffer_drop(struct Buffer *buffer, size_t length) {
    memmove(buffer->bytes, buffer->bytes + length, buffer->length - length);
    buffer->length -= length;
}

static inline void buffer_free(struct Buffer *buffer) {
    free(buffer->bytes);
    *buffer = (struct Buffer){0};
}
