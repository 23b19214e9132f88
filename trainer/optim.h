/* optim: SGD with momentum or Nesterov, and Adam, with PyTorch's formulas (torch.optim.SGD,
 * torch.optim.Adam): weight decay is added to the gradient of every trained parameter. */
#ifndef DDPIPE_OPTIM_H
#define DDPIPE_OPTIM_H

#include "trainer/net.h"

struct optim_options {
    const char *name; /* "sgd" or "adam" */
    double momentum, beta1, beta2, eps, weight_decay;
    bool nesterov;
    double shift_rate_scale; /* BatchNorm shifts: rate × this, decay ÷ this */
};

struct optim {
    struct optim_options options;
    struct backend_group base[NET_PARAMS_MAX]; /* for rate 1 */
    int count;
    float *moment, *square; /* sgd: moment alone */
    int64_t steps;
};

int optim_open(struct optim **o, struct net *net, const struct optim_options *options);

/* One step at this learning rate with gradient scale · net->grads. */
void optim_step(struct optim *o, struct net *net, double rate, double scale);

/* From now on the bias of an INIT_WHITEN layer stays put. */
void optim_freeze_stem(struct optim *o, const struct net *net);

void optim_close(struct optim **o);

#endif
