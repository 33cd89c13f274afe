/* Gives a device library the launches of a file that record.py wrote and compares what it answers:
 *
 *     replay LIBRARY FILE [--json FILE] [--threads N]
 *
 * It prints a line for each kernel and exits with 1 where a result is outside of its bounds, memory beside a result was
 * written, or a launch failed or died. What the library declines is counted and listed. README.md says what the file
 * holds. Launches run in a child, so that one that dies ends itself alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "maca.h"
#include "record.h"

#ifndef RTLD_DEEPBIND
#define RTLD_DEEPBIND 0
#endif

enum { MOST = 1024 };

/* --- numbers --- */

static double half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, digits = bits & 1023;
  const double size = exponent == 31  ? (digits ? NAN : INFINITY)
                      : exponent == 0 ? ldexp(digits, -24)
                                      : ldexp(1024 + digits, exponent - 25);
  return bits >> 15 ? -size : size;
}

/* A number of `bits` bits, the part of a complex one. */
static double number(int code, int bits, const uint8_t* at) {
  if (bits == 64) {
    double value;
    memcpy(&value, at, 8);
    return value;
  }
  uint32_t word = 0;
  memcpy(&word, at, (size_t)bits / 8);
  if (bits == 16 && code != MACA_BFLOAT) return half((uint16_t)word);
  if (bits == 16) word <<= 16;
  float value;
  memcpy(&value, &word, 4);
  return value;
}

/* --- one record --- */

enum { PASSED, WRONG, DECLINED, FAILED, DIED };
typedef struct {
  uint32_t index;
  int32_t verdict;
  char text[400];
} Answer;

static const maca_interface* library;
static maca_device* device;

static int judge_check(const Record* r, const Check* check, uint8_t** written, Answer* answer) {
  const maca_operand* o = r->operands[check->pointer];
  const int32_t at = r->regions_of[check->pointer];
  if (at < 0) return 1;
  const Region* region = &r->regions[at];
  const size_t item = o->dtype.bits / 8u, parts = (size_t)part_count(o->dtype), part = item / parts;
  const int64_t count = elements(o);
  const uint8_t* want = check->answer;
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, place = 0;
    for (int32_t d = o->rank - 1; d >= 0; --d) {
      place += rest % o->sizes[d] * o->strides[d];
      rest /= o->sizes[d];
    }
    const uint64_t offset = region->shift + r->offsets[check->pointer] + (uint64_t)place * item;
    const uint8_t* have = region->after + offset;
    memset(written[at] + offset, 1, item);
    char said[200] = "";
    if (check->kind == 0) {
      const int same = o->dtype.code == MACA_BOOL ? !*have == !*want : memcmp(have, want, item) == 0;
      if (!same) {
        int64_t a = 0, b = 0;
        memcpy(&a, have, item < 8 ? item : 8);
        memcpy(&b, want, item < 8 ? item : 8);
        snprintf(said, sizeof said, "got %lld, expected %lld", (long long)a, (long long)b);
      }
      want += item;
    } else {
      for (size_t p = 0; p < parts; ++p, want += 16) {
        double lowest, highest;
        memcpy(&lowest, want, 8);
        memcpy(&highest, want + 8, 8);
        const double got = number(o->dtype.code, (int)part * 8, have + p * part);
        const int right = isnan(lowest) ? isnan(got) : got >= lowest && got <= highest;
        if (!right) snprintf(said, sizeof said, "got %.17g, allowed %.17g to %.17g", got, lowest, highest);
      }
    }
    if (said[0] && wrong++ == 0)
      snprintf(answer->text, sizeof answer->text, "operand %u element %lld: %s", check->pointer, (long long)i, said);
  }
  if (!wrong) return 1;
  const size_t used = strlen(answer->text);
  snprintf(answer->text + used, sizeof answer->text - used, "; %lld of %lld wrong", (long long)wrong, (long long)count);
  return 0;
}

static int judge(const Record* r, Answer* answer) {
  uint8_t** written = keep(r->region_count * sizeof *written);
  for (uint32_t i = 0; i < r->region_count; ++i) written[i] = keep(r->regions[i].room);
  for (uint32_t i = 0; i < r->check_count; ++i)
    if (!judge_check(r, &r->checks[i], written, answer)) return 0;
  for (uint32_t i = 0; i < r->region_count; ++i)
    for (uint64_t k = 0; k < r->regions[i].room; ++k)
      if (!written[i][k] && r->regions[i].before[k] != r->regions[i].after[k]) {
        snprintf(answer->text, sizeof answer->text, "byte %lld of region %u, which is no result's, was written",
                 (long long)k - r->regions[i].shift, i);
        return 0;
      }
  return 1;
}

static void fail(Answer* answer, const char* what, maca_status status) {
  maca_error error = {.size = sizeof error};
  library->error_take(device, &error);
  answer->verdict = FAILED;
  snprintf(answer->text, sizeof answer->text, "%s gave status %d: %.300s", what, (int)status, error.text);
}

