/* Proves that waits end at their deadline, that a peer's end is heard after its last message and at
 * once, that a stranger is no peer, and that names of ipc sockets are made, refused, taken over
 * and removed as promised. Peers that die are processes of their own, killed. */
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/clock.h"
#include "lib/log.h"
#include "lib/sock.h"
#include "lib/stop.h"

#include <cmocka.h> /* last: its fail() would hide the one of lib/log.h */

static char folder[64], endpoint[96];
static const char *path_of_endpoint(void) {
    return endpoint + strlen("ipc://");
}

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/ddpipe-test-sock.XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(endpoint, sizeof endpoint, "ipc://%s/s", folder);
    return 0;
}

/* Everything a test made must be gone: rmdir takes an empty folder only. */
static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

static int64_t soon(void) {
    return clock_deadline(10);
}

static void expect_text(struct sock *s, const char *text) {
    zmq_msg_t m;
    zmq_msg_init(&m);
    assert_int_equal(sock_recv(s, &m, soon()), SOCK_OK);
    assert_int_equal(zmq_msg_size(&m), strlen(text));
    assert_memory_equal(zmq_msg_data(&m), text, strlen(text));
    zmq_msg_close(&m);
}

static enum sock_event recv_nothing(struct sock *s, int64_t deadline) {
    zmq_msg_t m;
    zmq_msg_init(&m);
    enum sock_event e = sock_recv(s, &m, deadline);
    zmq_msg_close(&m);
    return e;
}

