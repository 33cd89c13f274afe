/* Wrong kernels for the tests: what a faulty library would do, done to the host library's requests and results. */
#ifndef MACA_FAULTS_H
#define MACA_FAULTS_H

#include "maca.h"

/* Chooses the fault by name; "" or NULL: none. 0 when there is no fault of the name. Plans made before stay right. */
int faults_choose(const char* name);

/* The request as the fault would have it, or `request` itself; valid until the next call on this thread. */
const maca_plan_request* faults_request(const maca_plan_request* request);
/* A plan was made for a request. */
void faults_created(const maca_plan* plan, const maca_plan_request* request);
/* A plan is about to be destroyed. */
void faults_destroyed(const maca_plan* plan);
/* A launch of `plan`, whose addresses are those of host memory: around it. `launch` may be changed. */
void faults_before(const maca_plan* plan, maca_launch* launch);
void faults_after(const maca_plan* plan, const maca_launch* launch);
/* Does the fault look at launches of this plan? */
int faults_concerns(const maca_plan* plan);

#endif
