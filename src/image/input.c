#include "image/input.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "image/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

enum { LOG_TAIL = 8192 };

void input_close(struct input *input)
{
    if (input->writer > 0)
        confine_kill(&input->writer);
    input->writer = 0;
    if (input->tar_fd != STDIN_FILENO)
        close_fd(&input->tar_fd);
    close_fd(&input->log_fd);
}

int input_tar(const char *path, struct input *ret_input, struct err *err)
{
    struct input input = INPUT_INIT;
    if (strcmp(path, "-") == 0) {
        if (isatty(STDIN_FILENO))
            return err_set(err, -EINVAL, "--from-tar - reads an archive from standard input, which is a terminal here");
        input.tar_fd = STDIN_FILENO;
    } else {
        input.tar_fd = open(path, O_RDONLY | O_CLOEXEC);
        if (input.tar_fd < 0)
            return err_set(err, -errno, "%s: %s", path, strerror(errno));
    }
    *ret_input = input;
    return 0;
}

// Why a writer failed, by its own log: the first error in it ("E: ..." by apt and mmdebstrap, of which later ones are only
// consequences), or simply its last line.
static void last_words(int log_fd, char out[256])
{
    char tail[LOG_TAIL + 1];
    off_t size = lseek(log_fd, 0, SEEK_END);
    off_t from = size > LOG_TAIL ? size - LOG_TAIL : 0;
    ssize_t n = pread(log_fd, tail, LOG_TAIL, from);
    tail[n > 0 ? n : 0] = '\0';
    const char *best = "what reads the input failed without a word";
    char *save = NULL;
    for (char *line = strtok_r(tail, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        best = line;
        if (strncmp(line, "E: ", 3) == 0)
            break;
    }
    snprintf(out, 256, "%s", best);
}

int input_finish(struct input *input, struct err *err)
{
    if (input->writer <= 0)
        return 0;
    int status = confine_wait(&input->writer);
    input->writer = 0;
    if (status == 0)
        return 0;
    char words[256];
    last_words(input->log_fd, words);
    if (status >= 256)
        return err_set(err, -EIO, "what reads the input was killed by signal %d: %s", status - 256, words);
    return err_set(err, -EIO, "%s", words);
}
