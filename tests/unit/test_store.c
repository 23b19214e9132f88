/* test_store: a store comes back as it was written or not at all, is named by its content, and is
 * removed exactly when nobody needs it any more. Every test works in a folder of its own. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/digest.h"
#include "lib/file.h"
#include "lib/log.h"
#include "lib/pack.h"
#include "lib/store.h"

#include <cmocka.h> /* last: its fail() would hide the one of lib/log.h */

static char dir[64];

static int open_folder(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/dev/shm/ddpipe-test.XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int close_folder(void **state) {
    (void)state;
    return file_remove_tree(dir);
}

static const struct store_geometry small = {
    .n_train = 5, .n_val = 3, .c = 3, .h = 4, .w = 6, .classes = 2, .class_names = {"cat", "dog"}};

static void fill(struct store *s) {
    size_t image = (size_t)s->geometry.h * s->geometry.w * s->geometry.c;
    for (size_t i = 0; i < s->geometry.n_train * image; i++)
        s->train_images[i] = (uint8_t)(i * 7);
    for (size_t i = 0; i < s->geometry.n_val * image; i++)
        s->val_images[i] = (uint8_t)(i * 11);
    for (uint32_t n = 0; n < s->geometry.n_train; n++)
        s->train_labels[n] = (uint16_t)(n % 2);
    for (uint32_t n = 0; n < s->geometry.n_val; n++)
        s->val_labels[n] = (uint16_t)((n + 1) % 2);
    s->mean[1] = 0.25;
    s->std[2] = 0.5;
    s->patch_mean[11] = 0.75;
    s->patch_moment[11][10] = 0.125;
}

static struct store *make(pid_t owner) {
    struct store *s;
    assert_int_equal(store_create(&s, dir, &small), 0);
    fill(s);
    assert_int_equal(store_publish(s, owner), 0);
    return s;
}

static int names_in_folder(void) {
    char command[128], text[32];
    snprintf(command, sizeof command, "ls -A %s | wc -l", dir);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_non_null(fgets(text, sizeof text, pipe));
    pclose(pipe);
    return atoi(text);
}

/* A process that lives until it is killed, or this test dies of a failure. */
static pid_t start_sleeper(void) {
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    assert_true(pid > 0);
    return pid;
}

static void kill_sleeper(pid_t pid) {
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* Proves: every field and every byte of the sections survives, and the mode is 0600. */
static void test_round_trip(void **state) {
    (void)state;
    struct store *made = make(getpid()), *s;
    assert_int_equal(names_in_folder(), 1);
    assert_int_equal(store_open(&s, made->path), 0);
    assert_memory_equal(&s->geometry, &small, sizeof small);
    assert_string_equal(s->digest, made->digest);
    assert_true(s->mean[1] == 0.25 && s->std[2] == 0.5 && s->patch_mean[11] == 0.75 &&
                s->patch_moment[11][10] == 0.125 && s->patch_moment[10][11] == 0);
    for (size_t i = 0; i < 5 * 72; i++)
        assert_int_equal(s->train_images[i], (uint8_t)(i * 7));
    for (size_t i = 0; i < 3 * 72; i++)
        assert_int_equal(s->val_images[i], (uint8_t)(i * 11));
    for (int n = 0; n < 5; n++)
        assert_int_equal(s->train_labels[n], n % 2);
    for (int n = 0; n < 3; n++)
        assert_int_equal(s->val_labels[n], (n + 1) % 2);
    assert_int_equal(s->owners[0].pid, getpid());
    struct stat st;
    assert_int_equal(stat(s->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    store_close(&s);
    store_close(&made);
    assert_null(s);
}

/* Proves: the digest is what store.h says, computed here from that text alone. */
static void test_digest(void **state) {
    (void)state;
    struct store *s = make(getpid());
    uint8_t geometry[128];
    struct pack p = pack_open(geometry, sizeof geometry);
    const uint32_t numbers[] = {5, 3, 3, 4, 6, 2};
    for (int i = 0; i < 6; i++)
        pack_u32(&p, numbers[i]);
    pack_text(&p, "cat");
    pack_text(&p, "dog");
    char text[1024] = "ddpipe-store 1\n", hex[DIGEST_HEX_SIZE];
    size_t at = strlen(text);
    memcpy(text + at, geometry, p.at);
    at += p.at;
    const void *sections[] = {s->train_images, s->train_labels, s->val_images, s->val_labels};
    const size_t sizes[] = {5 * 72, 10, 3 * 72, 6};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(digest_of_bytes(DIGEST_SHA256, sections[i], sizes[i], hex), 0);
        memcpy(text + at, hex, 64);
        at += 64;
    }
    assert_int_equal(digest_of_bytes(DIGEST_SHA256, text, at, hex), 0);
    assert_string_equal(s->digest, hex);
    char path[256];
    snprintf(path, sizeof path, "%s/ddpipe.%u.%.16s", dir, (unsigned)getuid(), hex);
    assert_string_equal(s->path, path);
    store_close(&s);
}

/* Proves: data larger than a hashing piece (8 MiB) is told apart by its last byte, and the same
 * data gets the same digest. */
static void test_digest_of_large(void **state) {
    (void)state;
    struct store_geometry g = {
        .n_train = 9, .n_val = 1, .c = 4, .h = 512, .w = 512, .classes = 1, .class_names = {"x"}};
    char digests[3][65];
    for (int i = 0; i < 3; i++) {
        struct store *s;
        assert_int_equal(store_create(&s, dir, &g), 0);
        s->train_images[(size_t)9 * 512 * 512 * 4 - 1] = (uint8_t)(i / 2);
        assert_int_equal(store_publish(s, getpid()), 0);
        memcpy(digests[i], s->digest, 65);
        store_close(&s);
    }
    assert_string_equal(digests[0], digests[1]);
    assert_string_not_equal(digests[0], digests[2]);
}

/* Proves: a label or a class name alone changes the digest; a statistic does not. */
static void test_digest_covers(void **state) {
    (void)state;
    struct store *a = make(getpid()), *b;
    for (int i = 0; i < 3; i++) {
        struct store_geometry g = small;
        if (i == 0)
            snprintf(g.class_names[1], STORE_NAME_MAX, "doh");
        assert_int_equal(store_create(&b, dir, &g), 0);
        fill(b);
        if (i == 1)
            b->val_labels[2] = 0;
        if (i == 2)
            b->mean[0] = 0.5;
        assert_int_equal(store_publish(b, getpid()), 0);
        assert_int_equal(strcmp(a->digest, b->digest) == 0, i == 2);
        store_close(&b);
    }
    store_close(&a);
}

/* Proves: of two stores with the same content the first stays, and gets the second's owner. */
static void test_second_is_dropped(void **state) {
    (void)state;
    pid_t other = start_sleeper();
    struct store *first = make(getpid());
    struct stat before, after;
    assert_int_equal(stat(first->path, &before), 0);
    struct store *second = make(other);
    assert_int_equal(stat(first->path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_string_equal(first->path, second->path);
    assert_int_equal(names_in_folder(), 1);
    assert_int_equal(second->owners[0].pid, getpid());
    assert_int_equal(second->owners[1].pid, other);
    assert_int_equal(second->train_images[1], 7);
    store_close(&second);
    store_close(&first);
    kill_sleeper(other);
}

static void patch(const char *path, off_t at, const void *bytes, size_t size) {
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, size, at), size);
    close(fd);
}

/* Proves: each kind of damage is refused as bad input: no store, another version, not sealed, a
 * damaged geometry, cut short, longer, shorter than a header. */
static void test_damage_is_refused(void **state) {
    (void)state;
    static const struct {
        off_t at, size; /* size ≥ 0: cut or extend to it */
        uint8_t byte;
    } damages[] = {{0, -1, 'X'},  {8, -1, 2},      {12, -1, 0}, {400, -1, 9},
                   {0, 20000, 0}, {0, 1 << 20, 0}, {0, 100, 0}, {0, 0, 0}};
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        struct store *s = make(getpid());
        char path[256];
        snprintf(path, sizeof path, "%s", s->path);
        store_close(&s);
        if (damages[i].size < 0)
            patch(path, damages[i].at, &damages[i].byte, 1);
        else
            assert_int_equal(truncate(path, damages[i].size), 0);
        assert_int_equal(store_open(&s, path), BAD_INPUT);
        assert_null(s);
        assert_int_equal(unlink(path), 0);
    }
    struct store *s;
    assert_int_equal(store_open(&s, "ddpipe-there-is-no-such-store"), BAD_INPUT);
    assert_int_equal(store_open(&s, dir), BAD_INPUT);
}

/* Proves: what cannot fit is refused as a failure of the system before anything is left. */
static void test_too_big(void **state) {
    (void)state;
    struct store_geometry g = small;
    g.n_train = UINT32_MAX;
    g.h = g.w = STORE_SIDE_MAX;
    struct store *s;
    assert_int_equal(store_create(&s, dir, &g), SYSTEM_FAILED);
    assert_null(s);
    assert_int_equal(names_in_folder(), 0);
    g.n_val = 0;
    assert_int_equal(store_create(&s, dir, &g), BAD_INPUT);
}

/* Proves: a store never published leaves nothing, and neither does one whose owner is no process.
 */
static void test_unpublished_leaves_nothing(void **state) {
    (void)state;
    struct store *s;
    assert_int_equal(store_create(&s, dir, &small), 0);
    assert_int_equal(names_in_folder(), 1);
    store_close(&s);
    assert_int_equal(names_in_folder(), 0);
    pid_t dead = start_sleeper();
    kill_sleeper(dead);
    assert_int_equal(store_create(&s, dir, &small), 0);
    assert_int_equal(store_publish(s, dead), SYSTEM_FAILED);
    store_close(&s);
    assert_int_equal(names_in_folder(), 0);
}

/* Proves: a sweep leaves a store as long as its owner lives or a reader holds it, and no longer. */
static void test_sweep(void **state) {
    (void)state;
    pid_t owner = start_sleeper();
    struct store *s = make(owner);
    char path[256];
    snprintf(path, sizeof path, "%s", s->path);
    store_close(&s);
    assert_int_equal(store_sweep(dir), 0);
    assert_int_equal(names_in_folder(), 1);
    kill_sleeper(owner);
    assert_int_equal(store_open(&s, path), 0);
    assert_int_equal(store_sweep(dir), 0);
    assert_int_equal(names_in_folder(), 1);
    store_close(&s);
    assert_int_equal(store_sweep(dir), 0);
    assert_int_equal(names_in_folder(), 0);
}

/* Proves: a living process with the owner's pid but another start time does not keep a store, and
 * neither does a store of another version escape the sweep. Offset 20: the first owner's start. */
static void test_sweep_tells_processes_apart(void **state) {
    (void)state;
    struct store *s = make(getpid());
    patch(s->path, 20, "\x01\x00\x00\x00\x00\x00\x00\x00", 8);
    patch(s->path, 8, "\x07", 1);
    store_close(&s);
    assert_int_equal(store_sweep(dir), 0);
    assert_int_equal(names_in_folder(), 0);
}

/* Proves: the half-made file of a killed process is swept, that of a living one is not, and what is
 * no store of ours is left alone. */
static void test_sweep_half_made(void **state) {
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/ddpipe.%u.notours", dir, (unsigned)getuid());
    assert_int_equal(file_publish(path, "text", 4, 0600), 0);
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t maker = fork();
    if (maker == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct store *s;
        char result = (char)store_create(&s, dir, &small);
        if (write(ready[1], &result, 1) == 1)
            for (;;)
                pause();
        _exit(1);
    }
    char result = 1;
    assert_int_equal(read(ready[0], &result, 1), 1);
    assert_int_equal(result, 0);
    assert_int_equal(store_sweep(dir), 0);
    assert_int_equal(names_in_folder(), 2);
    kill_sleeper(maker);
    assert_int_equal(store_sweep(dir), 0);
    assert_int_equal(names_in_folder(), 1);
    assert_int_equal(access(path, F_OK), 0);
    close(ready[0]);
    close(ready[1]);
}

/* Proves: removing leaves a store that a reader holds, or that another living owner needs; the last
 * owner to leave takes it along, and owner 0 does not ask the owners. */
static void test_remove(void **state) {
    (void)state;
    pid_t other = start_sleeper();
    struct store *s = make(getpid()), *again = make(other);
    char path[256];
    snprintf(path, sizeof path, "%s", s->path);
    store_close(&again);
    assert_int_equal(store_remove(path, 0), 0);
    assert_int_equal(names_in_folder(), 1); /* we read it */
    store_close(&s);
    s = make(getpid());
    store_close(&s);
    assert_int_equal(store_remove(path, getpid()), 0);
    assert_int_equal(names_in_folder(), 1); /* the other owns it */
    assert_int_equal(store_remove(path, other), 0);
    assert_int_equal(names_in_folder(), 0);
    assert_int_equal(store_remove(path, other), 0); /* missing is no error */
    s = make(other);
    store_close(&s);
    assert_int_equal(store_remove(path, 0), 0);
    assert_int_equal(names_in_folder(), 0);
    kill_sleeper(other);
}

int main(void) {
    log_open("test_store", -1);
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, open_folder, close_folder)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_round_trip),
        IN_FOLDER(test_digest),
        IN_FOLDER(test_digest_of_large),
        IN_FOLDER(test_digest_covers),
        IN_FOLDER(test_second_is_dropped),
        IN_FOLDER(test_damage_is_refused),
        IN_FOLDER(test_too_big),
        IN_FOLDER(test_unpublished_leaves_nothing),
        IN_FOLDER(test_sweep),
        IN_FOLDER(test_sweep_tells_processes_apart),
        IN_FOLDER(test_sweep_half_made),
        IN_FOLDER(test_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
