#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__x86_64__) || defined(__i386__)
#define relax() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define relax() __asm__ volatile("yield")
#else
#define relax() ((void)0)
#endif

enum {
    RING = 4,
    /* A pause takes about 15-50 ns, so this is 30 to 100 us. */
    SPINS = 2000,
    INDEX_BITS = 24,
    COUNT_BITS = 24
};

typedef struct {
    task_fn run;
    void *argument;
} phase;

struct pool {
    /* epoch (16 bits) | task count (24) | next task (24). One fetch_add both takes a task and says
     * of which phase it is, so a late thread can never mix two phases. */
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic int remaining;
    _Alignas(64) _Atomic int sleepers;
    _Atomic int stopping;
    phase phases[RING];
    uint64_t epoch;
    int threads;
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_cond_t done;
    _Atomic int caller_sleeps;
    pthread_t *workers;
};

typedef struct {
    pool *p;
    int number;
} worker_start;

/* Takes and runs tasks until the current phase has none left. */
static void work_off(pool *p, int thread) {
    const uint64_t index_mask = (1u << INDEX_BITS) - 1, count_mask = (1u << COUNT_BITS) - 1;
    for (;;) {
        uint64_t seen = atomic_load_explicit(&p->ticket, memory_order_acquire);
        if ((seen & index_mask) >= ((seen >> INDEX_BITS) & count_mask)) return;
        uint64_t got = atomic_fetch_add_explicit(&p->ticket, 1, memory_order_acq_rel);
        uint64_t index = got & index_mask, count = (got >> INDEX_BITS) & count_mask;
        if (index >= count) return;
        const phase *now = &p->phases[(got >> (INDEX_BITS + COUNT_BITS)) % RING];
        now->run(now->argument, (int)index, thread);
        if (atomic_fetch_sub(&p->remaining, 1) == 1 && thread != 0 &&
            atomic_load(&p->caller_sleeps)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

static int has_task(uint64_t ticket) {
    return (ticket & ((1u << INDEX_BITS) - 1)) <
           ((ticket >> INDEX_BITS) & ((1u << COUNT_BITS) - 1));
}

static void sleep_for_work(pool *p) {
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (!has_task(atomic_load(&p->ticket)) && !atomic_load(&p->stopping))
        pthread_cond_wait(&p->work, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *argument) {
    worker_start start = *(worker_start *)argument;
    free(argument);
    pool *p = start.p;
    while (!atomic_load_explicit(&p->stopping, memory_order_acquire)) {
        int spins = 0;
        while (!has_task(atomic_load_explicit(&p->ticket, memory_order_relaxed)) && spins < SPINS) {
            relax();
            spins++;
        }
        if (spins == SPINS) sleep_for_work(p);
        work_off(p, start.number);
    }
    return NULL;
}

static void wait_for_done(pool *p) {
    for (int spins = 0; spins < SPINS; spins++) {
        if (atomic_load_explicit(&p->remaining, memory_order_acquire) == 0) return;
        relax();
    }
    /* A worker lost its core in the middle of a task: give it ours. */
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_sleeps, 1);
    while (atomic_load(&p->remaining) != 0) pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->caller_sleeps, 0);
    pthread_mutex_unlock(&p->lock);
}

void pool_run(pool *p, task_fn run, void *argument, int count) {
    if (p->threads == 1 || count == 1) {
        for (int i = 0; i < count; i++) run(argument, i, 0);
        return;
    }
    if (count <= 0) return;
    p->epoch++;
    p->phases[p->epoch % RING] = (phase){run, argument};
    atomic_store_explicit(&p->remaining, count, memory_order_relaxed);
    uint64_t ticket = ((p->epoch & 0xffff) << (INDEX_BITS + COUNT_BITS)) |
                      ((uint64_t)count << INDEX_BITS);
    atomic_store(&p->ticket, ticket);
    if (atomic_load(&p->sleepers) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&p->lock);
    }
    work_off(p, 0);
    wait_for_done(p);
}

int pool_threads(const pool *p) { return p->threads; }

pool *pool_create(int threads) {
    pool *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    if (!p) return NULL;
    *p = (pool){.threads = 1};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    p->workers = calloc((size_t)threads, sizeof *p->workers);
    while (p->workers && p->threads < threads) {
        worker_start *start = malloc(sizeof *start);
        if (!start) break;
        *start = (worker_start){p, p->threads};
        if (pthread_create(&p->workers[p->threads], NULL, worker_main, start) != 0) {
            free(start);
            break;
        }
        p->threads++;
    }
    if (!p->workers || p->threads < threads) {
        pool_destroy(p);
        return NULL;
    }
    return p;
}

void pool_destroy(pool *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stopping, 1);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 1; i < p->threads; i++) pthread_join(p->workers[i], NULL);
    free(p->workers);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    free(p);
}
