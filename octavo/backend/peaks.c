/* What this machine can do at most, for comparison: read bandwidth, float32 multiply-add rate, int8 multiply-add rate.
 *
 *   peaks THREADS WORKING_SET_MIB [SECONDS]   prints "read_gb_s float_gflop_s int8_gop_s", the best of several rounds each
 *
 * Every thread works on registers (the rates: independent chains, no memory) or reads its own share of one buffer (the bandwidth).
 * A multiply and an add count as two operations. Built for the processor it runs on; plain C where no vector extension is known.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { CHAINS = 10, STEPS = 4096 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* Each returns operations done, and gives a value away so that the work is not optimised out. */
#if defined(__AVX512F__)
static double float_chains(float *sink) {
  __m512 a[CHAINS], x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
  for (int c = 0; c < CHAINS; c++) a[c] = _mm512_set1_ps((float)c);
  for (int i = 0; i < STEPS; i++)
    for (int c = 0; c < CHAINS; c++) a[c] = _mm512_fmadd_ps(a[c], x, y);
  for (int c = 1; c < CHAINS; c++) a[0] = _mm512_add_ps(a[0], a[c]);
  _mm512_storeu_ps(sink, a[0]);
  return 2.0 * 16 * CHAINS * STEPS;
}
#elif defined(__AVX2__) && defined(__FMA__)
static double float_chains(float *sink) {
  __m256 a[CHAINS], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
  for (int c = 0; c < CHAINS; c++) a[c] = _mm256_set1_ps((float)c);
  for (int i = 0; i < STEPS; i++)
    for (int c = 0; c < CHAINS; c++) a[c] = _mm256_fmadd_ps(a[c], x, y);
  for (int c = 1; c < CHAINS; c++) a[0] = _mm256_add_ps(a[0], a[c]);
  _mm256_storeu_ps(sink, a[0]);
  return 2.0 * 8 * CHAINS * STEPS;
}
#elif defined(__aarch64__)
static double float_chains(float *sink) {
  float32x4_t a[CHAINS], x = vdupq_n_f32(0.999f), y = vdupq_n_f32(0.001f);
  for (int c = 0; c < CHAINS; c++) a[c] = vdupq_n_f32((float)c);
  for (int i = 0; i < STEPS; i++)
    for (int c = 0; c < CHAINS; c++) a[c] = vfmaq_f32(y, a[c], x);
  for (int c = 1; c < CHAINS; c++) a[0] = vaddq_f32(a[0], a[c]);
  vst1q_f32(sink, a[0]);
  return 2.0 * 4 * CHAINS * STEPS;
}
#else
static double float_chains(float *sink) {
  float a[CHAINS * 4];
  for (int c = 0; c < CHAINS * 4; c++) a[c] = (float)c;
  for (int i = 0; i < STEPS; i++)
    for (int c = 0; c < CHAINS * 4; c++) a[c] = a[c] * 0.999f + 0.001f;
  memcpy(sink, a, 16 * sizeof *sink);
  return 2.0 * 4 * CHAINS * STEPS;
}
#endif

