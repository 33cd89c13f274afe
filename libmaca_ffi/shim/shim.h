/* The runtime between Python and a device library, compiled into the cffi module: loads the library, caches
 * memory, orders streams, launches plans. What is here is written once for every library that speaks maca.h.
 *
 * Functions keep the interpreter lock unless their comment says "releases the lock": a call that releases it
 * costs 85 us when another Python thread is busy, 0.1 us when it keeps it.
 */

#pragma once
#ifdef __cplusplus
extern "C" {
#endif

/* A block of device memory. Tensors that share memory share one. */
typedef struct maca_buffer maca_buffer;

typedef struct maca_statistic {
  int64_t current, peak, allocated, freed;
} maca_statistic;

/* Each number of all blocks, of small ones (at most 64 KiB) and of large ones. */
typedef struct maca_memory_statistics {
  maca_statistic allocation[3], allocated_bytes[3], requested_bytes[3], segment[3], reserved_bytes[3];
  maca_statistic inactive[3], inactive_bytes[3]; /* free in segments that others keep from being given back */
  int64_t retries, out_of_memory;
  int64_t limit_bytes;  /* -1: none */
  int64_t failed_bytes; /* that the allocation which failed last asked for */
} maca_memory_statistics;

/* A block of a segment, live or free. */
typedef struct maca_memory_block {
  uint64_t segment_address;
  int64_t segment_bytes;
  uint64_t address;
  int64_t bytes, requested_bytes, stream;
  int64_t site; /* see maca_memory_set_site() */
  int64_t pool; /* a private one, or 0 */
  int32_t is_small, is_live;
} maca_memory_block;

/* Launches that were recorded, to be run again; the memory that such graphs share. */
typedef struct maca_graph maca_graph;
typedef struct maca_graph_pool maca_graph_pool;

typedef struct maca_counters {
  int64_t launches, packs, bytes_to_device, bytes_to_host, bytes_on_device, stream_waits;
  int64_t extension_launches; /* those among `launches` that joined libraries served */
} maca_counters;

/* A plan of the library and what the runtime needs to launch it. */
typedef struct maca_program maca_program;

/* Statuses of the runtime's own, beside those of maca.h. */
enum {
  MACA_SHIM_PARTIAL_OVERLAP = 100, /* a written operand overlaps another in part */
  MACA_SHIM_MISUSE = 101,          /* the runtime itself refuses; the failure's text says why */
  MACA_SHIM_BROKEN = 102,          /* the library answered what maca.h does not allow */
  MACA_SHIM_LOST = 103             /* the device is lost, and the library was not asked; the failure's text says why */
};

/* What the library answered to a call that did not succeed. */
typedef struct maca_failure {
  const char* slot;      /* the function of maca.h; NULL: the runtime itself refused */
  const char* extension; /* the joined library that answered; NULL: the device's own */
  int32_t status;        /* of maca.h, MACA_SHIM_BROKEN or MACA_SHIM_LOST */
  char text[700];        /* slot, status and the library's reason; or what it gave and what was expected */
} maca_failure;

/* How the runtime treats operand i of a program. */
typedef struct maca_role {
  int64_t output_bytes; /* >= 0: a result that every launch allocates; -1: the caller's memory */
  int64_t
      extent_bytes; /* from the first to past the last byte that is touched; a launch refuses one outside its buffer */
  int32_t item_bytes;
  int32_t written; /* 1: the launch writes this operand of the caller */
  int32_t dense;   /* 1: no gaps, so that ranges that meet are elements that meet */
  int32_t scalar;  /* 1: the value comes with the scalars, there is no memory */
  int32_t layout;  /* operands of equal dtype, sizes and strides share a number: they may be one another's elements */
  int32_t place;   /* from 1, in a list of tensors; 0: of no list */
} maca_role;

/* --- library ------------------------------------------------------------------------------------------- */
/* Opens device `index` of a library. 0, or a text in `message` that says what was found and what was expected.
 * `blocking`: every launch returns when it has finished, so that its error names it. */
int maca_runtime_load(const char* path, int32_t index, int32_t blocking, char* message, int capacity);
int maca_runtime_info(maca_device_info* info); /* a maca_status or one of the above, as of most that return int */
const char* maca_runtime_library(void);
int maca_runtime_abi(void); /* major * 1000 + minor of the library */
const char* maca_runtime_kernel(int32_t index);
int maca_runtime_set_threads(int32_t threads);
int maca_runtime_synchronize(void);               /* releases the lock */
const char* maca_runtime_lost(void);              /* why nothing can be asked of the device again; NULL: it can */
int maca_runtime_error(maca_error* error);        /* the oldest untaken error of a launch */
void maca_runtime_failure(maca_failure* failure); /* of the calling thread's last call that failed */
/* 1: the oldest failure that no caller could be told of (a free, a wait inside of a launch); 0: there is none. */
int maca_runtime_take_failure(maca_failure* failure);
void maca_runtime_counters(maca_counters* counters);

/* --- libraries of users' own (extensions.cpp) ------------------------------------------------------------- */
/* Joins a library that has kernels alone: it is asked for plans before the device's library and before those that were
 * joined earlier, for the kernels that it names. 0 and its number, from 1, or a text as of maca_runtime_load(). */
int maca_extensions_join(const char* path, const char* name, int32_t* number, char* message, int capacity);
void maca_extensions_leave(int32_t number);                        /* no new plans; those that live go on */
const char* maca_extensions_kernel(int32_t number, int32_t index); /* NULL past the last */
/* 1: its launches are work of the stream they are given. 0: they run at once, when that is over, on host memory. */
int32_t maca_extensions_queue(int32_t number);
int64_t maca_extensions_launches(int32_t number);

/* --- memory -------------------------------------------------------------------------------------------- */
maca_buffer* maca_buffer_allocate(int64_t bytes); /* NULL: see maca_runtime_failure(), without a slot: no memory */
void maca_buffer_release(maca_buffer* buffer);
/* Offsets and lengths in bytes. Release the lock when they move much. `may_run_on`: a copy from or to pinned memory
 * need not be over on return. */
int maca_buffer_from_host(maca_buffer* to, int64_t offset, const void* from, int32_t may_run_on, int64_t bytes);
int maca_buffer_to_host(void* to, maca_buffer* from, int64_t offset, int32_t may_run_on, int64_t bytes);
int32_t maca_host_is_pinned(const void* address);
void maca_host_empty_cache(void); /* gives back pinned memory that no tensor holds */
/* Gives a buffer, and so all tensors in it, other memory of so many bytes with what it held. Refused where a captured
   graph uses it, whose launches keep addresses. */
int maca_buffer_resize(maca_buffer* buffer, int64_t bytes);
/* Moves a buffer, and so all tensors in it, to memory that other ranks reach without a copy; `keeps` what it held. It
   stays where it is if a graph knows its address. MACA_UNSUPPORTED: there is no such memory, or no more. */
int maca_buffer_move_to_shared(maca_buffer* buffer, int32_t keeps);
int32_t maca_buffer_is_shared(const maca_buffer* buffer);
/* Another buffer over the same memory, which the one that is written first copies. NULL: a graph knows the memory. */
maca_buffer* maca_buffer_share(maca_buffer* buffer);
int maca_buffer_own(maca_buffer* buffer); /* gives it memory of its own now, where a write would */
int32_t maca_buffer_may_resize(maca_buffer* buffer);
int maca_buffer_copy(maca_buffer* to, int64_t to_offset, maca_buffer* from, int64_t from_offset, int64_t bytes);
int maca_buffer_fill(maca_buffer* buffer, int64_t offset, int32_t byte, int64_t bytes);
void maca_memory_get_statistics(maca_memory_statistics* statistics);
void maca_memory_reset_peaks(void);
void maca_memory_reset_accumulated(void);
/* Fills in up to `capacity` blocks, by address, and returns how many there are. */
int64_t maca_memory_blocks(maca_memory_block* blocks, int64_t capacity);
/* What the calling thread runs from now on, as a number of Python's: allocations remember it. 0: not recorded. */
void maca_memory_set_site(int64_t site);
int64_t maca_memory_get_site(void);
/* Private pools: what a thread allocates while one is set comes from its segments. The numbers count from 1; 0 is none,
 * and what is returned where there is no memory that ranks share. A pool that is closed gives back what it has free;
 * the rest goes with the cache, once it is free. */
int64_t maca_memory_open_pool(int32_t is_shared, int32_t serves_last, int32_t is_whole);
void maca_memory_close_pool(int64_t pool);
int64_t maca_memory_set_pool(int64_t pool); /* of this thread; the one before */
int maca_memory_fence(void);                /* before the first allocation; MACA_UNSUPPORTED: no ranges */
void maca_memory_set_limit(int64_t bytes);  /* -1: no limit */
int maca_memory_empty_cache(void);
int maca_memory_info(uint64_t* free_bytes, uint64_t* total_bytes);

/* --- random numbers ------------------------------------------------------------------------------------- */
void maca_random_set(uint64_t seed, uint64_t offset);
uint64_t maca_random_seed(void);
uint64_t maca_random_offset(void);

/* --- streams and events (handles of the runtime; 0 is the default stream) -------------------------------- */
int maca_streams_create(int32_t priority, int64_t* stream);
int maca_streams_destroy(int64_t stream);     /* what the library says of it comes by maca_runtime_take_failure() */
int maca_streams_synchronize(int64_t stream); /* releases the lock */
int maca_streams_query(int64_t stream);       /* MACA_OK, MACA_NOT_READY, or a failure; events alike */
int64_t maca_streams_current(void);           /* of the calling thread */
int maca_streams_set_current(int64_t stream);
int maca_streams_wait_event(int64_t stream, maca_event* event);
int maca_events_create(int32_t is_timed, maca_event** event);
void maca_events_destroy(maca_event* event);
int maca_events_record(maca_event* event, int64_t stream);
int maca_events_query(maca_event* event);
int maca_events_synchronize(maca_event* event); /* releases the lock */
int maca_events_elapsed(maca_event* start, maca_event* end, double* milliseconds);

/* --- the default stream's queue (task_queue.h) ----------------------------------------------------------- */
/* 0: its work runs at once; 1: on a thread of its own; 2: only long launches do, and what follows them before they
 * end. Waits for what is queued and releases the lock meanwhile. Stays 0 where every launch waits for its end and where
 * the library's default stream does not run work at once. */
int maca_task_queue_set(int32_t mode);
int32_t maca_task_queue_get(void);
void maca_task_queue_wait(void); /* releases the lock */
/* Before os.fork(): waits, without the lock, for what is queued now; meanwhile no other thread queues more. */
void maca_task_queue_before_fork(void);
/* Has the default stream run something, since this was asked last, whose failure its launch could not tell? */
int32_t maca_task_queue_take_used(void);
/* The kernel of a queued launch that failed, of the latest thousands; NULL: unknown. */
const char* maca_runtime_kernel_of(uint64_t correlation);

/* --- collectives (comm.cpp) ------------------------------------------------------------------------------ */
typedef struct maca_communicator maca_communicator;

/* An operand: bytes of a buffer from an offset on. buffer NULL: none. */
typedef struct maca_span {
  maca_buffer* buffer;
  int64_t offset, bytes;
} maca_span;

typedef enum maca_collective_kind {
  MACA_SHIM_ALL_REDUCE = 0,
  MACA_SHIM_REDUCE = 1,
  MACA_SHIM_BROADCAST = 2,
  MACA_SHIM_ALL_GATHER = 3,
  MACA_SHIM_REDUCE_SCATTER = 4
} maca_collective_kind;

int32_t maca_comms_served(void); /* 1: the library has communicators */
int maca_comms_id(maca_comm_id* id);
int maca_comms_create(const maca_comm_request* request, maca_communicator** made); /* releases the lock */
void maca_comms_destroy(maca_communicator* communicator);
int maca_comms_abort(maca_communicator* communicator);
/* What is under way on a buffer now, for a collective that begins later: an event, or NULL where there is nothing. */
maca_event* maca_comms_pending(maca_buffer* buffer);
/* What the communicator does from now on comes after the event, which is destroyed. Releases the lock. */
int maca_comms_follow(maca_communicator* communicator, maca_event* event);
/* These return when it is over, release the lock, and do not look at who else awaits or uses the buffers. */
int maca_comms_run(maca_communicator* communicator, int32_t kind, const maca_collective* call, const maca_span* to,
                   const maca_span* from);
int maca_comms_all_to_all(maca_communicator* communicator, const maca_collective* call, int32_t ranks,
                          const maca_span* to, const maca_span* from);

/* --- what ran, and when (profile.h) ---------------------------------------------------------------------- */
typedef enum maca_profile_kind {
  MACA_PROFILE_LAUNCH = 0,
  MACA_PROFILE_TO_DEVICE = 1,
  MACA_PROFILE_TO_HOST = 2,
  MACA_PROFILE_ON_DEVICE = 3,
  MACA_PROFILE_FILL = 4,
  MACA_PROFILE_MEMORY = 5 /* a block was taken or given back */
} maca_profile_kind;

/* Times in nanoseconds of the host's real-time clock. */
typedef struct maca_profile_event {
  int32_t kind, thread;       /* the operating system's number of the thread that gave it */
  uint64_t correlation;       /* of a launch; of memory its address */
  const char* name;           /* of a launch its kernel */
  const char* implementation; /* that the library chose, or NULL; valid until the next start */
  int64_t stream;
  int64_t given_ns, start_ns, end_ns; /* given to the library; began and ended on the device */
  int64_t bytes;                      /* that operands span, that were moved, or by which memory in use grew */
  int64_t total_bytes;                /* of memory: in use then */
} maca_profile_event;

/* Forgets what was noted and notes what comes. `with_memory`: blocks taken and given back, too. */
int maca_profile_start(int32_t with_memory);
int maca_profile_stop(void); /* waits until what was launched is over; releases the lock */
/* Fills in up to `capacity` events, in the order in which they were given, and returns how many there are. */
int64_t maca_profile_events(maca_profile_event* events, int64_t capacity);

/* --- programs ------------------------------------------------------------------------------------------- */
/* Launched by the types of shim/launcher. */
/* `roles` holds one entry an operand, in the order of the request. `defaults` are scalars that follow those given
 * at each launch: the defaults of arguments the caller left out. On failure the status and the reason. */
int maca_program_create(const maca_plan_request* request, int32_t operand_count, const maca_role* roles,
                        int32_t default_count, const maca_scalar* defaults, maca_program** program,
                        maca_reason* reason);
void maca_program_destroy(maca_program* program);
/* Fills in up to `capacity` names of ways to compute a request, valid as long as the library, and how many there are.
 */
int maca_program_candidates(const maca_plan_request* request, const char** names, int32_t capacity, int32_t* count);
uint64_t maca_program_number(const maca_program* program); /* never used twice */
/* The joined library that serves it; 0: the device's own. */
int32_t maca_program_extension(const maca_program* program);

/* --- graphs --------------------------------------------------------------------------------------------- */
maca_graph_pool* maca_graph_pools_create(void);
void maca_graph_pools_destroy(maca_graph_pool* pool); /* its graphs keep it as long as they live */
/* From here to maca_graphs_end() launches, fills and copies on the device are recorded and not run, whichever thread
 * gives them. NULL: another graph is being captured. */
maca_graph* maca_graphs_begin(maca_graph_pool* pool);
void maca_graphs_end(maca_graph* graph);
int maca_graphs_replay(maca_graph* graph); /* a maca_status; releases the lock when it is long */
int64_t maca_graphs_launches(maca_graph* graph);
void maca_graphs_destroy(maca_graph* graph);

#ifdef __cplusplus
}
#endif
