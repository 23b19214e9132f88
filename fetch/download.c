/* download.c: one libcurl handle, used again for each attempt; each attempt asks for what is
 * missing (Range). A server that cannot do that sends the whole file again. */
#include "fetch/download.h"
#include "fetch/space.h"
#include "fetch/wait.h"
#include "lib/clock.h"
#include "lib/log.h"
#include "lib/progress.h"
#include "lib/stop.h"
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REDIRECTS_MAX = 5, SLOW_BYTES = 1024, SLOW_SECONDS = 30, BACK_OFF_MAX = 30 };
#define FILE_MAX_BYTES ((int64_t)2 << 30)

struct transfer {
    const struct download *want;
    CURL *curl;
    int fd;
    int64_t size;   /* of the file by now */
    int64_t offset; /* where this attempt began */
    bool space_checked;
    int code; /* of a failure already reported */
    char error[CURL_ERROR_SIZE];
    struct progress progress;
};

bool download_is_local(const char *url) {
    return !strncmp(url, "file://", 7);
}

bool download_knows(const char *url) {
    return download_is_local(url) || !strncmp(url, "http://", 7) || !strncmp(url, "https://", 8);
}

/* Before the first byte is written, where the server says how many there will be. */
static int check_space(struct transfer *t) {
    curl_off_t total = -1;
    t->space_checked = true;
    curl_easy_getinfo(t->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &total);
    return space_check(t->want->folder, (total > 0 ? (uint64_t)total : 0) + t->want->reserve_bytes,
                       t->want->url);
}

static size_t on_bytes(char *bytes, size_t one, size_t count, void *context) {
    struct transfer *t = context;
    size_t size = one * count;
    if (!t->space_checked && (t->code = check_space(t)))
        return 0;
    if (t->size + (int64_t)size > FILE_MAX_BYTES) {
        t->code = fail(BAD_INPUT, "%s is larger than 2 GiB", t->want->url);
        return 0;
    }
    for (size_t done = 0; done < size;) {
        ssize_t n = pwrite(t->fd, bytes + done, size - done, (off_t)t->size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            t->code = fail(SYSTEM_FAILED, "cannot write \"%s\" at offset %lld: %s", t->want->path,
                           (long long)t->size, strerror(errno));
            return 0;
        }
        done += (size_t)n;
        t->size += n;
    }
    return size;
}

/* Breaks the transfer off by a return value other than 0. */
static int on_progress(void *context, curl_off_t total, curl_off_t now, curl_off_t up_total,
                       curl_off_t up_now) {
    struct transfer *t = context;
    (void)up_total;
    (void)up_now;
    if (stop_requested())
        return 1;
    progress_show(&t->progress, (double)(t->offset + now),
                  total > 0 ? (double)(t->offset + total) : 0);
    return 0;
}

static int set_up(struct transfer *t) {
    CURL *c = t->curl;
    bool ok = !curl_easy_setopt(c, CURLOPT_URL, t->want->url);
    ok &= !curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https,file");
    ok &= !curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    ok &= !curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    ok &= !curl_easy_setopt(c, CURLOPT_MAXREDIRS, (long)REDIRECTS_MAX);
    ok &= !curl_easy_setopt(c, CURLOPT_FAILONERROR, 1L);
    ok &= !curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    ok &= !curl_easy_setopt(c, CURLOPT_USERAGENT, "ddpipe");
    ok &= !curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, lround(t->want->connect_seconds * 1e3));
    ok &= !curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, (long)SLOW_BYTES);
    ok &= !curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)SLOW_SECONDS);
    ok &= !curl_easy_setopt(c, CURLOPT_ERRORBUFFER, t->error);
    ok &= !curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_bytes);
    ok &= !curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    ok &= !curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    ok &= !curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    ok &= !curl_easy_setopt(c, CURLOPT_XFERINFODATA, t);
    return ok ? 0 : fail(SYSTEM_FAILED, "libcurl refuses to be set up for %s", t->want->url);
}

