/* log.c: see log.h. A line is put together first and written by one write(2), so that the lines of
 * programs that share a terminal or a log do not mix. */
#include "lib/log.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *program_name = "ddpipe";
static int program_rank = -1;

void log_open(const char *program, int rank) {
    program_name = program;
    program_rank = rank;
}

static void write_line(const char *format, va_list ap) {
    char line[2048];
    int n = program_rank < 0 ? snprintf(line, sizeof line, "%s: ", program_name)
                             : snprintf(line, sizeof line, "%s[%d]: ", program_name, program_rank);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, ap);
    size_t size = (size_t)n + (m < 0 ? 0 : (size_t)m);
    if (size > sizeof line - 2)
        size = sizeof line - 2;
    line[size++] = '\n';
    for (size_t done = 0; done < size;) {
        ssize_t w = write(STDERR_FILENO, line + done, size - done);
        if (w < 0 && errno != EINTR)
            return; /* nobody is left to tell */
        done += w > 0 ? (size_t)w : 0;
    }
}

int fail(int code, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    write_line(format, ap);
    va_end(ap);
    return code;
}

void log_note(const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    write_line(format, ap);
    va_end(ap);
}