#if defined(__AVX512VNNI__)
static double int8_chains(int32_t *sink) {
  __m512i a[CHAINS], x = _mm512_set1_epi8(3);
  for (int c = 0; c < CHAINS; c++) a[c] = _mm512_set1_epi32(c);
  for (int i = 0; i < STEPS; i++) {
    __m512i y = _mm512_set1_epi32(i);
    for (int c = 0; c < CHAINS; c++) a[c] = _mm512_dpbusd_epi32(a[c], x, y);
  }
  for (int c = 1; c < CHAINS; c++) a[0] = _mm512_add_epi32(a[0], a[c]);
  _mm512_storeu_si512(sink, a[0]);
  return 2.0 * 64 * CHAINS * STEPS;
}
#elif defined(__AVX2__)
/* Without VNNI: bytes to 16 bits, to 32 bits, added. */
static double int8_chains(int32_t *sink) {
  __m256i a[CHAINS], x = _mm256_set1_epi8(3), one = _mm256_set1_epi16(1);
  for (int c = 0; c < CHAINS; c++) a[c] = _mm256_set1_epi32(c);
  for (int i = 0; i < STEPS; i++)
    for (int c = 0; c < CHAINS; c++) {
      __m256i y = _mm256_set1_epi32(i + c);
      a[c] = _mm256_add_epi32(a[c], _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), one));
    }
  for (int c = 1; c < CHAINS; c++) a[0] = _mm256_add_epi32(a[0], a[c]);
  _mm256_storeu_si256((__m256i *)sink, a[0]);
  return 2.0 * 32 * CHAINS * STEPS;
}
#elif defined(__ARM_FEATURE_DOTPROD)
static double int8_chains(int32_t *sink) {
  int32x4_t a[CHAINS];
  int8x16_t x = vdupq_n_s8(3);
  for (int c = 0; c < CHAINS; c++) a[c] = vdupq_n_s32(c);
  for (int i = 0; i < STEPS; i++) {
    int8x16_t y = vdupq_n_s8((int8_t)i);
    for (int c = 0; c < CHAINS; c++) a[c] = vdotq_s32(a[c], x, y);
  }
  for (int c = 1; c < CHAINS; c++) a[0] = vaddq_s32(a[0], a[c]);
  vst1q_s32(sink, a[0]);
  return 2.0 * 16 * CHAINS * STEPS;
}
#else
static double int8_chains(int32_t *sink) {
  int32_t a[CHAINS * 4];
  for (int c = 0; c < CHAINS * 4; c++) a[c] = c;
  for (int i = 0; i < STEPS; i++)
    for (int c = 0; c < CHAINS * 4; c++) a[c] += (int32_t)(int8_t)(i + c) * (int8_t)(c + 3);
  memcpy(sink, a, 16 * sizeof *sink);
  return 2.0 * 4 * CHAINS * STEPS;
}
#endif

static uint64_t read_all(const uint64_t *data, size_t count) {
  uint64_t sums[8] = {0};
  for (size_t i = 0; i + 8 <= count; i += 8)
    for (int j = 0; j < 8; j++) sums[j] ^= data[i + j];
  for (int j = 1; j < 8; j++) sums[0] ^= sums[j];
  return sums[0];
}

typedef struct {
  int kind; /* 0 read, 1 float, 2 int8 */
  double seconds, rate;
  const uint64_t *data;
  size_t count;
  pthread_barrier_t *barrier;
  char sink[64];
} Task;

/* Rate of one thread over whole rounds of at least ``seconds``. */
static void *work(void *argument) {
  Task *t = argument;
  pthread_barrier_wait(t->barrier);
  double start = now(), done = 0, end;
  do {
    if (t->kind == 0) {
      volatile uint64_t sum = read_all(t->data, t->count);
      (void)sum;
      done += 8.0 * t->count;
    } else {
      done += t->kind == 1 ? float_chains((float *)t->sink) : int8_chains((int32_t *)t->sink);
    }
    end = now();
  } while (end - start < t->seconds);
  t->rate = done / (end - start);
  return NULL;
}

static double measure(int kind, int threads, const uint64_t *data, size_t count, double seconds) {
  pthread_t *ids = calloc(threads, sizeof *ids);
  Task *tasks = calloc(threads, sizeof *tasks);
  double best = 0;
  for (int round = 0; round < 5; round++) {
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, threads);
    for (int i = 0; i < threads; i++) {
      Task task = {kind, seconds, 0, data + i * (count / threads), count / threads, &barrier, {0}};
      tasks[i] = task;
      pthread_create(&ids[i], NULL, work, &tasks[i]);
    }
    double rate = 0;
    for (int i = 0; i < threads; i++) {
      pthread_join(ids[i], NULL);
      rate += tasks[i].rate;
    }
    pthread_barrier_destroy(&barrier);
    if (rate > best) best = rate;
  }
  free(ids);
  free(tasks);
  return best / 1e9;
}

int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 1;
  size_t count = (size_t)(argc > 2 ? atoi(argv[2]) : 256) * (1 << 20) / 8;
  double seconds = argc > 3 ? atof(argv[3]) : 0.2;
  uint64_t *data = NULL;
  if (threads < 1 || posix_memalign((void **)&data, 1 << 21, 8 * count)) return 1;
#if defined(MADV_HUGEPAGE)
  madvise(data, 8 * count, MADV_HUGEPAGE); /* as the weights have them */
#endif
  for (size_t i = 0; i < count; i++) data[i] = i;
  double read = measure(0, threads, data, count, seconds);
  double floats = measure(1, threads, data, count, seconds);
  double ints = measure(2, threads, data, count, seconds);
  printf("%.2f %.2f %.2f\n", read, floats, ints);
  free(data);
  return 0;
}
