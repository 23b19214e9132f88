/* init.c: first weights. In: a laid-out net, a seed; out: its arena filled. */
#include "trainer/init.h"
#include "lib/log.h"
#include "lib/rng.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void uniform(float *x, size_t count, float bound, uint64_t seed, uint32_t param) {
    struct rng r = rng_at(seed, RNG_INIT, 0, param);
    for (size_t i = 0; i < count; i++)
        x[i] = (2 * rng_uniform(&r) - 1) * bound;
}

/* torch.nn.init.dirac_ on the first I filters. plain: (O,I,K,K). */
static void dirac(float *plain, const struct param *p) {
    size_t k = (size_t)p->dims[2], i = (size_t)p->dims[1], filter = i * k * k;
    size_t count = p->dims[0] < p->dims[1] ? (size_t)p->dims[0] : i;
    for (size_t f = 0; f < count; f++) {
        memset(plain + f * filter, 0, filter * sizeof *plain);
        plain[f * filter + f * k * k + (k / 2) * k + k / 2] = 1;
    }
}

/* Cyclic Jacobi rotations (Golub, Van Loan, Matrix Computations, 8.5): a becomes diagonal, columns
 * of v its eigenvectors. */
static void eigen(double a[INIT_PATCH][INIT_PATCH], double v[INIT_PATCH][INIT_PATCH]) {
    const int n = INIT_PATCH;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            v[i][j] = i == j;
    for (int sweep = 0; sweep < 30; sweep++)
        for (int p = 0; p < n; p++)
            for (int q = p + 1; q < n; q++) {
                if (fabs(a[p][q]) < 1e-300)
                    continue;
                double theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
                double t = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1));
                double c = 1 / sqrt(t * t + 1), s = t * c;
                for (int k = 0; k < n; k++) {
                    double x = a[k][p], y = a[k][q];
                    a[k][p] = c * x - s * y;
                    a[k][q] = s * x + c * y;
                }
                for (int k = 0; k < n; k++) {
                    double x = a[p][k], y = a[q][k];
                    a[p][k] = c * x - s * y;
                    a[q][k] = s * x + c * y;
                    x = v[k][p];
                    y = v[k][q];
                    v[k][p] = c * x - s * y;
                    v[k][q] = s * x + c * y;
                }
            }
}

void init_whiten(const struct init_patches *patches, const float *scale, const float *shift,
                 float *filters) {
    const int n = INIT_PATCH;
    double a[INIT_PATCH][INIT_PATCH], v[INIT_PATCH][INIT_PATCH];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double si = 255 * (double)scale[i / 4], sj = 255 * (double)scale[j / 4];
            double hi = (double)shift[i / 4], hj = (double)shift[j / 4];
            a[i][j] = si * sj * patches->moment[i][j] + si * hj * patches->mean[i] +
                      sj * hi * patches->mean[j] + hi * hj;
        }
    eigen(a, v);
    bool taken[INIT_PATCH] = {false};
    for (int f = 0; f < n; f++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!taken[i] && (best < 0 || a[i][i] > a[best][best]))
                best = i;
        taken[best] = true;
        double norm = sqrt(fmax(a[best][best], 0) + 5e-4);
        for (int i = 0; i < n; i++) {
            filters[f * n + i] = (float)(v[i][best] / norm);
            filters[(n + f) * n + i] = -filters[f * n + i];
        }
    }
}

static size_t fan_in(const struct net *net, const struct param *p) {
    for (int i = 0; i < net->param_count; i++) {
        const struct param *w = &net->params[i];
        if (w->layer == p->layer && w->kind == PARAM_WEIGHT)
            return w->count / (size_t)w->dims[0];
    }
    return 1;
}

int init_weights(struct net *net, uint64_t seed, const struct init_patches *patches) {
    for (int i = 0; i < net->param_count; i++) {
        const struct param *p = &net->params[i];
        const struct layer *l = &net->model.layers[p->layer];
        float *plain = calloc(p->count, sizeof *plain);
        if (!plain)
            return fail(SYSTEM_FAILED, "out of memory for %zu weights", p->count);
        if (p->kind == PARAM_BN_SCALE) {
            for (size_t k = 0; k < p->count; k++)
                plain[k] = 1;
        } else if (l->init == INIT_WHITEN && p->kind == PARAM_WEIGHT) {
            if (!patches || !(patches->moment[0][0] > 0)) {
                free(plain);
                return fail(BAD_INPUT,
                            "the store holds no patch statistics, which %s's first "
                            "layer needs",
                            net->model.name);
            }
            init_whiten(patches, net->scale, net->shift, plain);
        } else if (p->kind != PARAM_BN_SHIFT && l->init != INIT_WHITEN) {
            uniform(plain, p->count, 1 / sqrtf((float)fan_in(net, p)), seed, (uint32_t)i);
            if (l->init == INIT_DIRAC)
                dirac(plain, p);
        }
        net_put(net, p, plain, net->weights);
        free(plain);
    }
    return 0;
}
