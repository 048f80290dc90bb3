#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "delay.h"

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
    LINE = 64,
    INDEX_BITS = 24
};

#define INDEX_MASK ((1u << INDEX_BITS) - 1)

typedef struct {
    task_fn run;
    void *argument;
} phase;

/* A thread's share of the running phase: epoch (16 bits) | end (24) | next (24). Tasks are taken by
 * exchanging the whole word, so a late thread can never take a task of another phase. */
typedef struct {
    _Alignas(LINE) _Atomic uint64_t word;
} share;

struct pool {
    _Alignas(LINE) _Atomic int remaining; /* tasks of the phase that are not finished */
    _Alignas(LINE) _Atomic int sleepers;
    _Atomic int stopping;
    _Atomic int caller_sleeps;
    phase phases[RING];
    uint64_t epoch;
    int threads;
    share *shares;
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_cond_t done;
    pthread_t *workers;
    _Atomic int *accounts; /* of what each thread lost to others; the caller's is number 0 */
    pthread_t caller;
    uint64_t *delays; /* of each thread when the watched interval began */
    uint64_t watched_ns;
};

typedef struct {
    pool *p;
    int number;
} worker_start;

static uint64_t next_of(uint64_t word) { return word & INDEX_MASK; }
static uint64_t end_of(uint64_t word) { return (word >> INDEX_BITS) & INDEX_MASK; }

static uint64_t share_word(uint64_t epoch, uint64_t end, uint64_t next) {
    return (epoch & 0xffff) << (2 * INDEX_BITS) | end << INDEX_BITS | next;
}

/* Takes the first task of one's own share or the last of another's. Returns 0 when it is empty. */
static int take(share *s, int is_own, uint64_t *word, uint64_t *index) {
    uint64_t seen = atomic_load_explicit(&s->word, memory_order_acquire);
    while (next_of(seen) < end_of(seen)) {
        uint64_t after = is_own ? seen + 1 : seen - (UINT64_C(1) << INDEX_BITS);
        if (atomic_compare_exchange_weak(&s->word, &seen, after)) {
            *word = seen;
            *index = is_own ? next_of(seen) : end_of(seen) - 1;
            return 1;
        }
    }
    return 0;
}

static void finish(pool *p, int thread, int tasks) {
    if (tasks && atomic_fetch_sub(&p->remaining, tasks) == tasks && thread != 0 &&
        atomic_load(&p->caller_sleeps)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->done);
        pthread_mutex_unlock(&p->lock);
    }
}

/* Runs tasks until no share has any left. */
static void work_off(pool *p, int thread) {
    int finished = 0;
    for (int i = 0; i < p->threads;) {
        int owner = (thread + i) % p->threads;
        uint64_t word, index;
        if (!take(&p->shares[owner], i == 0, &word, &index)) {
            i++;
            continue;
        }
        const phase *now = &p->phases[(word >> (2 * INDEX_BITS)) % RING];
        now->run(now->argument, (int)index, thread);
        finished++;
        if (i == 0) continue;
        /* Once this is reported a new phase may begin, and then one's own share comes first. */
        finish(p, thread, finished);
        finished = 0;
        i = 0;
    }
    finish(p, thread, finished);
}

static int has_task(pool *p) {
    for (int i = 0; i < p->threads; i++) {
        uint64_t word = atomic_load_explicit(&p->shares[i].word, memory_order_relaxed);
        if (next_of(word) < end_of(word)) return 1;
    }
    return 0;
}

static void sleep_for_work(pool *p) {
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (!has_task(p) && !atomic_load(&p->stopping)) pthread_cond_wait(&p->work, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *argument) {
    worker_start start = *(worker_start *)argument;
    free(argument);
    pool *p = start.p;
    atomic_store(&p->accounts[start.number], delay_open());
    while (!atomic_load_explicit(&p->stopping, memory_order_acquire)) {
        int spins = 0;
        while (!has_task(p) && spins < SPINS) {
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
    /* The caller's share last: the others can start while it still publishes. */
    for (int i = p->threads - 1; i >= 0; i--) {
        uint64_t first = (uint64_t)count * (uint64_t)i / (uint64_t)p->threads;
        uint64_t end = (uint64_t)count * (uint64_t)(i + 1) / (uint64_t)p->threads;
        atomic_store(&p->shares[i].word, share_word(p->epoch, end, first));
    }
    if (atomic_load(&p->sleepers) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&p->lock);
    }
    work_off(p, 0);
    wait_for_done(p);
}

int pool_threads(const pool *p) { return p->threads; }

void pool_watch(pool *p) {
    if (p->accounts[0] < 0 || !pthread_equal(p->caller, pthread_self())) {
        delay_close(atomic_exchange(&p->accounts[0], delay_open()));
        p->caller = pthread_self();
    }
    for (int i = 0; i < p->threads; i++) p->delays[i] = delay_ns(atomic_load(&p->accounts[i]));
    p->watched_ns = monotonic_ns();
}

uint64_t pool_lost_ns(const pool *p) {
    uint64_t lost = 0, interval = monotonic_ns() - p->watched_ns;
    for (int i = 0; i < p->threads; i++) {
        uint64_t now = delay_ns(atomic_load(&p->accounts[i]));
        /* The system counts a wait when it ends, so one may have begun before the interval. */
        uint64_t waited = now > p->delays[i] ? now - p->delays[i] : 0;
        lost += waited < interval ? waited : interval;
    }
    return lost / (uint64_t)p->threads;
}

static int start_worker(pool *p, int number) {
    worker_start *start = malloc(sizeof *start);
    if (!start) return 0;
    *start = (worker_start){p, number};
    if (pthread_create(&p->workers[number], NULL, worker_main, start) == 0) return 1;
    free(start);
    return 0;
}

static void stop_workers(pool *p, int started) {
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stopping, 1);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 1; i < started; i++) pthread_join(p->workers[i], NULL);
}

static void release(pool *p) {
    for (int i = 0; p->accounts && i < p->threads; i++) delay_close(p->accounts[i]);
    free(p->accounts);
    free(p->delays);
    free(p->workers);
    free(p->shares);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    free(p);
}

pool *pool_create(int threads) {
    pool *p = aligned_alloc(LINE, (sizeof *p + LINE - 1) / LINE * LINE);
    if (!p) return NULL;
    *p = (pool){.threads = threads};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    p->workers = calloc((size_t)threads, sizeof *p->workers);
    p->shares = aligned_alloc(LINE, (size_t)threads * sizeof *p->shares);
    p->accounts = calloc((size_t)threads, sizeof *p->accounts);
    p->delays = calloc((size_t)threads, sizeof *p->delays);
    for (int i = 0; p->accounts && i < threads; i++) atomic_init(&p->accounts[i], -1);
    int started = 1, has_memory = p->workers && p->shares && p->accounts && p->delays;
    if (has_memory) {
        for (int i = 0; i < threads; i++) atomic_init(&p->shares[i].word, 0);
        while (started < threads && start_worker(p, started)) started++;
    }
    if (!has_memory || started < threads) {
        stop_workers(p, started);
        release(p);
        return NULL;
    }
    return p;
}

void pool_destroy(pool *p) {
    if (!p) return;
    stop_workers(p, p->threads);
    release(p);
}
