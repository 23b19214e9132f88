/* checkpoint: a net's weights as a safetensors file under the names of PyTorch's state_dict
 * (BatchNorm buffers included), so that load_state_dict(strict=True) takes them. */
#ifndef DDPIPE_CHECKPOINT_H
#define DDPIPE_CHECKPOINT_H

#include "trainer/net.h"

int checkpoint_save(struct net *net, const char *path);

/* Every tensor of the net must be there, of its shape and F32 (num_batches_tracked: I64), and no
 * other: BAD_INPUT names file and tensor. */
int checkpoint_load(struct net *net, const char *path);

#endif
