// A model server that costs next to nothing: prepared answers, one thread, epoll.
//
//   upstream --port N [--dialect openai|tiergate] [--send-buffer BYTES]
//
// The request says how it is answered, by `[N chunks, M ms]` anywhere in its body. With "stream": true, N chunks are
// sent, the first at once and then one every M ms; with 0 ms, as fast as the sockets take them, one chunk per write,
// with the streams taking turns. Any other POST gets one whole answer of 370 bytes after M ms. The dialect `tiergate`
// adds the reports of our own workers: GET /load, GET /ready, the tokens of each event and the accounting
// (protocol/load.py, protocol/accounting.py).

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common.h"

#define MAX_EVENTS 1024
#define MAX_UNSENT (4 << 20)
#define WHOLE_BYTES 370
#define WHOLE_TOKENS 16
// A timer wheel with one slot per millisecond, longer than any pause between two chunks.
#define NUM_SLOTS 16384

struct Links {
    struct Links *previous, *next;
};

struct Connection {
    struct Links links;  // first, so that a link casts to its connection; in a wheel slot, in `eager`, or unlinked
    int fd;
    bool is_busy, is_streaming, wants_usage, is_watching_writes;
    int num_chunks, num_sent, pause_ms;
    int64_t due_ms;
    struct Buffer unread, unsent;
};

static bool is_ours;
static int poller, send_buffer;
static int64_t wheel_ms;
static struct Links wheel[NUM_SLOTS], eager;

