#include "delay.h"

#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int delay_open(void) { return open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC); }

void delay_close(int account) {
    if (account >= 0) close(account);
}

uint64_t delay_ns(int account) {
    char text[96];
    if (account < 0) return 0;
    ssize_t length = pread(account, text, sizeof text - 1, 0);
    if (length <= 0) return 0;
    text[length] = '\0';
    char *after_running = text;
    strtoull(text, &after_running, 10);
    return strtoull(after_running, NULL, 10);
}

uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
