/* Wrong answers for the tests: what slots of maca.h must not say, in place of the host library's answer or in it. */
#ifndef MACA_ANSWERS_H
#define MACA_ANSWERS_H

#include "maca.h"

/* From now on the slot answers `status`, whatever code that is, without being asked further: what it should have
 * written stays as it was. `calls`: so often; negative: always; 0: no more. At most one slot does. */
void answers_set(const char* slot, int32_t status, const char* reason, int64_t calls);
/* So many calls of the slot that is chosen next are answered as they should be. */
void answers_begin_after(int64_t calls);
/* Is this call of the slot answered so? Then sets the status and, where there is a reason, writes it. */
int answers_strike(const char* slot, maca_reason* reason, maca_status* status);

/* Chooses a number that is wrong in what the library answers ("alignment", ...); "": none. 0 when there is no such. */
int answers_choose(const char* number);
/* What the library answered, with the number that was chosen. */
void answers_device_info(maca_device_info* info);
void answers_plan_info(maca_plan_info* info);
void answers_plan_candidates(const char** names, int32_t* count);
void answers_address(void** address);
void answers_memory_info(uint64_t* free_bytes, uint64_t* total_bytes);
void answers_granularity(uint64_t* granularity);
/* NULL: the library's name stands. */
const char* answers_kernel_name(const char* name);
/* Does error_take give an error each time, so that nobody ever gets to the end? */
int answers_errors_never_end(void);
/* MACA_INTERPOSER_NAP: milliseconds that a collective takes longer, without a core. */
void answers_late(void);

#endif