static void duplex_carries_both_ways_and_the_name_is_private_and_removed(void **state) {
    (void)state;
    struct sock *a, *b;
    struct stat st;
    assert_int_equal(sock_bind(&a, SOCK_DUPLEX, endpoint), 0);
    assert_int_equal(lstat(path_of_endpoint(), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(sock_connect(&b, SOCK_DUPLEX, endpoint), 0);
    assert_int_equal(sock_send_bytes(b, "up", 2, 0, soon()), SOCK_OK);
    expect_text(a, "up");
    assert_int_equal(sock_peers(a), 1);
    assert_int_equal(sock_send_bytes(a, "down", 4, 0, soon()), SOCK_OK);
    expect_text(b, "down");
    sock_close(&b, 1000);
    assert_null(b);
    sock_close(&a, 0);
    assert_int_equal(lstat(path_of_endpoint(), &st), -1);
}

static void waits_end_at_their_deadline(void **state) {
    (void)state;
    struct sock *a, *b;
    assert_int_equal(sock_bind(&a, SOCK_DUPLEX, endpoint), 0);
    int64_t start = clock_ns();
    assert_int_equal(recv_nothing(a, clock_deadline(0.05)), SOCK_TIMEOUT);
    assert_int_equal(sock_send_bytes(a, "x", 1, 0, clock_deadline(0.05)), SOCK_TIMEOUT);
    assert_true(clock_ns() - start >= 100000000);
    assert_int_equal(recv_nothing(a, 0), SOCK_TIMEOUT);
    sock_close(&a, 0);
    /* Without a peer nothing is queued: the sender learns it. */
    assert_int_equal(sock_connect(&b, SOCK_PUSH, endpoint), 0);
    assert_int_equal(sock_send_bytes(b, "x", 1, 0, clock_deadline(0.05)), SOCK_TIMEOUT);
    sock_close(&b, 0);
}

/* One side sends 300 messages of 10 kB and ends at once, whichever of the two it is: all arrive,
 * then the news, and for ever. */
static void nothing_is_lost_before_the_news(void **state) {
    (void)state;
    enum { MESSAGES = 300, SIZE = 10000 };
    static uint8_t bytes[SIZE];
    for (int sender = 0; sender < 2; sender++) {
        struct sock *sides[2], **from = &sides[sender], *to;
        assert_int_equal(sock_bind(&sides[0], SOCK_DUPLEX, endpoint), 0);
        assert_int_equal(sock_connect(&sides[1], SOCK_DUPLEX, endpoint), 0);
        to = sides[1 - sender];
        for (int i = 0; i < MESSAGES; i++) {
            bytes[0] = (uint8_t)i;
            assert_int_equal(sock_send_bytes(*from, bytes, SIZE, 0, soon()), SOCK_OK);
        }
        sock_close(from, 5000);
        for (int64_t limit = soon(); sock_peers(to) != 0 && clock_ms_left(limit) > 0;)
            sched_yield(); /* until only its messages are left of it */
        zmq_msg_t m;
        zmq_msg_init(&m);
        for (int i = 0; i < MESSAGES; i++) {
            assert_int_equal(sock_recv(to, &m, soon()), SOCK_OK);
            assert_int_equal(*(uint8_t *)zmq_msg_data(&m), (uint8_t)i);
        }
        zmq_msg_close(&m);
        assert_int_equal(recv_nothing(to, soon()), SOCK_PEER_GONE);
        assert_int_equal(recv_nothing(to, soon()), SOCK_PEER_GONE);
        assert_int_equal(sock_send_bytes(to, "x", 1, 0, soon()), SOCK_PEER_GONE);
        sock_close(&to, 0);
    }
}

/* A child that connects, says "here" and stays until it is killed. */
static pid_t start_peer(enum sock_kind kind, const char *to) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    struct sock *s;
    alarm(30);
    if (sock_connect(&s, kind, to) == 0)
        sock_send_bytes(s, "here", 4, 0, soon());
    for (;;)
        pause();
}

static void killed_peers_are_heard_of_once_each(void **state) {
    (void)state;
    struct sock *a;
    pid_t pids[3];
    assert_int_equal(sock_bind(&a, SOCK_PULL, endpoint), 0);
    for (int i = 0; i < 3; i++)
        pids[i] = start_peer(SOCK_PUSH, endpoint);
    for (int i = 0; i < 3; i++)
        expect_text(a, "here");
    int64_t start = clock_ns();
    for (int i = 0; i < 3; i++)
        kill(pids[i], SIGKILL);
    for (int i = 0; i < 3; i++)
        assert_int_equal(recv_nothing(a, soon()), SOCK_PEER_GONE);
    assert_true(clock_ns() - start < 5000000000);
    assert_int_equal(recv_nothing(a, clock_deadline(0.05)), SOCK_TIMEOUT);
    for (int i = 0; i < 3; i++)
        waitpid(pids[i], NULL, 0);
    sock_close(&a, 0);
}

/* By tcp too, where the port is chosen by the system; and the sender's side hears of it. */
static void a_killed_server_is_heard_of(void **state) {
    (void)state;
    struct sock *many;
    zmq_msg_t identity;
    assert_int_equal(sock_bind(&many, SOCK_MANY, "tcp://127.0.0.1:*"), 0);
    assert_null(strchr(sock_endpoint(many), '*'));
    pid_t pid = start_peer(SOCK_DUPLEX, sock_endpoint(many));
    zmq_msg_init(&identity);
    assert_int_equal(sock_recv(many, &identity, soon()), SOCK_OK);
    expect_text(many, "here");
    assert_int_equal(sock_send_bytes(many, "nobody", 6, 1, soon()), SOCK_PEER_GONE);
    kill(pid, SIGKILL);
    assert_int_equal(recv_nothing(many, soon()), SOCK_PEER_GONE);
    waitpid(pid, NULL, 0);
    zmq_msg_close(&identity);
    sock_close(&many, 0);
}

static int connect_plainly(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path_of_endpoint());
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* Whoever connects and speaks another language, or nothing, is no peer that came or went. */
static void strangers_are_no_peers(void **state) {
    (void)state;
    struct sock *a;
    assert_int_equal(sock_bind(&a, SOCK_DUPLEX, endpoint), 0);
    int silent = connect_plainly(), rude = connect_plainly();
    assert_true(write(rude, "GET / HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\n\r\n", 36) > 0);
    close(silent);
    assert_int_equal(recv_nothing(a, clock_deadline(0.3)), SOCK_TIMEOUT);
    close(rude);
    assert_int_equal(recv_nothing(a, clock_deadline(0.3)), SOCK_TIMEOUT);
    assert_int_equal(sock_peers(a), 0);
    sock_close(&a, 0);
}

static void a_living_name_is_refused_and_a_dead_one_taken_over(void **state) {
    (void)state;
    struct sock *a, *b;
    struct stat st;
    assert_int_equal(sock_bind(&a, SOCK_DUPLEX, endpoint), 0);
    assert_int_equal(sock_bind(&b, SOCK_DUPLEX, endpoint), SYSTEM_FAILED);
    assert_null(b);
    assert_int_equal(lstat(path_of_endpoint(), &st), 0);
    sock_close(&a, 0);

    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path_of_endpoint());
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    assert_int_equal(sock_bind(&a, SOCK_DUPLEX, endpoint), 0);
    /* Who binds removes no name but its own. */
    unlink(path_of_endpoint());
    fclose(fopen(path_of_endpoint(), "w"));
    sock_close(&a, 0);
    assert_int_equal(lstat(path_of_endpoint(), &st), 0);
    /* What is no socket is nobody's to remove. */
    assert_int_equal(sock_bind(&a, SOCK_DUPLEX, endpoint), SYSTEM_FAILED);
    assert_int_equal(unlink(path_of_endpoint()), 0);
}

