/* log: what a program says to people, on stderr, one line a message: "trainer[3]: text".
 *
 * An error is reported once, where it happens, by fail(); its value travels up to main, which
 * returns it. So every function of this project that can fail returns 0, or one of these codes
 * with the report already made. */
#ifndef DDPIPE_LOG_H
#define DDPIPE_LOG_H

enum {
    BAD_INPUT = 1,       /* a file, message or result is wrong: trying again will not help */
    BAD_USAGE = 100,     /* the command line is wrong */
    SYSTEM_FAILED = 111, /* the system, a device or a peer failed: trying again may help */
};

/* Names the program for every later line. rank < 0: a program that has none. Both are kept. */
void log_open(const char *program, int rank);

/* Prints one line and returns code, for `return fail(BAD_INPUT, "...", ...)`. */
int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints one line that is no error. */
void log_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
