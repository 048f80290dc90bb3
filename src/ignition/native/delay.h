/* What threads lose to others: time in which they stood ready and had no processor.
 *
 * Linux keeps it for every thread (the second number of /proc/thread-self/schedstat, in
 * nanoseconds). Where it is not told, every function here answers as if nothing was lost. */
#ifndef IGN_DELAY_H
#define IGN_DELAY_H

#include <stdint.h>

/* Opens the calling thread's account; -1 where there is none. Any thread may read it. */
int delay_open(void);
void delay_close(int account);

/* Nanoseconds lost since the thread began; 0 without an account and after the thread's end. */
uint64_t delay_ns(int account);

uint64_t monotonic_ns(void);

#endif
