/* model: the networks as tables of layers. Sources: FACTS of each network stand above its builder
 * in model.c; parameters carry the names of PyTorch's state_dict. */
#ifndef DDPIPE_MODEL_H
#define DDPIPE_MODEL_H

#include "trainer/layer.h"
#include <stdint.h>

enum { MODEL_LAYERS_MAX = 64 };

struct model_options {
    const char *name;       /* "vgg11", "wideresnet", "speednet" */
    int64_t width;          /* wideresnet: k of 16, 16k, 32k, 64k */
    const char *widths;     /* speednet: "A,B,C" */
    const char *activation; /* speednet: "gelu" or "relu" */
    bool stem_bias;         /* speednet: the whitening layer's bias is trained */
    double dropout;         /* wideresnet */
    int channels, classes;  /* of the data */
};

struct model {
    char name[32];
    int channels, classes; /* in, out */
    int count;
    struct layer layers[MODEL_LAYERS_MAX];
};

/* BAD_USAGE names the option that cannot be. */
int model_build(struct model *m, const struct model_options *o);

#endif