static void wrong_endpoints_are_refused(void **state) {
    (void)state;
    struct sock *s;
    char long_path[160];
    size_t at = (size_t)snprintf(long_path, sizeof long_path, "ipc://%s/", folder);
    memset(long_path + at, 'x', sizeof long_path - at);
    long_path[strlen("ipc://") + 108] = '\0';
    assert_int_equal(sock_bind(&s, SOCK_DUPLEX, long_path), BAD_USAGE);
    assert_int_equal(sock_connect(&s, SOCK_DUPLEX, long_path), BAD_USAGE);
    long_path[strlen("ipc://") + 107] = '\0';
    assert_int_equal(sock_bind(&s, SOCK_DUPLEX, long_path), 0);
    sock_close(&s, 0);
    assert_int_equal(sock_bind(&s, SOCK_DUPLEX, "ipc://relative"), BAD_USAGE);
    assert_int_equal(sock_bind(&s, SOCK_DUPLEX, "ipc:///tmp/"), BAD_USAGE);
    assert_int_equal(sock_bind(&s, SOCK_DUPLEX, "udp://127.0.0.1:1"), BAD_USAGE);
    assert_int_equal(sock_bind(&s, SOCK_PULL, "tcp://127.0.0.1:99999"), BAD_USAGE);
    assert_int_equal(sock_bind(&s, SOCK_DUPLEX, "ipc:///nonexistent/folder/s"), SYSTEM_FAILED);
    struct sock *used, *again;
    assert_int_equal(sock_bind(&used, SOCK_PULL, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(sock_bind(&again, SOCK_PULL, sock_endpoint(used)), SYSTEM_FAILED);
    sock_close(&used, 0);
}

/* In a child, since the flag of a signal stays up: its exit status is what the wait said. */
static void a_signal_ends_a_wait(void **state) {
    (void)state;
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct sock *s;
        alarm(30);
        stop_install();
        if (sock_bind(&s, SOCK_DUPLEX, endpoint) || write(ready[1], "r", 1) != 1)
            _exit(1);
        enum sock_event e = recv_nothing(s, clock_deadline(20));
        sock_close(&s, 0);
        _exit(e == SOCK_INTERRUPTED ? 42 : 2);
    }
    char byte;
    int status;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    int64_t start = clock_ns();
    kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(clock_ns() - start < 5000000000);
    assert_int_equal(WEXITSTATUS(status), 42);
    close(ready[0]);
    close(ready[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(duplex_carries_both_ways_and_the_name_is_private_and_removed),
        cmocka_unit_test(waits_end_at_their_deadline),
        cmocka_unit_test(nothing_is_lost_before_the_news),
        cmocka_unit_test(killed_peers_are_heard_of_once_each),
        cmocka_unit_test(a_killed_server_is_heard_of),
        cmocka_unit_test(strangers_are_no_peers),
        cmocka_unit_test(a_living_name_is_refused_and_a_dead_one_taken_over),
        cmocka_unit_test(wrong_endpoints_are_refused),
        cmocka_unit_test(a_signal_ends_a_wait),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
