/* address: IPv4 addresses of hosts and of this host's interfaces, as "10.0.0.1". */
#ifndef DDPIPE_ADDRESS_H
#define DDPIPE_ADDRESS_H

#include <stdbool.h>

enum { ADDRESS_SIZE = 16 };

/* The first address of a host name or a number. BAD_USAGE, naming the host, where there is none. */
int address_resolve(const char *host, char address[ADDRESS_SIZE]);

/* 127.x.y.z: reaches no other host. */
bool address_is_loopback(const char *address);

/* Does an interface of this host have it? */
bool address_is_here(const char *address);

/* That of an interface ("eth0"). BAD_USAGE lists the interfaces where it is none or has none. */
int address_of_interface(const char *name, char address[ADDRESS_SIZE]);

/* That by which this host would reach another; BAD_USAGE where it has no way there. */
int address_towards(const char *address, char own[ADDRESS_SIZE]);

/* What happens when address:port is called, in words that say what to do; waits 0.3 s at most. */
const char *address_probe(const char *address, int port);

#endif
