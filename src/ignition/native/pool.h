/* A small thread pool for phases of a few microseconds.
 *
 * The calling thread publishes a phase of numbered tasks and works on it too. Every thread starts
 * with its own contiguous share, in order, so that weights stream; who is done takes tasks from the
 * far end of another's share, so a thread that lost its core delays only the task it holds.
 * Between phases threads spin for some tens of microseconds and then sleep, so an idle engine burns
 * no CPU. Which thread runs a task must never change a result. */
#ifndef IGN_POOL_H
#define IGN_POOL_H

#include <stdint.h>

typedef struct pool pool;

/* A task: index within the phase, number of the executing thread (0 is the caller). */
typedef void (*task_fn)(void *argument, int index, int thread);

/* Starts threads - 1 workers. Returns NULL when a thread cannot be started. */
pool *pool_create(int threads);
void pool_destroy(pool *p);
int pool_threads(const pool *p);

/* What the pool's threads lose to others (delay.h) from pool_watch on, both asked by the caller of
 * pool_run. Threads make up for each other, so what one of n loses holds the pool up for an n-th. */
void pool_watch(pool *p);
uint64_t pool_lost_ns(const pool *p);

/* Runs tasks 0..count-1 and returns when all are done. */
void pool_run(pool *p, task_fn run, void *argument, int count);

#endif
