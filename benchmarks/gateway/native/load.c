// The load generator: one thread, epoll, one prepared request sent repeatedly. Prints one JSON object at the end.
//
//   load --ports N[,N...] --request FILE --connections N [--seconds S] [--each N] [--ramp S] [--rate N] [--chunks N]
//        [--patience S]
//
// Closed loop (the default): each connection sends its next request when it has the answer to the last, for S seconds
// or `each` requests. `ramp` spreads the starts of the connections evenly. Open loop (`rate`): this many requests a
// second, whatever the answers do, on at most `connections` connections; latency counts from the time at which a
// request was due. `chunks`: an answer with status 200 is correct only if it is a stream of this many stamped chunks,
// ended by [DONE]. After the last request was sent, `patience` seconds are left for answers. FILE is the request with
// its head.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "answer.h"
#include "samples.h"

#define MAX_EVENTS 1024
#define MAX_PORTS 64
#define MAX_STATUS 600
#define NEVER INT64_MAX

enum ConnectionState { CLOSED, CONNECTING, WAITING, IDLE };

struct Connection {
    enum ConnectionState state;
    int fd, num_started, num_chunks;
    size_t num_sent_bytes;
    bool was_answered;  // a request was answered on this connection before
    bool has_opened, has_first_chunk, is_done, has_error;
    int64_t due_ns;
    struct Answer answer;
    struct Buffer line;  // the part received so far of the stream's current line
};

static struct {
    int ports[MAX_PORTS], num_ports, num_connections, num_each, num_chunks;
    double seconds, ramp_s, rate, patience_s;
    struct Buffer request;
} plan = {.seconds = 1e6, .patience_s = 10};

static struct {
    int64_t requests_in_time, chunks, chunks_in_time, bytes, no_connection, local, no_retry_after;
    int64_t failed_connect, failed_closed, failed_broken, unanswered;
    int64_t opened_ns, all_opened_ns, first_end_ns, last_end_ns;
    struct Samples by_status[MAX_STATUS], ttft, transit;
} seen = {.all_opened_ns = NEVER, .first_end_ns = NEVER};

static struct Connection *connections;
static int poller, num_under_way, num_opened, num_begun, *idle, num_idle;
static int64_t started_ns, end_ns, num_due;

// --- One connection --------------------------------------------------------------------------------------------------

static void start_request(struct Connection *connection, int64_t due_ns);

static void watch(struct Connection *connection, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = connection};
    if (epoll_ctl(poller, operation, connection->fd, &event) < 0) die("epoll_ctl");
}

static void close_connection(struct Connection *connection) {
    if (connection->state != CLOSED) close(connection->fd);
    connection->state = CLOSED;
}

// The connection's first answer has begun, or will never come. Once this holds for all connections, the ramp is over.
static void note_opened(struct Connection *connection, int64_t now) {
    if (connection->has_opened) return;
    connection->has_opened = true;
    if (++num_opened == plan.num_connections) seen.all_opened_ns = now;
}

static void go_on(struct Connection *connection, int64_t now, bool may_begin) {
    --num_under_way;
    note_opened(connection, now);
    if (seen.first_end_ns == NEVER) seen.first_end_ns = now;
    seen.last_end_ns = now;
    bool is_over = !may_begin || now >= end_ns || (plan.num_each && connection->num_started >= plan.num_each);
    if (plan.rate > 0 && connection->state != CLOSED) connection->state = IDLE;
    if (plan.rate > 0) idle[num_idle++] = (int)(connection - connections);
    else if (!is_over) start_request(connection, now);
    else if (plan.num_chunks) close_connection(connection);
    else if (connection->state != CLOSED) connection->state = IDLE;
}

static void fail(struct Connection *connection, int64_t *count) {
    ++*count;
    close_connection(connection);
    // If nobody listens, do not start another request: each attempt would fail at once, forever.
    go_on(connection, now_ns(), count != &seen.failed_connect);
}

static void send_rest(struct Connection *connection) {
    size_t left = plan.request.length - connection->num_sent_bytes;
    ssize_t sent = send(connection->fd, plan.request.bytes + connection->num_sent_bytes, left, MSG_NOSIGNAL);
    if (sent > 0) connection->num_sent_bytes += (size_t)sent;
    // An error on the connection shows when it is read.
    bool is_whole = connection->num_sent_bytes == plan.request.length;
    watch(connection, EPOLL_CTL_MOD, EPOLLIN | (is_whole || (sent < 0 && errno != EAGAIN) ? 0 : EPOLLOUT));
}

