// Reads an HTTP/1.1 answer piece by piece, as its bytes arrive.
#pragma once

#include <strings.h>

#include "common.h"

enum AnswerState { IN_HEAD, IN_LENGTH, IN_CHUNK_SIZE, IN_CHUNK, IN_CHUNK_END, IN_TRAILER, ENDED, BROKEN };

struct Answer {
    enum AnswerState state;
    int status;
    bool has_retry_after, is_local, closes;
    uint64_t left;       // bytes still to come of the content, or of the current HTTP chunk
    struct Buffer line;  // the part received so far of the head, or of a line around an HTTP chunk
};

struct Span {
    const char *bytes;
    size_t length;
};

static inline const char *header(const char *head, const char *name) {
    const char *found = strcasestr(head, name);
    return found ? found + strlen(name) : NULL;
}

static inline void answer_read_head(struct Answer *answer) {
    const char *head = answer->line.bytes, *length = header(head, "\r\ncontent-length:");
    const char *encoding = header(head, "\r\ntransfer-encoding: chunked"), *connection = header(head, "\r\nconnection: close");
    answer->status = strncmp(head, "HTTP/1.1 ", 9) == 0 ? atoi(head + 9) : 0;
    answer->has_retry_after = header(head, "\r\nretry-after:") != NULL;
    answer->is_local = header(head, "\r\nx-tiergate-limiter: local") != NULL;
    answer->closes = connection != NULL;
    answer->left = length ? strtoull(length, NULL, 10) : 0;
    answer->state = encoding ? IN_CHUNK_SIZE : answer->left > 0 ? IN_LENGTH : ENDED;
    if (answer->status < 200 || answer->status > 599 || (!encoding && !length)) answer->state = BROKEN;
}

// Appends to `line` up to and including `end`. Returns true once `end` was found.
static inline bool answer_read_until(struct Answer *answer, struct Span *unread, const char *end) {
    size_t end_length = strlen(end);
    while (unread->length > 0) {
        const char *newline = memchr(unread->bytes, '\n', unread->length);
        size_t taken = newline ? (size_t)(newline - unread->bytes) + 1 : unread->length;
        buffer_append(&answer->line, unread->bytes, taken);
        unread->bytes += taken, unread->length -= taken;
        size_t length = answer->line.length;
        if (length >= end_length && memcmp(answer->line.bytes + length - end_length, end, end_length) == 0) {
            buffer_append(&answer->line, "", 1);
            return true;
        }
    }
    return false;
}

static inline struct Span answer_take_content(struct Answer *answer, struct Span *unread) {
    struct Span content = {unread->bytes, unread->length < answer->left ? unread->length : answer->left};
    unread->bytes += content.length, unread->length -= content.length, answer->left -= content.length;
    if (answer->left == 0) answer->state = answer->state == IN_LENGTH ? ENDED : IN_CHUNK_END;
    return content;
}

// Returns the next content in `unread`, which is shortened by the bytes read. Empty if there is none, or after the end.
static inline struct Span answer_next(struct Answer *answer, struct Span *unread) {
    while (unread->length > 0 && answer->state < ENDED) {
        if (answer->state == IN_LENGTH || answer->state == IN_CHUNK) return answer_take_content(answer, unread);
        if (!answer_read_until(answer, unread, answer->state == IN_HEAD ? "\r\n\r\n" : "\r\n")) break;
        if (answer->state == IN_HEAD) {
            answer_read_head(answer);
        } else if (answer->state == IN_CHUNK_SIZE) {
            answer->left = strtoull(answer->line.bytes, NULL, 16);
            answer->state = answer->left > 0 ? IN_CHUNK : IN_TRAILER;
        } else if (answer->state == IN_CHUNK_END) {
            answer->state = IN_CHUNK_SIZE;
        } else {
            // A trailer's last line is empty.
            answer->state = answer->line.length == 3 ? ENDED : IN_TRAILER;
        }
        answer->line.length = 0;
    }
    return (struct Span){NULL, 0};
}

// Prepares for the next answer on the connection.
static inline void answer_reset(struct Answer *answer) {
    struct Buffer line = answer->line;
    line.length = 0;
    *answer = (struct Answer){.line = line};
}
