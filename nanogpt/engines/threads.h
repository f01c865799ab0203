// A thread pool: `share` splits a range into parts, which the threads compute.
//
// Outputs are bit-identical on any number of threads, because each number is computed by one thread,
// in a fixed order. A waiting thread spins for a moment and then sleeps, so an idle pool costs
// nothing. Threads take parts one by one, and nobody waits for a thread that has not taken one: if a
// machine has too few processors, the running threads do the work.

#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>
#if defined(__unix__) || defined(__APPLE__)
#include <signal.h>
#include <unistd.h>
#endif

constexpr int64_t MOST_THREADS = 1024;
constexpr int64_t PARTS_PER_THREAD = 4;  // so that others can take the parts of a delayed thread
constexpr auto SPIN = std::chrono::microseconds(50);

// The fewest multiplications in a part: two to seven microseconds, while synchronising takes one or
// two. Tests set it to 0.
static std::atomic<int64_t> least_work{1 << 16};

static int64_t process_id() {
#if defined(__unix__) || defined(__APPLE__)
  return getpid();
#else
  return 0;
#endif
}

static void spin_hint() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns whether `ready` became true within SPIN.
template <class Ready>
static bool spin_until(Ready ready) {
  const auto end = std::chrono::steady_clock::now() + SPIN;
  do {
    for (int i = 0; i < 16; i++) {
      if (ready()) return true;
      spin_hint();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

// Lets a thread sleep until a condition holds. Whoever makes it true must call `wake` afterwards.
// Both sides write first and then read, with sequential consistency, so one of them sees the other.
class Sleeper {
 public:
  template <class Ready>
  void wait(Ready ready) {
    if (spin_until(ready)) return;
    std::unique_lock<std::mutex> lock(mutex);
    asleep.store(true);
    condition.wait(lock, ready);
    asleep.store(false);
  }

  void wake() {
    if (!asleep.load()) return;
    std::lock_guard<std::mutex> lock(mutex);
    condition.notify_one();
  }

 private:
  std::atomic<bool> asleep{false};
  std::mutex mutex;
  std::condition_variable condition;
};

class Pool {
 public:
  typedef void (*Call)(void *body, int64_t part, int64_t parts, int thread);

  const int64_t process = process_id();

  // Calls call(body, part, parts, thread) for all parts on at most `threads` threads; the caller is
  // thread 0. Returns false immediately if the pool is working for another caller.
  bool run(int64_t parts, int64_t threads, Call call, void *body) {
    if (busy.exchange(true, std::memory_order_acquire)) return false;
    grow(threads - 1);
    const int64_t helpers = std::min<int64_t>({threads - 1, parts - 1, (int64_t)workers.size()});
    this->call = call;
    this->body = body;
    this->parts = parts;
    done.store(0, std::memory_order_relaxed);
    const uint64_t number = (open.load(std::memory_order_relaxed) >> 32) + 1;
    open.store(number << 32 | helpers << 16 | parts);
    for (int64_t i = 0; i < helpers; i++) workers[i]->wake();
    work(0);
    caller.wait([&] { return done.load() == parts; });
    busy.store(false, std::memory_order_release);
    return true;
  }

 private:
  // The job number, the number of helper threads, and the number of parts not yet taken, in 32, 16
  // and 16 bits. Between jobs no parts are left. A job's fields change only then, so a thread that
  // has taken a part may read them until that part is done.
  std::atomic<uint64_t> open{0};
  std::atomic<int64_t> done{0};
  std::atomic<bool> busy{false};
  Call call;
  void *body;
  int64_t parts;
  Sleeper caller;
  std::vector<std::unique_ptr<Sleeper>> workers;

  static bool may_take(uint64_t open, int thread) {
    return (open & 0xffff) && thread <= (int)(open >> 16 & 0xffff);
  }

  // Takes parts until none is left.
  void work(int thread) {
    uint64_t now = open.load(std::memory_order_acquire);
    while (may_take(now, thread)) {
      if (!open.compare_exchange_weak(now, now - 1, std::memory_order_acq_rel)) continue;
      const int64_t all = parts;
      call(body, all - (now & 0xffff), all, thread);
      if (done.fetch_add(1) + 1 == all) caller.wake();
      now = open.load(std::memory_order_acquire);
    }
  }

  // Workers never exit and the pool is never deleted: at process exit they are asleep.
  void grow(int64_t n) {
    if ((int64_t)workers.size() >= n) return;
#if defined(__unix__) || defined(__APPLE__)
    sigset_t all, before;  // leave signals to the interpreter's threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
    try {
      while ((int64_t)workers.size() < n) {
        std::unique_ptr<Sleeper> worker(new Sleeper);
        Sleeper *own = worker.get();
        const int thread = workers.size() + 1;
        workers.reserve(n);
        std::thread([this, own, thread] {
          while (true) {
            own->wait([&] { return may_take(open.load(), thread); });
            work(thread);
          }
        }).detach();
        workers.push_back(std::move(worker));
      }
    } catch (const std::system_error &) {  // out of threads: go on with fewer
    }
#if defined(__unix__) || defined(__APPLE__)
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
  }
};

// The threads that a call may use.
struct Team {
  Pool *pool = nullptr;
  int64_t threads = 1;
};

static std::atomic<Pool *> kept_pool{nullptr};

// A forked process has only the thread that called fork, so it gets a new pool.
static Team team_of(int64_t threads) {
  threads = std::min(threads, MOST_THREADS);
  if (threads <= 1) return {};
  Pool *pool = kept_pool.load(std::memory_order_acquire);
  while (!pool || pool->process != process_id()) {
    Pool *fresh = new Pool;
    if (kept_pool.compare_exchange_strong(pool, fresh, std::memory_order_acq_rel)) {
      pool = fresh;
    } else {
      delete fresh;
    }
  }
  return {pool, threads};
}

// Not inlined, so that a part of a range runs the same instructions as the whole.
template <class Body>
__attribute__((noinline, noclone)) static void call_part(void *body, int64_t begin, int64_t end,
                                                         int thread) {
  (*(Body *)body)(begin, end, thread);
}

// Calls body(begin, end, thread) for ranges that cover 0 … n - 1, or once for all of it if `work`,
// in multiplications, is too little to share. Concurrent calls have different `thread` numbers, all
// below team.threads. The body must not throw.
template <class Body>
static inline void share(const Team &team, int64_t n, int64_t work, Body body) {
  if (team.threads > 1 && n > 1) {
    const int64_t least = least_work.load(std::memory_order_relaxed);
    int64_t parts = std::min(n, PARTS_PER_THREAD * team.threads);
    if (least) parts = std::min(parts, work / least);
    struct Job {
      Body *body;
      int64_t n;
    } job = {&body, n};
    auto call = [](void *memory, int64_t part, int64_t parts, int thread) {
      const Job &job = *(const Job *)memory;
      call_part<Body>(job.body, job.n * part / parts, job.n * (part + 1) / parts, thread);
    };
    if (parts > 1 && team.pool->run(parts, team.threads, call, &job)) return;
  }
  if (n > 0) call_part<Body>(&body, 0, n, 0);
}
