/* check: are these images CIFAR-10, byte for byte? */
#ifndef DDPIPE_CHECK_H
#define DDPIPE_CHECK_H

#include <stdint.h>

/* Encodes count images (count,32,32,3) with their labels as CIFAR-10 binary records and compares
 * their md5 with the published one. BAD_INPUT names `what`, both digests, and --any-content. */
int check_cifar10(const char *what, uint32_t count, const uint8_t *pixels, const uint16_t *labels,
                  const char *md5);

#endif
