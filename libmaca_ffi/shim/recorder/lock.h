// RecordedLock: a reentrant lock of the recorder's.
#pragma once
#include "recording.h"

namespace maca::recorder {

bool is_lock(PyObject* object);
// The calling thread holds the GIL, and lets it go while it waits.
void acquire(PyObject* lock);
void release(PyObject* lock);

bool add_recording_lock(PyObject* module);

}  // namespace maca::recorder
