#include "live.h"

#include "lines.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

// ---- our own terminal ----

static struct termios before;
static bool is_raw;

static void make_cooked(void)
{
    if (is_raw)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
    is_raw = false;
}

// Every key goes to the script, ^C too.  Nothing is done when standard input is no terminal.
static void make_raw(void)
{
    static bool registered;
    struct termios raw;
    if (tcgetattr(STDIN_FILENO, &before) < 0)
        return;
    if (!registered)
        atexit(make_cooked);
    registered = true;
    raw = before;
    cfmakeraw(&raw);
    is_raw = tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0;
}

static struct winsize our_size(void)
{
    struct winsize size = {0};
    if (ioctl(STDIN_FILENO, TIOCGWINSZ, &size) < 0)
        ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    return size;
}

// ---- the session ----

enum { KEYS_MAX = 64 * 1024 };

struct session {
    sandbox_stream_t *stream;
    int resizes;  // a signalfd, or -1
    bool input_over;
    char keys[KEYS_MAX];
    size_t n_keys, sent;  // read, and of these sent
    sandbox_exec_result_t *result;
    bool ended;
};

static void send_keys(struct session *s)
{
    size_t written = 0;
    if (sandbox_stream_write_stdin(s->stream, s->keys + s->sent, s->n_keys - s->sent, &written) != SANDBOX_OK)
        s->input_over = true;  // its end says why
    s->sent += written;
    if (s->sent == s->n_keys || s->input_over)
        s->n_keys = s->sent = 0;
}

static void read_keys(struct session *s)
{
    ssize_t n = read(STDIN_FILENO, s->keys, sizeof s->keys);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n <= 0) {
        s->input_over = true;
        sandbox_stream_close_stdin(s->stream);
        return;
    }
    s->n_keys = (size_t)n;
    s->sent = 0;
    send_keys(s);
}

static void follow_size(struct session *s)
{
    struct signalfd_siginfo info;
    while (read(s->resizes, &info, sizeof info) > 0)
        ;
    struct winsize size = our_size();
    if (size.ws_row > 0)
        sandbox_stream_resize(s->stream, size.ws_row, size.ws_col);
}

// Everything the stream has now.
static sandbox_error_t take_events(struct session *s)
{
    for (;;) {
        sandbox_event_t event;
        sandbox_error_t r = sandbox_stream_read(s->stream, 0, &event);
        if (r != SANDBOX_OK || event.type == SANDBOX_EVENT_NONE)
            return r;
        if (event.type == SANDBOX_EVENT_EXIT) {
            s->ended = true;
            *s->result = *event.result;
            return SANDBOX_OK;
        }
        if (event.type == SANDBOX_EVENT_STDIN_ROOM && s->n_keys > 0)
            send_keys(s);
        bool fine = event.type != SANDBOX_EVENT_STDOUT || put_stdout(NULL, event.data, event.len) == 0;
        if (event.type == SANDBOX_EVENT_STDERR)
            put_stderr(NULL, event.data, event.len);
        if (!fine)
            sandbox_stream_kill(s->stream);
    }
}

static sandbox_error_t converse(struct session *s)
{
    while (!s->ended) {
        bool wants_keys = !s->input_over && s->n_keys == 0;
        struct pollfd p[] = {{.fd = sandbox_stream_fd(s->stream), .events = POLLIN},
                             {.fd = wants_keys ? STDIN_FILENO : -1, .events = POLLIN},
                             {.fd = s->resizes, .events = POLLIN}};
        if (poll(p, 3, -1) < 0 && errno != EINTR)
            break;
        if (p[1].revents != 0)
            read_keys(s);
        if (p[2].revents != 0)
            follow_size(s);
        sandbox_error_t r = take_events(s);
        if (r != SANDBOX_OK)
            return r;
    }
    return SANDBOX_OK;
}

static sigset_t size_signals(void)
{
    sigset_t sizes;
    sigemptyset(&sizes);
    sigaddset(&sizes, SIGWINCH);
    return sizes;
}

// A thread that did not block it would take the signal and throw it away.
void live_prepare(void)
{
    sigset_t sizes = size_signals();
    pthread_sigmask(SIG_BLOCK, &sizes, NULL);
}

static sandbox_error_t run_terminal(sandbox_handle_t *sandbox, const sandbox_exec_spec_t *spec,
                                    sandbox_exec_result_t *out_result)
{
    sigset_t sizes = size_signals();
    struct winsize size = our_size();
    sandbox_stream_options_t options = {.terminal = 1, .rows = size.ws_row, .cols = size.ws_col, .open_stdin = 1};
    struct session *s = calloc(1, sizeof *s);
    if (s == NULL)
        abort();
    sandbox_error_t r = sandbox_exec_stream(sandbox, spec, &options, &s->stream);
    if (r == SANDBOX_OK) {
        s->result = out_result;
        s->resizes = signalfd(-1, &sizes, SFD_NONBLOCK | SFD_CLOEXEC);
        make_raw();
        r = converse(s);
        make_cooked();
        // Its out and err are the stream's, and empty.
        out_result->out = out_result->err = NULL;
        if (s->resizes >= 0)
            close(s->resizes);
    }
    sandbox_stream_free(s->stream);
    free(s);
    return r;
}

sandbox_error_t live_exec(sandbox_handle_t *sandbox, const sandbox_exec_spec_t *spec, bool terminal,
                          sandbox_exec_result_t *out_result)
{
    const sandbox_output_t output = {.on_stdout = put_stdout, .on_stderr = put_stderr};
    sandbox_error_t r =
        terminal ? run_terminal(sandbox, spec, out_result) : sandbox_exec_streaming(sandbox, spec, &output, out_result);
    end_output();
    return r;
}
