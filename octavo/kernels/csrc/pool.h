// A pool of persistent threads. The calling thread takes part in every run; results never depend on which thread does which task.
#pragma once

#include <cstdint>

namespace octavo {

using Task = void (*)(void* context, int64_t index);

// Runs task(context, i) for every i in [0, count) and returns when all are done. The first exception thrown by a task is rethrown here, after
// the others have ended. A call while the pool is busy (from a task, or from another thread) runs on the calling thread alone.
void run_tasks(int64_t count, Task task, void* context);

int num_threads();
// Takes effect at the next run; 0 means available_cores(). Throws std::invalid_argument outside 0 .. 1024.
void set_num_threads(int count);
// Physical cores in the affinity mask of the process, bounded by the CPU quota of its control group; at least 1.
int available_cores();

template <class F>
inline void parallel_for(int64_t count, const F& f) {
  if (count == 1) {
    f(int64_t{0});
    return;
  }
  run_tasks(count, [](void* context, int64_t index) { (*static_cast<const F*>(context))(index); }, const_cast<F*>(&f));
}

}  // namespace octavo
