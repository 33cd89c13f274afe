/* Which fault is planted, and in which plans. */
#include "faults.h"

#include <pthread.h>

#include "fault_kit.h"

static const fault* chosen;
static faulty_plan* plans;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* --- which launches --------------------------------------------------------------------------------------- */
int faults_choose(const char* name) {
  chosen = NULL;
  if (!name || !*name) return 1;
  const fault* const tables[] = {kForward, kTraining, kMemory};
  for (size_t t = 0; t < sizeof tables / sizeof *tables; ++t)
    for (const fault* f = tables[t]; f->name; ++f)
      if (strcmp(f->name, name) == 0) chosen = f;
  return chosen != NULL;
}

static int is_concerned(const char* kernel) { return chosen && strcmp(kernel, chosen->kernel) == 0; }

const maca_plan_request* faults_request(const maca_plan_request* request) {
  static _Thread_local maca_plan_request changed;
  if (!is_concerned(request->kernel) || !chosen->request) return request;
  changed = *request;
  chosen->request(&changed);
  return &changed;
}

void faults_created(const maca_plan* plan, const maca_plan_request* request) {
  if (!is_concerned(request->kernel) || !(chosen->before || chosen->after)) return;
  faulty_plan* p = calloc(1, sizeof *p);
  if (!p) return;
  p->plan = plan;
  p->fault = chosen;
  p->output = -1;
  for (int a = 0; a < request->argument_count; ++a)
    for (int o = 0; o < request->arguments[a].count; ++o) {
      const maca_operand* operand = &request->arguments[a].operands[o];
      if (p->count == MAX_OPERANDS || operand->rank > MAX_RANK) {
        free(p);
        return;
      }
      if (request->arguments[a].is_output && p->output < 0) p->output = p->count;
      shape* s = &p->operands[p->count++];
      s->rank = operand->rank;
      s->dtype = operand->dtype;
      s->scalar_slot = operand->scalar_slot;
      for (int d = 0; d < operand->rank; ++d) s->sizes[d] = operand->sizes[d], s->strides[d] = operand->strides[d];
    }
  if (p->output < 0) p->output = 0; /* lists that are written in place */
  pthread_mutex_lock(&lock);
  p->next = plans;
  plans = p;
  pthread_mutex_unlock(&lock);
}

static faulty_plan* find(const maca_plan* plan) {
  pthread_mutex_lock(&lock);
  faulty_plan* p = plans;
  while (p && p->plan != plan) p = p->next;
  pthread_mutex_unlock(&lock);
  return p && p->fault == chosen ? p : NULL;
}

/* The next plan may lie at its address. What is known of this one stays: another thread may be about to launch it. */
void faults_destroyed(const maca_plan* plan) {
  pthread_mutex_lock(&lock);
  for (faulty_plan* p = plans; p; p = p->next)
    if (p->plan == plan) p->plan = NULL;
  pthread_mutex_unlock(&lock);
}

int faults_concerns(const maca_plan* plan) { return chosen && find(plan) != NULL; }

void faults_before(const maca_plan* plan, maca_launch* launch) {
  faulty_plan* p = find(plan);
  if (p) __atomic_add_fetch(&p->launches, 1, __ATOMIC_RELAXED);
  if (p && p->fault->before) p->fault->before(p, launch);
}

void faults_after(const maca_plan* plan, const maca_launch* launch) {
  const faulty_plan* p = find(plan);
  if (p && p->fault->after) p->fault->after(p, launch);
}
