/* model.c: builds the tables. In: the options; out: layers in forward order.
 *
 * A builder appends layers; each append returns the index that a later layer reads from. */
#include "trainer/model.h"
#include "lib/log.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int append(struct model *m, struct layer layer, const char *name, ...)
    __attribute__((format(printf, 3, 4)));

static int append(struct model *m, struct layer layer, const char *name, ...) {
    va_list ap;
    va_start(ap, name);
    vsnprintf(layer.name, sizeof layer.name, name, ap);
    va_end(ap);
    m->layers[m->count] = layer;
    return m->count++;
}

static int conv(struct model *m, int in, int channels, int kernel, bool bias, const char *name) {
    struct layer l = {.kind = LAYER_CONV,
                      .in = in,
                      .channels = channels,
                      .kernel = kernel,
                      .pad = kernel / 2,
                      .bias = bias};
    return append(m, l, "%s", name);
}

/* PyTorch's defaults: eps 1e-5, momentum 0.1 (torch.nn.BatchNorm2d). */
static int batchnorm(struct model *m, int in, bool relu, const char *name) {
    struct layer l = {.kind = LAYER_BATCHNORM,
                      .in = in,
                      .channels = m->layers[in].channels,
                      .relu = relu,
                      .eps = 1e-5f,
                      .momentum = 0.1f};
    return append(m, l, "%s", name);
}

static int pool(struct model *m, enum layer_kind kind, int in, int kernel) {
    struct layer l = {.kind = kind, .in = in, .channels = m->layers[in].channels, .kernel = kernel};
    return append(m, l, "pool");
}

static int linear(struct model *m, int in, bool bias, const char *name) {
    struct layer l = {.kind = LAYER_LINEAR, .in = in, .channels = m->classes, .bias = bias};
    return append(m, l, "%s", name);
}

/* VGG configuration A (arXiv 1409.1556, table 1) with BatchNorm, and one linear layer as for 32×32
 * images: 9,231,114 parameters with 10 classes. Names: torch.nn.Sequential `layers`, then `fc1`. */
static void vgg11(struct model *m) {
    static const int widths[] = {64,  0,   128, 0,   256, 256, 0,
                                 512, 512, 0,   512, 512, 0}; /* 0: pool */
    int x = LAYER_INPUT, place = 0;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        if (!widths[i]) {
            x = pool(m, LAYER_MAXPOOL, x, 2);
            place++;
            continue;
        }
        char name[48];
        snprintf(name, sizeof name, "layers.%d", place);
        x = conv(m, x, widths[i], 3, true, name);
        snprintf(name, sizeof name, "layers.%d", place + 1);
        x = batchnorm(m, x, true, name);
        place += 3;
    }
    linear(m, x, true, "fc1");
}

static int conv_bn_relu(struct model *m, int in, int channels, const char *prefix) {
    char name[48];
    snprintf(name, sizeof name, "%s.cbr.0", prefix);
    int x = conv(m, in, channels, 3, false, name);
    snprintf(name, sizeof name, "%s.cbr.1", prefix);
    return batchnorm(m, x, true, name);
}

static int residual(struct model *m, int in, int channels, double dropout, int number) {
    char name[40];
    snprintf(name, sizeof name, "block%d.layer1", number);
    int x = conv_bn_relu(m, in, channels, name);
    if (dropout > 0)
        x = append(m,
                   (struct layer){
                       .kind = LAYER_DROPOUT, .in = x, .channels = channels, .p = (float)dropout},
                   "block%d.dropout", number);
    snprintf(name, sizeof name, "block%d.layer2", number);
    x = conv_bn_relu(m, x, channels, name);
    int shortcut = in;
    if (m->layers[in].channels != channels) {
        snprintf(name, sizeof name, "block%d.scale", number);
        shortcut = conv(m, in, channels, 1, true, name);
    }
    return append(m,
                  (struct layer){.kind = LAYER_ADD, .in = x, .in2 = shortcut, .channels = channels},
                  "block%d", number);
}

/* The wide residual network of the data-parallel course: channels 16, 16k, 32k, 64k, two blocks
 * each, ReLU before the addition, and AvgPool2d(7) on 8×8 maps, which sees their top left 7×7.
 * 17,117,754 parameters with k = 10 and 10 classes. */