static void begin(struct Connection *connection) {
    connection->state = WAITING;
    connection->num_sent_bytes = 0;
    connection->num_chunks = 0;
    connection->has_first_chunk = connection->is_done = connection->has_error = false;
    connection->line.length = 0;
    answer_reset(&connection->answer);
    ssize_t sent = send(connection->fd, plan.request.bytes, plan.request.length, MSG_NOSIGNAL);
    if (sent == (ssize_t)plan.request.length) connection->num_sent_bytes = plan.request.length;
    else send_rest(connection);
}

static void open_connection(struct Connection *connection) {
    int port = plan.ports[(connection - connections) % plan.num_ports], yes = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (connection->fd < 0) die("socket");
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    connection->state = CONNECTING;
    connection->was_answered = false;
    connection->answer.closes = false;
    int failed = connect(connection->fd, (struct sockaddr *)&address, sizeof address);
    if (failed && errno != EINPROGRESS) return fail(connection, &seen.failed_connect);
    watch(connection, EPOLL_CTL_ADD, failed ? EPOLLOUT : EPOLLIN);
    if (!failed) begin(connection);
}

static void start_request(struct Connection *connection, int64_t due_ns) {
    ++connection->num_started;
    ++num_under_way;
    connection->due_ns = due_ns;
    if (connection->state == IDLE && connection->answer.closes) close_connection(connection);
    if (connection->state == CLOSED) open_connection(connection);
    else begin(connection);
}

// --- What comes back -------------------------------------------------------------------------------------------------

static void note_chunk(struct Connection *connection, const char *stamp, int64_t now) {
    int64_t sent_ns = 0;
    for (int i = 0; i < STAMP_DIGITS; ++i) sent_ns = 10 * sent_ns + (stamp[i] - '0');
    samples_add(&seen.transit, now, now - sent_ns);
    if (!connection->has_first_chunk) samples_add(&seen.ttft, now, now - connection->due_ns);
    connection->has_first_chunk = true;
    ++connection->num_chunks;
    ++seen.chunks;
    if (now < end_ns) ++seen.chunks_in_time;
}

static void note_line(struct Connection *connection, const char *line, size_t length, int64_t now) {
    if (length < 6 || memcmp(line, "data:", 5) != 0) return;
    const char *stamp = memmem(line, length, STAMP_MARK, strlen(STAMP_MARK));
    if (stamp && (size_t)(line + length - stamp) >= strlen(STAMP_MARK) + STAMP_DIGITS)
        note_chunk(connection, stamp + strlen(STAMP_MARK), now);
    else if (memmem(line, length, "[DONE]", 6)) connection->is_done = true;
    else if (memmem(line, length, "{\"error\"", 8)) connection->has_error = true;
}

static void note_content(struct Connection *connection, struct Span content, int64_t now) {
    struct Buffer *line = &connection->line;
    while (content.length > 0) {
        const char *newline = memchr(content.bytes, '\n', content.length);
        size_t taken = newline ? (size_t)(newline - content.bytes) + 1 : content.length;
        if (newline && line->length == 0) {
            note_line(connection, content.bytes, taken, now);
        } else {
            buffer_append(line, content.bytes, taken);
            if (newline) note_line(connection, line->bytes, line->length, now), line->length = 0;
        }
        content.bytes += taken, content.length -= taken;
    }
}

static void note_answer(struct Connection *connection, int64_t now) {
    const struct Answer *answer = &connection->answer;
    bool is_stream = plan.num_chunks > 0 && answer->status == 200;
    bool is_right = connection->is_done && !connection->has_error && connection->num_chunks == plan.num_chunks;
    if (is_stream && !is_right) return fail(connection, &seen.failed_broken);
    samples_add(&seen.by_status[answer->status], now, now - connection->due_ns);
    if (now < end_ns) ++seen.requests_in_time;
    seen.local += answer->is_local;
    seen.no_retry_after += (answer->status == 429 || answer->status == 503) && !answer->has_retry_after;
    connection->was_answered = true;
    go_on(connection, now, true);
}

