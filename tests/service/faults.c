/* Lets the syncs and writes of a store fail while a file says so: "sync" fails one sync, "full" every write. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int told(int fd, const char *what) {
    char link[64], target[4096], said[16] = {0};
    const char *store = getenv("FAULTS_STORE"), *orders = getenv("FAULTS_ORDERS");
    if (store == NULL || orders == NULL) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, target, sizeof target - 1);
    if (length < 0) return 0;
    target[length] = 0;
    if (strncmp(target, store, strlen(store)) != 0) return 0;
    int file = open(orders, O_RDONLY);
    if (file < 0) return 0;
    ssize_t (*real)(int, void *, size_t) = dlsym(RTLD_NEXT, "read");
    real(file, said, sizeof said - 1);
    close(file);
    return strncmp(said, what, strlen(what)) == 0;
}

static int sync_or_fail(const char *name, int fd) {
    if (told(fd, "sync")) {
        unlink(getenv("FAULTS_ORDERS")); /* a second try would work: it must not be taken for good */
        errno = EIO;
        return -1;
    }
    int (*real)(int) = dlsym(RTLD_NEXT, name);
    return real(fd);
}

int fsync(int fd) { return sync_or_fail("fsync", fd); }
int fdatasync(int fd) { return sync_or_fail("fdatasync", fd); }

static ssize_t write_or_fail(const char *name, int fd, const void *data, size_t size, off_t place) {
    if (told(fd, "full")) {
        errno = ENOSPC;
        return -1;
    }
    ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, name);
    return real(fd, data, size, place);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t place) { return write_or_fail("pwrite", fd, data, size, place); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t place) { return write_or_fail("pwrite64", fd, data, size, place); }