static void wideresnet(struct model *m, int k, double dropout) {
    int x = conv_bn_relu(m, LAYER_INPUT, 16, "input_block");
    for (int group = 0; group < 3; group++) {
        int channels = (16 << group) * k;
        x = residual(m, x, channels, dropout, 2 * group + 1);
        x = residual(m, x, channels, dropout, 2 * group + 2);
        if (group < 2)
            x = pool(m, LAYER_MAXPOOL, x, 2);
    }
    x = pool(m, LAYER_AVGPOOL, x, 7);
    linear(m, x, true, "fc");
}

static int speed_norm(struct model *m, int in, bool relu, const char *name) {
    int x = batchnorm(m, in, relu, name);
    m->layers[x].frozen = true; /* the scale stays 1 */
    m->layers[x].eps = 1e-12f;
    m->layers[x].momentum = 0.4f;
    if (!relu)
        x = append(m,
                   (struct layer){.kind = LAYER_GELU, .in = x, .channels = m->layers[in].channels},
                   "gelu");
    return x;
}

static int speed_group(struct model *m, int in, int channels, bool relu, int place) {
    char name[40];
    snprintf(name, sizeof name, "%d.conv1", place);
    int x = conv(m, in, channels, 3, false, name);
    m->layers[x].init = INIT_DIRAC;
    x = pool(m, LAYER_MAXPOOL, x, 2);
    snprintf(name, sizeof name, "%d.norm1", place);
    x = speed_norm(m, x, relu, name);
    snprintf(name, sizeof name, "%d.conv2", place);
    x = conv(m, x, channels, 3, false, name);
    m->layers[x].init = INIT_DIRAC;
    snprintf(name, sizeof name, "%d.norm2", place);
    return speed_norm(m, x, relu, name);
}

/* airbench94 (arXiv 2404.00498, section 3): a frozen whitening layer, three groups, the maximum of
 * the map (MaxPool2d(3) where inputs are 32×32), logits ÷ 9. */
static void speednet(struct model *m, const int widths[3], bool relu, bool stem_bias) {
    struct layer stem = {.kind = LAYER_CONV,
                         .in = LAYER_INPUT,
                         .channels = 2 * 4 * m->channels,
                         .kernel = 2,
                         .bias = true,
                         .relu = relu,
                         .frozen = true,
                         .bias_frozen = !stem_bias,
                         .init = INIT_WHITEN};
    int x = append(m, stem, "0");
    if (!relu)
        x = append(m, (struct layer){.kind = LAYER_GELU, .in = x, .channels = stem.channels}, "1");
    for (int i = 0; i < 3; i++)
        x = speed_group(m, x, widths[i], relu, 2 + i);
    x = pool(m, LAYER_MAXPOOL, x, 0);
    x = linear(m, x, false, "7");
    append(m, (struct layer){.kind = LAYER_SCALE, .in = x, .channels = m->classes, .p = 1.f / 9},
           "8");
}

static int read_widths(const char *text, int widths[3]) {
    char rest;
    if (sscanf(text, "%d,%d,%d%c", &widths[0], &widths[1], &widths[2], &rest) != 3)
        return fail(BAD_USAGE, "--widths %s: three numbers A,B,C are wanted", text);
    for (int i = 0; i < 3; i++)
        if (widths[i] < 1 || widths[i] > 4096)
            return fail(BAD_USAGE, "--widths %s: each must be 1 to 4096", text);
    return 0;
}

int model_build(struct model *m, const struct model_options *o) {
    memset(m, 0, sizeof *m);
    snprintf(m->name, sizeof m->name, "%s", o->name);
    m->channels = o->channels;
    m->classes = o->classes;
    if (!strcmp(o->name, "vgg11")) {
        vgg11(m);
    } else if (!strcmp(o->name, "wideresnet")) {
        wideresnet(m, (int)o->width, o->dropout);
    } else if (!strcmp(o->name, "speednet")) {
        int widths[3], rc = read_widths(o->widths, widths);
        if (rc)
            return rc;
        if (o->channels != 3)
            return fail(BAD_USAGE,
                        "--model speednet: its whitening layer is for 3 channels, the "
                        "data has %d",
                        o->channels);
        speednet(m, widths, !strcmp(o->activation, "relu"), o->stem_bias);
    } else {
        return fail(BAD_USAGE, "--model %s: vgg11, wideresnet or speednet is wanted", o->name);
    }
    return 0;
}
