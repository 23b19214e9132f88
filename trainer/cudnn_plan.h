/* cudnn_plan: execution plans of a cuDNN graph. Part of cudnn_graph, which see. */
#ifndef DDPIPE_CUDNN_PLAN_H
#define DDPIPE_CUDNN_PLAN_H

#include "trainer/cudnn_graph.h"

/* Fills g->plans from g->desc's operations: the first `wanted` of those that the heuristics
 * propose, that keep to the precision, and that need at most workspace_limit bytes. No plan is no
 * error; others are left in g->desc. */
void cudnn_plan_make(struct cudnn_graph *g, const struct cudnn_desc *device,
                     int64_t workspace_limit, int wanted);

#endif