static void note_bytes(struct Connection *connection, struct Span unread, int64_t now) {
    seen.bytes += (int64_t)unread.length;
    struct Span content;
    while ((content = answer_next(&connection->answer, &unread)).length > 0)
        if (plan.num_chunks) note_content(connection, content, now);
    if (connection->answer.state == BROKEN) return fail(connection, &seen.failed_broken);
    if (connection->answer.status && !connection->has_opened) {
        note_opened(connection, now);
        if (now > seen.opened_ns) seen.opened_ns = now;
    }
    if (connection->answer.state == ENDED) note_answer(connection, now);
}

static void read_from(struct Connection *connection) {
    static char bytes[1 << 18];
    ssize_t got = recv(connection->fd, bytes, sizeof bytes, 0);
    if (got < 0 && errno == EAGAIN) return;
    int64_t now = now_ns();
    if (got > 0 && connection->state == WAITING) return note_bytes(connection, (struct Span){bytes, (size_t)got}, now);
    if (connection->state != WAITING) return close_connection(connection);
    bool is_untouched = connection->answer.state == IN_HEAD && connection->answer.line.length == 0;
    if (!is_untouched || !connection->was_answered) return fail(connection, &seen.failed_closed);
    // An idle connection may be closed just when it is reused; every HTTP client then tries once more.
    close_connection(connection);
    open_connection(connection);
}

static void handle(struct Connection *connection, uint32_t events) {
    if (connection->state == CONNECTING) {
        int error = 0;
        socklen_t length = sizeof error;
        getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &length);
        if (error) return fail(connection, &seen.failed_connect);
        watch(connection, EPOLL_CTL_MOD, EPOLLIN);
        begin(connection);
    } else if (events & EPOLLOUT && connection->state == WAITING) {
        send_rest(connection);
    } else if (connection->state != CLOSED) {
        read_from(connection);
    }
}

// --- The plan --------------------------------------------------------------------------------------------------------

static void start_what_is_due(int64_t now) {
    if (plan.rate <= 0) {
        while (num_begun < plan.num_connections) {
            int64_t due_ns = started_ns + (int64_t)(plan.ramp_s * NS_PER_S * num_begun / plan.num_connections);
            if (due_ns > now) return;
            start_request(&connections[num_begun++], due_ns);
        }
        return;
    }
    while (true) {
        int64_t due_ns = started_ns + (int64_t)((double)num_due * NS_PER_S / plan.rate);
        if (due_ns > now || due_ns >= end_ns) return;
        ++num_due;
        if (num_idle == 0) ++seen.no_connection;
        else start_request(&connections[idle[--num_idle]], due_ns);
    }
}

static bool is_over(int64_t now) {
    bool has_all_begun = plan.rate > 0 ? now >= end_ns : num_begun == plan.num_connections;
    return has_all_begun && num_under_way == 0;
}

static void run(void) {
    struct epoll_event events[MAX_EVENTS];
    started_ns = now_ns();
    end_ns = started_ns + (int64_t)(plan.seconds * NS_PER_S);
    int64_t limit_ns = end_ns + (int64_t)(plan.patience_s * NS_PER_S), now = started_ns;
    for (; !is_over(now) && now < limit_ns; now = now_ns()) {
        start_what_is_due(now);
        bool is_starting = plan.rate > 0 || num_begun < plan.num_connections;
        int num_events = epoll_wait(poller, events, MAX_EVENTS, is_starting ? 1 : 20);
        for (int i = 0; i < num_events; ++i) handle(events[i].data.ptr, events[i].events);
    }
    seen.unanswered = num_under_way;
}