static char whole[1024], chunk[1024], models[512], load_report[1024];
static size_t whole_length, chunk_length, stamp_offset;
static const char kStreamHead[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
static const char kNotFound[] = "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
#define DETAILS "\"prompt_tokens_details\":{\"cached_tokens\":0}"
#define CHUNK_START "\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"bench\""

// --- Prepared answers ------------------------------------------------------------------------------------------------

static int accounting(char *to, size_t size, int completion_tokens) {
    return snprintf(to, size,
                    "{\"prompt_tokens\":20,\"cached_prompt_tokens\":0,\"completion_tokens\":%d,\"queue_ms\":0.0,"
                    "\"compute_ms\":1.0,\"worker_id\":\"bench\",\"finish_reason\":\"length\"}",
                    completion_tokens);
}

static void prepare_whole(void) {
    static const char kStart[] =
        "{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"bench\","
        "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"";
    static const char kEnd[] =
        "\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":16,"
        "\"total_tokens\":36," DETAILS "}}";
    char body[WHOLE_BYTES + 1], figures[256], header[320] = "";
    memset(body, 'a', WHOLE_BYTES);
    memcpy(body, kStart, sizeof kStart - 1);
    memcpy(body + WHOLE_BYTES - (sizeof kEnd - 1), kEnd, sizeof kEnd - 1);
    body[WHOLE_BYTES] = 0;
    accounting(figures, sizeof figures, WHOLE_TOKENS);
    if (is_ours) snprintf(header, sizeof header, "x-tiergate-accounting: %s\r\n", figures);
    whole_length = (size_t)snprintf(whole, sizeof whole,
                                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s",
                                    header, WHOLE_BYTES, body);
}

static void prepare_chunk(void) {
    char event[512];
    int length = snprintf(event, sizeof event,
                          "%sdata: {" CHUNK_START ",\"choices\":[{\"index\":0,\"delta\":{\"content\":" STAMP_MARK
                          "%0*d\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
                          is_ours ? ": tokens 7\n" : "", STAMP_DIGITS, 0);
    chunk_length = (size_t)snprintf(chunk, sizeof chunk, "%x\r\n%s\r\n", (unsigned)length, event);
    stamp_offset = (size_t)(strstr(chunk, STAMP_MARK) - chunk) + strlen(STAMP_MARK);
}

static void prepare_get(char *to, size_t size, const char *json) {
    snprintf(to, size, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(json), json);
}

static void prepare_answers(void) {
    prepare_whole();
    prepare_chunk();
    prepare_get(models, sizeof models,
                "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\",\"created\":1,\"owned_by\":\"bench\"}]}");
    prepare_get(load_report, sizeof load_report,
                "{\"schema_version\":1,\"worker_id\":\"bench\",\"model\":\"bench\",\"model_version\":\"bench\","
                "\"pool\":null,\"adapters\":[],\"num_running\":0,\"num_waiting\":0,\"max_num_seqs\":65536,"
                "\"max_waiting\":65536,\"max_model_len\":1000000,\"num_blocks\":1000,\"num_free_blocks\":1000,"
                "\"block_size\":16,\"is_draining\":false,\"prompt_tokens_total\":0,\"completion_tokens_total\":0,"
                "\"discarded_tokens_total\":0}");
}

static void stamp_chunk(int64_t now) {
    for (char *digit = chunk + stamp_offset + STAMP_DIGITS; digit-- > chunk + stamp_offset; now /= 10)
        *digit = (char)('0' + now % 10);
}

// The events that end a stream, as one HTTP chunk, followed by the last, empty one.
static size_t stream_end(char *to, size_t size, const struct Connection *connection) {
    char events[2048], figures[256];
    int tokens = connection->num_chunks, length = snprintf(events, sizeof events,
        "data: {" CHUNK_START ",\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n");
    if (connection->wants_usage)
        length += snprintf(events + length, sizeof events - (size_t)length,
                           "data: {" CHUNK_START ",\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":%d,"
                           "\"total_tokens\":%d," DETAILS "}}\n\n", tokens, tokens + 20);
    if (is_ours) {
        accounting(figures, sizeof figures, tokens);
        length += snprintf(events + length, sizeof events - (size_t)length, ": accounting %s\n", figures);
    }
    length += snprintf(events + length, sizeof events - (size_t)length, "data: [DONE]\n\n");
    return (size_t)snprintf(to, size, "%x\r\n%s\r\n0\r\n\r\n", (unsigned)length, events);
}

// --- Lists -----------------------------------------------------------------------------------------------------------

static void unlink_from_list(struct Links *links) {
    links->previous->next = links->next;
    links->next->previous = links->previous;
    links->previous = links->next = links;
}

static void link_last(struct Links *list, struct Links *links) {
    unlink_from_list(links);
    links->previous = list->previous;
    links->next = list;
    list->previous->next = links;
    list->previous = links;
}

static void wake_at(struct Connection *connection, int64_t due_ms) {
    // A late connection catches up with one chunk a millisecond. In a slot already processed it would wait for a full
    // turn of the wheel.
    connection->due_ms = due_ms;
    int64_t slot = due_ms > wheel_ms ? due_ms : wheel_ms + 1;
    link_last(&wheel[slot % NUM_SLOTS], &connection->links);
}

// --- Connections -----------------------------------------------------------------------------------------------------

static void watch(struct Connection *connection, int operation, bool writes) {
    connection->is_watching_writes = writes;
    struct epoll_event event = {.events = EPOLLIN | (writes ? EPOLLOUT : 0), .data.ptr = connection};
    if (epoll_ctl(poller, operation, connection->fd, &event) < 0) die("epoll_ctl");
}

static void close_connection(struct Connection *connection) {
    unlink_from_list(&connection->links);
    close(connection->fd);
    buffer_free(&connection->unread);
    buffer_free(&connection->unsent);
    free(connection);
}

// Returns false if the connection is gone.
static bool put(struct Connection *connection, const char *bytes, size_t length) {
    if (connection->unsent.length == 0) {
        ssize_t sent = send(connection->fd, bytes, length, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) return close_connection(connection), false;
        if (sent > 0) bytes += sent, length -= (size_t)sent;
    }
    if (length == 0) return true;
    if (connection->unsent.length + length > MAX_UNSENT) return close_connection(connection), false;
    buffer_append(&connection->unsent, bytes, length);
    if (!connection->is_watching_writes) watch(connection, EPOLL_CTL_MOD, true);
    return true;
}

// Sends the next chunk, with the head before the first and the end after the last. Returns false if the connection is
// gone.
static bool put_chunk(struct Connection *connection) {
    char bytes[8192];
    size_t length = 0;
    if (connection->num_sent == 0) {
        memcpy(bytes, kStreamHead, sizeof kStreamHead - 1);
        length = sizeof kStreamHead - 1;
    }
    stamp_chunk(now_ns());
    memcpy(bytes + length, chunk, chunk_length);
    length += chunk_length;
    if (++connection->num_sent == connection->num_chunks) {
        length += stream_end(bytes + length, sizeof bytes - length, connection);
        connection->is_busy = false;
        unlink_from_list(&connection->links);
    }
    return put(connection, bytes, length);
}

static bool serve_requests(struct Connection *connection);

static void serve_due(struct Connection *connection) {
    if (!connection->is_streaming) {
        connection->is_busy = false;
        unlink_from_list(&connection->links);
        if (!put(connection, whole, whole_length)) return;
    } else {
        wake_at(connection, connection->due_ms + connection->pause_ms);
        if (!put_chunk(connection)) return;
    }
    if (!connection->is_busy) serve_requests(connection);
}

static void turn_wheel(int64_t until_ms) {
    while (wheel_ms < until_ms) {
        struct Links *slot = &wheel[++wheel_ms % NUM_SLOTS];
        while (slot->next != slot) serve_due((struct Connection *)slot->next);
    }
}

static void serve_eager(void) {
    if (eager.next == &eager) return;
    // Moved to a separate list, so that connections with more chunks join the next turn.
    struct Links turn = {eager.previous, eager.next};
    turn.previous->next = turn.next->previous = &turn;
    eager = (struct Links){&eager, &eager};
    while (turn.next != &turn) {
        struct Connection *connection = (struct Connection *)turn.next;
        link_last(&eager, &connection->links);
        if (!put_chunk(connection)) continue;
        // Left out until the socket takes more.
        if (connection->unsent.length > 0) unlink_from_list(&connection->links);
        if (!connection->is_busy) serve_requests(connection);
    }
}

// --- Requests --------------------------------------------------------------------------------------------------------

static bool says_true(const char *body, size_t length, const char *name) {
    const char *at = memmem(body, length, name, strlen(name)), *end = body + length;
    if (!at) return false;
    for (at += strlen(name); at < end && (*at == ' ' || *at == ':'); ++at) {}
    return end - at >= 4 && memcmp(at, "true", 4) == 0;
}

static bool answer_post(struct Connection *connection, const char *body, size_t length) {
    int num_chunks = 1, pause_ms = 0;
    for (const char *at = body; (at = memchr(at, '[', length - (size_t)(at - body))) != NULL; ++at)
        if (sscanf(at, "[%d chunks, %d ms]", &num_chunks, &pause_ms) == 2) break;
    connection->num_chunks = num_chunks > 0 ? num_chunks : 1;
    connection->pause_ms = pause_ms < NUM_SLOTS - 1 ? pause_ms : NUM_SLOTS - 2;
    connection->num_sent = 0;
    connection->is_streaming = says_true(body, length, "\"stream\"");
    connection->wants_usage = says_true(body, length, "\"include_usage\"");
    if (!connection->is_streaming && pause_ms <= 0) return put(connection, whole, whole_length);
    connection->is_busy = true;
    if (!connection->is_streaming || pause_ms > 0)
        wake_at(connection, now_ns() / NS_PER_MS + connection->pause_ms);
    else
        link_last(&eager, &connection->links);
    return !connection->is_streaming || put_chunk(connection);
}

static bool answer_get(struct Connection *connection, const char *head) {
    const char *answer = kNotFound;
    if (strncmp(head, "GET /v1/models ", 15) == 0) answer = models;
    if (is_ours && strncmp(head, "GET /load ", 10) == 0) answer = load_report;
    if (is_ours && strncmp(head, "GET /ready ", 11) == 0) answer = models;
    return put(connection, answer, strlen(answer));
}

struct Request {
    char *head, *body;
    size_t body_length;
};

// Takes the first request out of `unread` into newly allocated memory (`head`). Returns false while it is incomplete.
static bool take_request(struct Buffer *unread, struct Request *request) {
    const char *end = unread->length ? memmem(unread->bytes, unread->length, "\r\n\r\n", 4) : NULL;
    if (!end) return false;
    size_t head_length = (size_t)(end - unread->bytes) + 4;
    char *head = strndup(unread->bytes, head_length);
    if (!head) die("strndup");
    const char *field = strcasestr(head, "\r\ncontent-length:");
    // aiohttp and our load generator always send a length. Without one, the request would hang here silently.
    if (!field && strcasestr(head, "\r\ntransfer-encoding:")) die("a request without Content-Length");
    size_t body_length = field ? strtoul(field + strlen("\r\ncontent-length:"), NULL, 10) : 0;
    bool is_whole = unread->length >= head_length + body_length;
    if (is_whole) {
        head = realloc(head, head_length + body_length + 1);
        if (!head) die("realloc");
        memcpy(head + head_length, unread->bytes + head_length, body_length);
        head[head_length + body_length] = 0;
        *request = (struct Request){head, head + head_length, body_length};
        buffer_drop(unread, head_length + body_length);
    } else {
        free(head);
    }
    return is_whole;
}

// Serves the complete requests that have arrived while none is being answered. Returns false if the connection is gone.
static bool serve_requests(struct Connection *connection) {
    struct Request request;
    while (!connection->is_busy && take_request(&connection->unread, &request)) {
        bool is_post = strncmp(request.head, "POST ", 5) == 0;
        bool is_there = is_post ? answer_post(connection, request.body, request.body_length)
                                : answer_get(connection, request.head);
        free(request.head);
        if (!is_there) return false;
    }
    return true;
}

static void read_from(struct Connection *connection) {
    static char bytes[65536];
    ssize_t got = recv(connection->fd, bytes, sizeof bytes, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return close_connection(connection);
    buffer_append(&connection->unread, bytes, (size_t)got);
    serve_requests(connection);
}

static void write_to(struct Connection *connection) {
    struct Buffer *unsent = &connection->unsent;
    ssize_t sent = send(connection->fd, unsent->bytes, unsent->length, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) return close_connection(connection);
    if (sent > 0) buffer_drop(unsent, (size_t)sent);
    if (unsent->length > 0) return;
    watch(connection, EPOLL_CTL_MOD, false);
    if (connection->is_busy && connection->is_streaming && connection->pause_ms <= 0) link_last(&eager, &connection->links);
}

static void accept_all(int listener) {
    int fd, yes = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct Connection *connection = calloc(1, sizeof *connection);
        if (!connection) die("calloc");
        connection->fd = fd;
        connection->links = (struct Links){&connection->links, &connection->links};
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        if (send_buffer) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
        watch(connection, EPOLL_CTL_ADD, false);
    }
}

static int listen_on(int port) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), yes = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0) die("bind");
    if (listen(listener, 16384) < 0) die("listen");
    return listener;
}