static CURLcode attempt(struct transfer *t) {
    int ms = clock_ms_left(t->want->deadline_ns);
    t->offset = t->size;
    t->error[0] = '\0';
    t->space_checked = false;
    curl_easy_setopt(t->curl, CURLOPT_RESUME_FROM_LARGE, (curl_off_t)t->offset);
    curl_easy_setopt(t->curl, CURLOPT_TIMEOUT_MS, (long)(ms > 0 ? ms : 1));
    return curl_easy_perform(t->curl);
}

static long http_status(const struct transfer *t) {
    long status = 0;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
    return status;
}

static bool may_pass(const struct transfer *t, CURLcode result) {
    long status = http_status(t);
    switch (result) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR: return true;
    case CURLE_HTTP_RETURNED_ERROR: return status == 408 || status == 429 || status >= 500;
    default: return false;
    }
}

/* The one line that says why there will be no further attempt. */
static int give_up(const struct transfer *t, CURLcode result, int attempts) {
    const char *url = t->want->url;
    if (t->code)
        return t->code;
    if (stop_requested())
        return fail(SYSTEM_FAILED, "stopped while downloading %s", url);
    const char *why = t->error[0] ? t->error : curl_easy_strerror(result);
    bool absent = result == CURLE_FILE_COULDNT_READ_FILE || result == CURLE_URL_MALFORMAT ||
                  (result == CURLE_HTTP_RETURNED_ERROR && !may_pass(t, result));
    char kept[96] = "";
    if (t->size)
        snprintf(kept, sizeof kept, "; %lld bytes are kept, to be continued", (long long)t->size);
    return fail(absent ? BAD_INPUT : SYSTEM_FAILED, "cannot download %s: %s (attempt %d)%s", url,
                why, attempts, kept);
}

static int start_over(struct transfer *t) {
    log_note("%s cannot be continued: starting over", t->want->url);
    if (ftruncate(t->fd, 0))
        return fail(SYSTEM_FAILED, "cannot empty \"%s\": %s", t->want->path, strerror(errno));
    t->size = 0;
    return 0;
}

static int transfer_run(struct transfer *t) {
    int attempts = 0;
    bool started_over = false;
    for (int left = t->want->retries;;) {
        CURLcode result = attempt(t);
        attempts++;
        progress_close(&t->progress);
        if (result == CURLE_OK)
            return 0;
        if (t->offset && !started_over &&
            (result == CURLE_RANGE_ERROR || result == CURLE_BAD_DOWNLOAD_RESUME)) {
            int rc = start_over(t);
            started_over = true;
            if (rc)
                return rc;
            continue;
        }
        if (t->size > t->offset)
            left = t->want->retries;
        if (t->code || stop_requested() || !may_pass(t, result) || left-- <= 0)
            return give_up(t, result, attempts);
        double seconds = fmin(ldexp(1, t->want->retries - left - 1), BACK_OFF_MAX);
        int64_t until = clock_deadline(seconds);
        if (until >= t->want->deadline_ns)
            return give_up(t, result, attempts);
        log_note("%s: %s; trying again in %.0f s", t->want->url,
                 t->error[0] ? t->error : curl_easy_strerror(result), seconds);
        if (wait_until(-1, until) == WAIT_STOPPED)
            return give_up(t, result, attempts);
    }
}

int download_file(const struct download *d, bool *resumed) {
    struct transfer t = {.want = d};
    struct stat s;
    const char *slash = strrchr(d->url, '/');
    t.progress = progress_open(slash && slash[1] ? slash + 1 : d->url, "MB", 1e6);
    t.fd = open(d->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (t.fd < 0 || fstat(t.fd, &s)) {
        if (t.fd >= 0)
            close(t.fd);
        return fail(SYSTEM_FAILED, "cannot create \"%s\": %s", d->path, strerror(errno));
    }
    t.size = s.st_size;
    *resumed = t.size > 0;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    t.curl = curl_easy_init();
    int rc = t.curl ? set_up(&t) : fail(SYSTEM_FAILED, "libcurl does not start");
    if (!rc)
        rc = transfer_run(&t);
    curl_easy_cleanup(t.curl);
    curl_global_cleanup();
    close(t.fd);
    if (rc && t.size == 0)
        unlink(d->path);
    return rc;
}