static void print_results(void) {
    int64_t until_ns = end_ns < seen.last_end_ns || plan.rate > 0 ? end_ns : seen.last_end_ns;
    double seconds = (double)(until_ns - started_ns) / NS_PER_S;
    printf("{\"seconds\":%.4f,\"requests\":%ld,\"requests_per_s\":%.2f,\"status\":{", seconds, (long)seen.requests_in_time,
           (double)seen.requests_in_time / seconds);
    const char *comma = "";
    for (int status = 0; status < MAX_STATUS; ++status) {
        if (seen.by_status[status].count == 0) continue;
        printf("%s\"%d\":", comma, status);
        samples_print(&seen.by_status[status], 0, NEVER);
        comma = ",";
    }
    printf("},\"local\":%ld,\"no_retry_after\":%ld,\"no_connection\":%ld", (long)seen.local, (long)seen.no_retry_after,
           (long)seen.no_connection);
    printf(",\"failed\":{\"connect\":%ld,\"closed\":%ld,\"broken\":%ld,\"unanswered\":%ld}", (long)seen.failed_connect,
           (long)seen.failed_closed, (long)seen.failed_broken, (long)seen.unanswered);
    printf(",\"opened_s\":%.4f,\"chunks\":%ld,\"chunks_per_s\":%.1f,\"bytes\":%ld,\"ttft\":",
           seen.opened_ns ? (double)(seen.opened_ns - started_ns) / NS_PER_S : 0.0, (long)seen.chunks,
           (double)seen.chunks_in_time / seconds, (long)seen.bytes);
    samples_print(&seen.ttft, 0, NEVER);
    // `after` covers everything once all streams are open; `steady` is its part until the first stream ends.
    int64_t steady_until = seen.first_end_ns > seen.all_opened_ns ? seen.first_end_ns : seen.all_opened_ns;
    printf(",\"transit\":{\"ramp\":");
    samples_print(&seen.transit, 0, seen.all_opened_ns);
    printf(",\"after\":");
    samples_print(&seen.transit, seen.all_opened_ns, NEVER);
    printf(",\"steady\":");
    samples_print(&seen.transit, seen.all_opened_ns, steady_until);
    printf("}}\n");
}

static void read_request(const char *path) {
    char bytes[4096];
    FILE *file = fopen(path, "rb");
    if (!file) die(path);
    size_t got;
    while ((got = fread(bytes, 1, sizeof bytes, file)) > 0) buffer_append(&plan.request, bytes, got);
    fclose(file);
}

static void read_ports(char *text) {
    for (char *port = strtok(text, ","); port && plan.num_ports < MAX_PORTS; port = strtok(NULL, ","))
        plan.ports[plan.num_ports++] = atoi(port);
}

static void read_options(int count, char **arguments) {
    static const struct option kOptions[] = {
        {"ports", required_argument, 0, 'p'},   {"request", required_argument, 0, 'f'}, {"connections", required_argument, 0, 'c'},
        {"seconds", required_argument, 0, 's'}, {"each", required_argument, 0, 'e'},    {"ramp", required_argument, 0, 'r'},
        {"rate", required_argument, 0, 'R'},    {"chunks", required_argument, 0, 'n'},  {"patience", required_argument, 0, 'w'},
        {0, 0, 0, 0}};
    int option;
    while ((option = getopt_long(count, arguments, "", kOptions, NULL)) >= 0) {
        switch (option) {
            case 'p': read_ports(optarg); break;
            case 'f': read_request(optarg); break;
            case 'c': plan.num_connections = atoi(optarg); break;
            case 's': plan.seconds = atof(optarg); break;
            case 'e': plan.num_each = atoi(optarg); break;
            case 'r': plan.ramp_s = atof(optarg); break;
            case 'R': plan.rate = atof(optarg); break;
            case 'n': plan.num_chunks = atoi(optarg); break;
            case 'w': plan.patience_s = atof(optarg); break;
            default: exit(2);
        }
    }
    if (plan.num_ports && plan.num_connections > 0 && plan.request.length) return;
    fprintf(stderr, "load: --ports, --connections and --request are needed\n");
    exit(2);
}

int main(int count, char **arguments) {
    read_options(count, arguments);
    raise_file_limit();
    poller = epoll_create1(0);
    connections = calloc((size_t)plan.num_connections, sizeof *connections);
    idle = calloc((size_t)plan.num_connections, sizeof *idle);
    if (!connections || !idle) die("calloc");
    // The first connection is on top of the stack, so a new one is opened only when all open ones are busy.
    if (plan.rate > 0)
        for (num_idle = 0; num_idle < plan.num_connections; ++num_idle) idle[num_idle] = plan.num_connections - 1 - num_idle;
    run();
    print_results();
    return 0;
}
