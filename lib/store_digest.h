/* store_digest: the digest of a store's content, see struct store. For the store's own modules. */
#ifndef DDPIPE_STORE_DIGEST_H
#define DDPIPE_STORE_DIGEST_H

#include "lib/store.h"

/* Fills s->digest from s->geometry and the sections. */
int store_digest_compute(struct store *s);

#endif
