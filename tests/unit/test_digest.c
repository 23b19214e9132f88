/* Proves that the digests are md5 and sha256: against the test suites of RFC 1321 (A.5) and of
 * FIPS 180-2 (appendix B), in one piece, in many, and of a file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/digest.h"
#include "lib/log.h"

#include <cmocka.h> /* last: it has a macro fail() */

static const struct known {
    enum digest_kind kind;
    const char *text, *hex;
} known[] = {
    {DIGEST_MD5, "", "d41d8cd98f00b204e9800998ecf8427e"},
    {DIGEST_MD5, "abc", "900150983cd24fb0d6963f7d28e17f72"},
    {DIGEST_MD5, "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
     "57edf4a22be3c955ac49da2e2107b67a"},
    {DIGEST_SHA256, "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {DIGEST_SHA256, "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {DIGEST_SHA256, "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
};
enum { KNOWN = sizeof known / sizeof *known };

static void one_piece(void **state) {
    (void)state;
    for (size_t i = 0; i < KNOWN; i++) {
        char hex[DIGEST_HEX_SIZE];
        assert_int_equal(digest_of_bytes(known[i].kind, known[i].text, strlen(known[i].text), hex),
                         0);
        assert_string_equal(hex, known[i].hex);
    }
}

static void many_pieces(void **state) {
    (void)state;
    for (size_t i = 0; i < KNOWN; i++) {
        char hex[DIGEST_HEX_SIZE];
        struct digest *d;
        assert_int_equal(digest_open(&d, known[i].kind), 0);
        for (const char *c = known[i].text; *c; c++)
            assert_int_equal(digest_add(d, c, 1), 0);
        assert_int_equal(digest_close(&d, hex), 0);
        assert_null(d);
        assert_string_equal(hex, known[i].hex);
    }
}

/* A million times "a" is longer than the buffer that a file is read through. */
static void files(void **state) {
    (void)state;
    char path[] = "/tmp/ddpipe-test.XXXXXX", hex[DIGEST_HEX_SIZE];
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    assert_non_null(f);
    for (int i = 0; i < 1000000; i++)
        putc('a', f);
    assert_int_equal(fclose(f), 0);
    int rc = digest_of_file(DIGEST_SHA256, path, hex);
    unlink(path);
    assert_int_equal(rc, 0);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    assert_int_equal(digest_of_file(DIGEST_MD5, path, hex), BAD_INPUT);
    assert_int_equal(digest_of_file(DIGEST_MD5, "/", hex), SYSTEM_FAILED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_piece),
        cmocka_unit_test(many_pieces),
        cmocka_unit_test(files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
