/* Loaded into a gateway and its workers by LD_PRELOAD: a wall clock that is off, and a disk that is slow, as a
   file says that is mapped into memory: struct control. Everything else goes on as it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control {
  int64_t clock_offset_s;
  int64_t sync_us;  /* that each fsync and fdatasync takes longer */
  int64_t write_us; /* the same of each write to a file */
};

static const struct control none;
static const volatile struct control *control = &none;

__attribute__((constructor)) static void map_control(void) {
  const char *path = getenv("FLORIN_CHAOS_CONTROL");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *mapped = mmap(NULL, sizeof(struct control), PROT_READ, MAP_SHARED, file, 0);
  if (mapped != MAP_FAILED) control = mapped;
  close(file);
}

#define ORIGINAL(type, name, ...) \
  static type (*original)(__VA_ARGS__); \
  if (!original) original = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

int clock_gettime(clockid_t clock, struct timespec *time) {
  ORIGINAL(int, "clock_gettime", clockid_t, struct timespec *);
  int result = original(clock, time);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    time->tv_sec += control->clock_offset_s;
  return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  ORIGINAL(int, "gettimeofday", struct timeval *, void *);
  int result = original(time, zone);
  if (result == 0 && time) time->tv_sec += control->clock_offset_s;
  return result;
}

time_t time(time_t *result) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (result) *result = now.tv_sec;
  return now.tv_sec;
}

static void delay(int64_t us) {
  if (us > 0) usleep((useconds_t)us);
}

int fsync(int file) {
  ORIGINAL(int, "fsync", int);
  delay(control->sync_us);
  return original(file);
}

int fdatasync(int file) {
  ORIGINAL(int, "fdatasync", int);
  delay(control->sync_us);
  return original(file);
}

ssize_t write(int file, const void *data, size_t size) {
  ORIGINAL(ssize_t, "write", int, const void *, size_t);
  struct stat kind;
  if (control->write_us > 0 && fstat(file, &kind) == 0 && S_ISREG(kind.st_mode)) delay(control->write_us);
  return original(file, data, size);
}
