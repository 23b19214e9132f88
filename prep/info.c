/* info: prints what a store's header says, and how many images each class has. */
#include "prep/info.h"

#include <stdio.h>

void info_print(const struct store *s) {
    const struct store_geometry *g = &s->geometry;
    printf("path %s\nversion %d\ndigest %s\nsize_bytes %zu\n", s->path, STORE_VERSION, s->digest,
           s->map_size);
    printf("n_train %u\nn_val %u\nheight %u\nwidth %u\nchannels %u\nclasses %u\n", g->n_train,
           g->n_val, g->h, g->w, g->c, g->classes);
    uint32_t counts[2][STORE_CLASSES_MAX] = {{0}};
    for (uint32_t n = 0; n < g->n_train; n++)
        counts[0][s->train_labels[n] % STORE_CLASSES_MAX]++;
    for (uint32_t n = 0; n < g->n_val; n++)
        counts[1][s->val_labels[n] % STORE_CLASSES_MAX]++;
    for (uint32_t k = 0; k < g->classes; k++)
        printf("class %u %s\n", k, g->class_names[k]);
    for (uint32_t k = 0; k < g->classes; k++)
        printf("count %u %u %u\n", k, counts[0][k], counts[1][k]);
    for (uint32_t c = 0; c < g->c; c++)
        printf("mean %u %.17g\n", c, s->mean[c]);
    for (uint32_t c = 0; c < g->c; c++)
        printf("std %u %.17g\n", c, s->std[c]);
    for (int i = 0; i < STORE_OWNERS_MAX; i++)
        if (s->owners[i].pid > 0)
            printf("owner %d %s\n", (int)s->owners[i].pid,
                   store_owner_alive(&s->owners[i]) ? "alive" : "dead");
}
