/* address.c: see address.h. */
#include "lib/address.h"
#include "lib/log.h"
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int address_resolve(const char *host, char address[ADDRESS_SIZE]) {
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int error = getaddrinfo(host, NULL, &hints, &found);
    if (error)
        return fail(BAD_USAGE, "host \"%s\" has no IPv4 address: %s", host, gai_strerror(error));
    struct sockaddr_in in;
    memcpy(&in, found->ai_addr, sizeof in);
    freeaddrinfo(found);
    inet_ntop(AF_INET, &in.sin_addr, address, ADDRESS_SIZE);
    return 0;
}

bool address_is_loopback(const char *address) {
    return !strncmp(address, "127.", 4);
}

/* Calls visit with each interface's name and address until it returns true. */
static bool any_interface(bool (*visit)(void *arg, const char *name, const char *address),
                          void *arg) {
    struct ifaddrs *all;
    bool met = false;
    if (getifaddrs(&all) < 0)
        return false;
    for (struct ifaddrs *i = all; i && !met; i = i->ifa_next) {
        struct sockaddr_in in;
        char address[ADDRESS_SIZE];
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET)
            continue;
        memcpy(&in, i->ifa_addr, sizeof in);
        inet_ntop(AF_INET, &in.sin_addr, address, ADDRESS_SIZE);
        met = visit(arg, i->ifa_name, address);
    }
    freeifaddrs(all);
    return met;
}

static bool same_address(void *arg, const char *name, const char *address) {
    (void)name;
    return !strcmp(arg, address);
}

bool address_is_here(const char *address) {
    char copy[ADDRESS_SIZE];
    snprintf(copy, sizeof copy, "%s", address);
    return any_interface(same_address, copy);
}

struct wanted {
    const char *name;
    char *address;
    char list[256]; /* "lo 127.0.0.1, eth0 10.0.0.1" */
};

static bool same_name(void *arg, const char *name, const char *address) {
    struct wanted *w = arg;
    size_t used = strlen(w->list);
    snprintf(w->list + used, sizeof w->list - used, "%s%s %s", used ? ", " : "", name, address);
    if (strcmp(w->name, name) != 0)
        return false;
    memcpy(w->address, address, strlen(address) + 1);
    return true;
}

int address_of_interface(const char *name, char address[ADDRESS_SIZE]) {
    struct wanted w = {.name = name, .address = address};
    if (any_interface(same_name, &w))
        return 0;
    return fail(BAD_USAGE,
                "--interface %s: no interface of that name has an IPv4 address here (%s)", name,
                w.list);
}

static struct sockaddr_in socket_address(const char *address, int port) {
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, address, &in.sin_addr);
    return in;
}

/* Connecting a datagram socket sends nothing: it asks the routing table. */
int address_towards(const char *address, char own[ADDRESS_SIZE]) {
    struct sockaddr_in to = socket_address(address, 9), from;
    socklen_t size = sizeof from;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool found = fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0 &&
                 getsockname(fd, (struct sockaddr *)&from, &size) == 0;
    int error = errno;
    if (fd >= 0)
        close(fd);
    if (!found)
        return fail(BAD_USAGE, "this host has no way to %s: %s", address, strerror(error));
    inet_ntop(AF_INET, &from.sin_addr, own, ADDRESS_SIZE);
    return 0;
}

const char *address_probe(const char *address, int port) {
    struct sockaddr_in to = socket_address(address, port);
    int error = 0;
    socklen_t size = sizeof error;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return "no socket can be had";
    if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0)
        error = errno;
    if (error == EINPROGRESS) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (poll(&p, 1, 300) <= 0)
            error = ETIMEDOUT;
        else
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    close(fd);
    switch (error) {
    case 0: return "something listens there, but not this run's rank 0: is the port another's?";
    case ECONNREFUSED: return "nothing listens there: is rank 0 started, and on that host?";
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ETIMEDOUT:
        return "that host cannot be reached from here: check --master-addr, the network, a "
               "firewall";
    default: return strerror(error);
    }
}