int main(int count, char **arguments) {
    static const struct option kOptions[] = {
        {"port", required_argument, 0, 'p'}, {"dialect", required_argument, 0, 'd'},
        {"send-buffer", required_argument, 0, 's'}, {0, 0, 0, 0}};
    int port = 0, option;
    while ((option = getopt_long(count, arguments, "", kOptions, NULL)) >= 0) {
        if (option == 'p') port = atoi(optarg);
        else if (option == 'd') is_ours = strcmp(optarg, "tiergate") == 0;
        else if (option == 's') send_buffer = atoi(optarg);
        else return 2;
    }
    raise_file_limit();
    prepare_answers();
    for (size_t i = 0; i < NUM_SLOTS; ++i) wheel[i] = (struct Links){&wheel[i], &wheel[i]};
    eager = (struct Links){&eager, &eager};
    poller = epoll_create1(0);
    int listener = listen_on(port);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[MAX_EVENTS];
    if (epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event) < 0) die("epoll_ctl");
    wheel_ms = now_ns() / NS_PER_MS;
    while (true) {
        int num_events = epoll_wait(poller, events, MAX_EVENTS, eager.next != &eager ? 0 : 1);
        for (int i = 0; i < num_events; ++i) {
            struct Connection *connection = events[i].data.ptr;
            if (!connection) accept_all(listener);
            else if (events[i].events & EPOLLOUT) write_to(connection);
            else read_from(connection);
        }
        // After the events, because these calls may close connections that events still point to.
        turn_wheel(now_ns() / NS_PER_MS);
        serve_eager();
    }
}