/* Fills the memory, launches, reads it back. */
static maca_status launch(Record* r, const maca_plan* plan, maca_launch* launched) {
  for (uint32_t i = 0; i < r->region_count; ++i)
    library->copy(device, MACA_COPY_TO_DEVICE, r->regions[i].device, r->regions[i].before, r->regions[i].room, 0, NULL);
  const maca_status status = library->plan_launch(device, plan, launched);
  library->device_synchronize(device);
  for (uint32_t i = 0; i < r->region_count; ++i)
    library->copy(device, MACA_COPY_TO_HOST, r->regions[i].after, r->regions[i].device, r->regions[i].room, 0, NULL);
  return status;
}

static void* device_memory(uint64_t bytes) {
  void* address = NULL;
  if (library->memory_allocate(device, bytes ? bytes : 1, &address) != MACA_OK) {
    fprintf(stderr, "replay: no %llu bytes of device memory\n", (unsigned long long)bytes);
    exit(2);
  }
  return address;
}

static void replay(Record* r, Answer* answer) {
  maca_reason reason = {.size = sizeof reason};
  maca_plan* plan = NULL;
  maca_status status = library->plan_create(device, &r->request, &plan, &reason);
  if (status != MACA_OK) {
    answer->verdict = status == MACA_DECLINED ? DECLINED : FAILED;
    snprintf(answer->text, sizeof answer->text, "%.390s", reason.text);
    return;
  }
  maca_plan_info info = {.size = sizeof info, .packed_operand = -1};
  library->plan_info(device, plan, &info);
  for (uint32_t i = 0; i < r->region_count; ++i) r->regions[i].device = device_memory(r->regions[i].room);
  void** pointers = keep(r->pointer_count * sizeof *pointers);
  for (uint32_t i = 0; i < r->pointer_count; ++i)
    if (r->regions_of[i] >= 0) {
      const Region* region = &r->regions[r->regions_of[i]];
      pointers[i] = (char*)region->device + region->shift + r->offsets[i];
    }
  void* workspace = info.workspace_bytes ? device_memory(info.workspace_bytes) : NULL;
  maca_launch launched = {.size = sizeof launched,
                          .pointer_count = r->pointer_count,
                          .pointers = pointers,
                          .scalars = r->scalars,
                          .scalar_count = (uint32_t)r->request.scalar_count,
                          .workspace = workspace,
                          .rng_seed = r->seed,
                          .rng_offset = r->offset};
  status = launch(r, plan, &launched);
  if (status != MACA_OK)
    fail(answer, "plan_launch", status);
  else
    answer->verdict = judge(r, answer) ? PASSED : WRONG;
  if (answer->verdict == PASSED && info.packed_operand >= 0 && library->plan_pack) {
    void* packed = device_memory(info.packed_bytes);
    launched.packed = packed;
    status = library->plan_pack(device, plan, pointers[info.packed_operand], packed, NULL);
    if (status == MACA_OK) status = launch(r, plan, &launched);
    if (status != MACA_OK)
      fail(answer, "a launch with a packed operand", status);
    else
      answer->verdict = judge(r, answer) ? PASSED : WRONG;
    library->memory_free(device, packed);
  }
  const size_t used = strlen(answer->text);
  if (answer->verdict != PASSED && info.implementation)
    snprintf(answer->text + used, sizeof answer->text - used, "; by %s", info.implementation);
  if (workspace) library->memory_free(device, workspace);
  for (uint32_t i = 0; i < r->region_count; ++i) library->memory_free(device, r->regions[i].device);
  library->plan_destroy(device, plan);
}

static void open_library(const char* path, int threads) {
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (!handle) {
    fprintf(stderr, "replay: %s\n", dlerror());
    exit(2);
  }
  const maca_interface* (*entry)(int32_t);
  *(void**)&entry = dlsym(handle, "maca_get_interface");
  maca_reason reason = {.size = sizeof reason};
  if (!entry || !(library = entry(MACA_ABI_MAJOR)) || library->device_open(0, &device, &reason) != MACA_OK) {
    fprintf(stderr, "replay: %s opens no device: %s\n", path, reason.text);
    exit(2);
  }
  if (library->device_set_threads) library->device_set_threads(device, threads);
}

/* --- the parent --- */

typedef struct {
  char kernel[64];
  int counts[DIED + 1];
  char first[600]; /* what was wrong first, or why it declined */
} Line;

static int by_name(const void* a, const void* b) { return strcmp(((const Line*)a)->kernel, ((const Line*)b)->kernel); }

static void quote(FILE* file, const char* text) {
  fputc('"', file);
  for (; *text; ++text) {
    if (*text == '"' || *text == '\\') fputc('\\', file);
    fputc((unsigned char)*text < ' ' ? ' ' : *text, file);
  }
  fputc('"', file);
}

