#include "answers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char wrong_slot[64], wrong_reason[700];
static maca_status wrong_status;
static int64_t right_calls, wrong_calls;
static const char* chosen = "";

static const char* const kNumbers[] = {
    "",           "threads",        "kernel_count", "alignment",   "no_alignment", "workspace_bytes", "packed_operand",
    "cost",       "implementation", "misaligned",   "memory_info", "granularity",  "kernel_name",     "endless_errors",
    "candidates", "candidate"};

void answers_set(const char* slot, int32_t status, const char* reason, int64_t calls) {
  snprintf(wrong_slot, sizeof wrong_slot, "%s", slot);
  snprintf(wrong_reason, sizeof wrong_reason, "%s", reason);
  memcpy(&wrong_status, &status, sizeof wrong_status);
  __atomic_store_n(&wrong_calls, calls, __ATOMIC_SEQ_CST);
}

void answers_begin_after(int64_t calls) { right_calls = calls; }

int answers_strike(const char* slot, maca_reason* reason, maca_status* status) {
  if (!__atomic_load_n(&wrong_calls, __ATOMIC_RELAXED) || strcmp(slot, wrong_slot) != 0) return 0;
  if (__atomic_load_n(&right_calls, __ATOMIC_RELAXED) > 0 && __atomic_fetch_sub(&right_calls, 1, __ATOMIC_RELAXED) > 0)
    return 0;
  if (wrong_calls > 0) __atomic_sub_fetch(&wrong_calls, 1, __ATOMIC_RELAXED);
  /* all of it and no zero at the end: a library may forget that */
  if (reason) memcpy(reason->text, wrong_reason, sizeof reason->text);
  *status = wrong_status;
  return 1;
}

int answers_choose(const char* number) {
  for (size_t i = 0; i < sizeof kNumbers / sizeof *kNumbers; ++i)
    if (strcmp(kNumbers[i], number) == 0) {
      chosen = kNumbers[i];
      return 1;
    }
  return 0;
}

static int is(const char* number) { return strcmp(chosen, number) == 0; }

void answers_device_info(maca_device_info* info) {
  if (is("threads")) info->threads = -5;
  if (is("kernel_count")) info->kernel_count = -1;
  if (is("no_alignment")) info->alignment = 0;
  if (is("alignment")) info->alignment = 24;
}

void answers_plan_info(maca_plan_info* info) {
  if (is("workspace_bytes")) info->workspace_bytes = UINT64_C(0x7fffdeadbeef0000);
  if (is("packed_operand")) info->packed_operand = 99;
  if (is("cost")) info->cost = 7;
  if (is("implementation")) info->implementation = NULL;
}

void answers_plan_candidates(const char** names, int32_t* count) {
  if (is("candidates")) *count = 1000;
  if (is("candidate") && *count > 0) names[0] = "two\nlines";
}

void answers_address(void** address) {
  if (is("misaligned")) *address = (char*)*address + 8;
}

void answers_memory_info(uint64_t* free_bytes, uint64_t* total_bytes) {
  if (is("memory_info")) *free_bytes = *total_bytes + 1;
}

void answers_granularity(uint64_t* granularity) {
  if (is("granularity")) *granularity = 0;
}

const char* answers_kernel_name(const char* name) { return is("kernel_name") && !name ? "one more" : name; }

int answers_errors_never_end(void) { return is("endless_errors"); }

void answers_late(void) {
  const char* milliseconds = getenv("MACA_INTERPOSER_NAP");
  if (milliseconds) usleep(1000 * (useconds_t)atoi(milliseconds));
}
