/* decode_cifar: the binary form of CIFAR-10 and CIFAR-100. A record is its label byte (CIFAR-100:
 * coarse, then fine label) and 3,072 pixel bytes: the R, G and B planes, row-major. The files are
 * mapped, and one file is one piece of work. Source: the data sets' page,
 * https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version". */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/file.h"
#include "lib/log.h"
#include "prep/decode.h"

enum { SIDE = 32, PLANE = SIDE * SIDE, PIXELS = 3 * PLANE, FILES = DATASET_CIFAR10_PARTS };

struct cifar {
    size_t label_bytes; /* the last of them is the label */
    struct cifar_file {
        char path[1024];
        uint8_t *bytes;
        size_t size;
    } files[FILES];
};

static int map_file(struct cifar_file *file, size_t record) {
    int fd = open(file->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(BAD_INPUT, "cannot open %s: %s", file->path, strerror(errno));
    struct stat st;
    int r = 0;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        r = fail(BAD_INPUT, "%s is no plain file", file->path);
    else if (st.st_size == 0 || (size_t)st.st_size % record != 0)
        r = fail(BAD_INPUT,
                 "%s: %lld bytes are %lld records of %zu bytes and %lld left over: cut "
                 "short, or not this format",
                 file->path, (long long)st.st_size, (long long)st.st_size / (long long)record,
                 record, (long long)st.st_size % (long long)record);
    if (!r) {
        void *bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED)
            r = fail(SYSTEM_FAILED, "cannot map %s: %s", file->path, strerror(errno));
        else {
            file->bytes = bytes;
            file->size = (size_t)st.st_size;
        }
    }
    close(fd);
    return r;
}

static int add_file(struct decode *d, uint32_t index, const char *name, enum decode_split split,
                    const char *md5) {
    struct cifar *cifar = d->state;
    struct cifar_file *file = &cifar->files[index];
    size_t record = cifar->label_bytes + PIXELS;
    int r = file_join(file->path, sizeof file->path, d->options.dir, name);
    if (!r)
        r = map_file(file, record);
    if (r)
        return r;
    return decode_add_piece(d, (struct decode_piece){.split = split,
                                                     .count = (uint32_t)(file->size / record),
                                                     .file = index,
                                                     .md5 = md5});
}

static int open_state(struct decode *d, size_t label_bytes) {
    struct cifar *cifar = calloc(1, sizeof *cifar);
    if (!cifar)
        return fail(SYSTEM_FAILED, "out of memory");
    cifar->label_bytes = label_bytes;
    d->state = cifar;
    d->geometry.c = 3;
    d->geometry.h = d->geometry.w = SIDE;
    return 0;
}

static int open_cifar10(struct decode *d) {
    int r = open_state(d, 1);
    for (uint32_t i = 0; i < FILES && !r; i++) {
        const struct dataset_part *part = &dataset_cifar10[i];
        char path[1024];
        r = file_join(path, sizeof path, d->options.dir, part->binary);
        /* Own data in this format may need fewer files. */
        if (r || (d->options.any_content && access(path, F_OK) < 0))
            continue;
        r = add_file(d, i, part->binary, part->train ? DECODE_TRAIN : DECODE_VAL,
                     d->options.any_content ? NULL : part->md5);
    }
    for (uint32_t k = 0; k < 10 && !r; k++)
        r = decode_name_class(d, k, dataset_cifar10_classes[k]);
    return r;
}

static int open_cifar100(struct decode *d) {
    static const char names_file[] = "fine_label_names.txt";
    int r = open_state(d, 2);
    if (!r)
        r = add_file(d, 0, "train.bin", DECODE_TRAIN, NULL);
    if (!r)
        r = add_file(d, 1, "test.bin", DECODE_VAL, NULL);
    char path[1024], *names = NULL;
    size_t size;
    if (!r)
        r = file_join(path, sizeof path, d->options.dir, names_file);
    if (!r)
        r = file_read(path, 1 << 16, &names, &size);
    char *rest = NULL;
    uint32_t k = 0;
    for (char *name = r ? NULL : strtok_r(names, "\r\n", &rest); name && !r;
         name = strtok_r(NULL, "\r\n", &rest))
        r = decode_name_class(d, k++, name);
    free(names);
    return r;
}

static int fill(const struct decode *d, const struct decode_piece *piece, uint8_t *pixels,
                uint16_t *labels) {
    const struct cifar *cifar = d->state;
    const struct cifar_file *file = &cifar->files[piece->file];
    size_t record = cifar->label_bytes + PIXELS;
    for (uint32_t n = 0; n < piece->count; n++) {
        const uint8_t *from = file->bytes + n * record + cifar->label_bytes;
        labels[n] = from[-1];
        if (labels[n] >= d->geometry.classes)
            return fail(BAD_INPUT, "%s: record %u, offset %zu: label %u, but there are %u classes",
                        file->path, n, n * record + cifar->label_bytes - 1, labels[n],
                        d->geometry.classes);
        uint8_t *to = pixels + (size_t)n * PIXELS;
        for (size_t i = 0; i < PLANE; i++) {
            to[3 * i] = from[i];
            to[3 * i + 1] = from[PLANE + i];
            to[3 * i + 2] = from[2 * PLANE + i];
        }
    }
    return 0;
}

static void close_files(struct decode *d) {
    struct cifar *cifar = d->state;
    for (int i = 0; cifar && i < FILES; i++)
        if (cifar->files[i].bytes)
            munmap(cifar->files[i].bytes, cifar->files[i].size);
    free(cifar);
}

const struct decode_format decode_cifar = {open_cifar10, fill, close_files};
const struct decode_format decode_cifar100 = {open_cifar100, fill, close_files};