int main(int count, char** words) {
  const char* json = NULL;
  int threads = 1;
  for (int i = 3; i + 1 < count; i += 2) {
    if (strcmp(words[i], "--json") == 0) json = words[i + 1];
    if (strcmp(words[i], "--threads") == 0) threads = atoi(words[i + 1]);
  }
  if (count < 3) {
    fprintf(stderr, "usage: replay LIBRARY FILE [--json FILE] [--threads N]\n");
    return 2;
  }
  const int file = open(words[2], O_RDONLY);
  struct stat facts;
  if (file < 0 || fstat(file, &facts) != 0 || facts.st_size < 8) {
    fprintf(stderr, "replay: cannot read %s\n", words[2]);
    return 2;
  }
  const uint8_t* data = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  if (data == MAP_FAILED || memcmp(data, "MACARPL1", 8) != 0) {
    fprintf(stderr, "replay: %s is no file of record.py\n", words[2]);
    return 2;
  }
  const uint8_t* end = data + facts.st_size;
  static Line lines[MOST];
  int line_count = 0;
  int total[DIED + 1] = {0};
  const uint8_t* next = data + 8;
  uint32_t index = 0;
  while (next < end) {
    int ends[2];
    if (pipe(ends) != 0) return 2;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      open_library(words[1], threads);
      for (Reader all = {next, end}; all.at < end; ++index) {
        const uint64_t bytes = take_u64(&all);
        Reader one = {all.at, all.at + bytes};
        all.at += bytes;
        Record record = read_record(&one);
        Answer answer = {.index = index};
        replay(&record, &answer);
        forget();
        if (write(ends[1], &answer, sizeof answer) != sizeof answer) exit(2);
      }
      _exit(0);
    }
    close(ends[1]);
    for (int over = 0; !over && next < end;) {
      Answer answer = {.index = index};
      size_t got = 0;
      ssize_t now;
      while (got < sizeof answer && (now = read(ends[0], (char*)&answer + got, sizeof answer - got)) > 0)
        got += (size_t)now;
      if (got < sizeof answer) {
        int status = 0;
        waitpid(child, &status, 0);
        if (WIFEXITED(status)) return 2; /* it has said why */
        answer = (Answer){.index = index, .verdict = DIED};
        snprintf(answer.text, sizeof answer.text, "died of signal %d", WTERMSIG(status));
        over = 1;
      }
      Reader r = {next, end};
      const uint64_t bytes = take_u64(&r);
      next = r.at + bytes;
      ++index;
      char *label = take_text(&r), *kernel = take_text(&r);
      Line* line = lines;
      while (line < lines + line_count && strcmp(line->kernel, kernel) != 0) ++line;
      if (line == lines + line_count) {
        if (line_count++ == MOST) return 2;
        snprintf(line->kernel, sizeof line->kernel, "%s", kernel);
      }
      const int worse = answer.verdict != PASSED && answer.verdict != DECLINED;
      if (answer.verdict != PASSED && (!line->first[0] || (worse && !line->counts[WRONG] && !line->counts[FAILED])))
        snprintf(line->first, sizeof line->first, "%s: %s", label, answer.text);
      ++line->counts[answer.verdict];
      ++total[answer.verdict];
      forget();
    }
    close(ends[0]);
    if (next >= end) waitpid(child, NULL, 0);
  }
  qsort(lines, (size_t)line_count, sizeof *lines, by_name);
  printf("%-44s %7s %6s %9s %7s\n", "kernel", "passed", "wrong", "declined", "failed");
  for (int i = 0; i < line_count; ++i) {
    const int* c = lines[i].counts;
    printf("%-44s %7d %6d %9d %7d  %s\n", lines[i].kernel, c[PASSED], c[WRONG], c[DECLINED], c[FAILED] + c[DIED],
           lines[i].first);
  }
  const int bad = total[WRONG] + total[FAILED] + total[DIED];
  printf("%u launches of %d kernels: %d passed, %d wrong, %d declined, %d failed, %d died\n", index, line_count,
         total[PASSED], total[WRONG], total[DECLINED], total[FAILED], total[DIED]);
  FILE* out = json ? fopen(json, "w") : NULL;
  if (out) {
    fprintf(out, "{\"launches\": %u, \"kernels\": [", index);
    for (int i = 0; i < line_count; ++i) {
      const int* c = lines[i].counts;
      fprintf(out, "%s\n {\"kernel\": ", i ? "," : "");
      quote(out, lines[i].kernel);
      fprintf(out,
              ", \"passed\": %d, \"wrong\": %d, \"declined\": %d, \"failed\": %d, \"died\": %d, \"first\": ", c[PASSED],
              c[WRONG], c[DECLINED], c[FAILED], c[DIED]);
      quote(out, lines[i].first);
      fprintf(out, "}");
    }
    fprintf(out, "\n]}\n");
    fclose(out);
  }
  return bad ? 1 : 0;
}
